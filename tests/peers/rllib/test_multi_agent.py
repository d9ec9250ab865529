"""Several agents and modules: our columns equal RLlib's for the same multi-agent episodes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import rllib_peer as peer
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.rllib.connectors import common, learner
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from rlds_beam import connectors as ours
from rlds_beam.episodes.episode import Episode, EpisodeKey

MODULES = {"a0": "recurrent", "a1": "stateless", "a2": "recurrent"}
KINDS = {"recurrent": peer.Recurrent, "stateless": peer.Stateless}


@dataclasses.dataclass
class Game:
    """A multi-agent episode: each agent joins at some step of the environment and may leave before the end."""

    end: str
    starts: dict[str, int]
    agents: dict[str, peer.Recorded]
    number: int

    @property
    def length(self) -> int:
        """The number of transitions of the environment."""
        return max(self.starts[name] + len(agent) for name, agent in self.agents.items())

    def stays(self, name: str) -> bool:
        return self.starts[name] + len(self.agents[name]) == self.length

    def theirs(self) -> MultiAgentEpisode:
        episode = MultiAgentEpisode(
            id_=f"game{self.number}", agent_to_module_mapping_fn=lambda agent, _: MODULES[agent]
        )
        episode.add_env_reset(observations=self._at(0, lambda agent, t: agent.observation(t)))
        for step in range(self.length):
            last = step == self.length - 1
            leaving = {n: True for n, a in self.agents.items() if self.starts[n] + len(a) == step + 1 < self.length}
            episode.add_env_step(
                self._at(step + 1, lambda agent, t: agent.observation(t)),
                self._at(step, lambda agent, t: agent.actions[t], acting=True),
                self._at(step, lambda agent, t: agent.rewards[t], acting=True),
                terminateds={**leaving, "__all__": last and self.end == "terminated"},
                truncateds={"__all__": last and self.end == "truncated"},
                extra_model_outputs=self._at(step, _extras, acting=True),
            )
        return episode.to_numpy()

    def _at(self, step: int, value: Any, *, acting: bool = False) -> dict[str, Any]:
        there = {n: step - self.starts[n] for n in self.agents}
        return {n: value(self.agents[n], t) for n, t in there.items() if 0 <= t < len(self.agents[n]) + (not acting)}

    def ours(self) -> Episode:
        """Converts to one record, with separate fields for each agent and for when it is present."""
        count = self.length + 1
        flags = {name: np.zeros(count, bool) for name in ("is_first", "is_last", "is_terminal")}
        flags["is_first"][0], flags["is_last"][-1] = True, self.end != "unfinished"
        flags["is_terminal"][-1] = self.end == "terminated"
        steps: dict[str, Any] = dict(flags)
        for name, agent in self.agents.items():
            start = self.starts[name]
            present = np.zeros(count, bool)
            present[start : start + len(agent) + 1] = True
            steps[f"present/{name}"] = present
            for path, column in agent.ours().steps.items():
                if path not in flags:
                    steps[f"{path}/{name}"] = np.full((count, *column.shape[1:]), 55, column.dtype)
                    steps[f"{path}/{name}"][start : start + len(agent) + 1] = column
        return Episode(EpisodeKey("d/1.0.0", "train", 0, self.number), steps)


def _extras(agent: peer.Recorded, t: int) -> dict[str, Any]:
    states = {} if agent.states is None else {"state_out": {"h": agent.states[t]}}
    return {"action_logp": agent.logp[t], **states}


@st.composite
def games(draw: Any) -> list[Game]:
    return [draw(_game(number)) for number in range(draw(st.integers(1, 3)))]


@st.composite
def _game(draw: Any, number: int) -> Game:
    length = draw(st.integers(1, 9))
    starts, agents = {}, {}
    for i, name in enumerate(MODULES):
        start = draw(st.integers(0, length - 1)) if i else 0
        stop = draw(st.integers(start + 1, length)) if i else length
        starts[name] = start
        agents[name] = peer.recorded(stop - start, states=MODULES[name] == "recurrent", number=number * 10 + i)
    return Game(draw(st.sampled_from(("terminated", "truncated"))), starts, agents, number)


def their_pieces(one_ts: bool = False) -> list:
    return [
        *([learner.AddOneTsToEpisodesAndTruncate()] if one_ts else []),
        common.AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        learner.AddColumnsFromEpisodesToTrainBatch(),
        common.AddTimeDimToBatchAndZeroPad(as_learner_connector=True),
        common.AddStatesFromEpisodesToBatch(as_learner_connector=True),
        common.AgentToModuleMapping(
            rl_module_specs=dict.fromkeys(KINDS),
            agent_to_module_mapping_fn=lambda agent, _: MODULES[agent],
            as_learner_connector=True,
        ),
        common.BatchIndividualItems(multi_agent=True),
    ]


def our_pieces(max_seq_len: int) -> list:
    fields = ("observation", "action", "reward", "action_logp", "present")
    return [
        ours.SplitAgents(
            {
                name: {
                    **{field: f"{field}/{name}" for field in fields},
                    **({"state_out/h": f"state_out/h/{name}"} if module == "recurrent" else {}),
                }
                for name, module in MODULES.items()
            }
        ),
        ours.AgentToModuleMapping(MODULES),
        ours.AddObservationsFromEpisodesToBatch(),
        ours.AddColumnsFromEpisodesToTrainBatch(),
        ours.AddTimeDimToBatchAndZeroPad(max_seq_len, modules=["recurrent"]),
        ours.AddStatesFromEpisodesToBatch(initial_state=peer.INITIAL_STATE),
        ours.BatchIndividualItems(),
    ]


@given(games(), st.integers(1, 5))
@settings(peer.QUICK, max_examples=40)
def test_two_modules_one_recurrent(played, max_seq_len):
    theirs = peer.their_batch(their_pieces(), [game.theirs() for game in played], peer.module(KINDS, max_seq_len))
    made: dict[str, Any] = {}
    for game in played:
        for name, columns in peer.our_batch(our_pieces(max_seq_len), [game.ours()]).items():
            made.setdefault(name, []).append(columns)
    assert made.keys() == theirs.keys() == set(KINDS)
    for name, parts in made.items():
        columns = {column: np.concatenate([part[column] for part in parts]) for column in parts[0]}
        peer.assert_equal(peer.sorted_rows(columns), peer.sorted_rows(theirs[name]))
