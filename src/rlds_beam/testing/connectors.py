"""The conformance tests of connectors."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.connectors.base import Batch, Connector
from rlds_beam.connectors.configuration import Configuration, flat
from rlds_beam.connectors.counts import imbalance
from rlds_beam.connectors.learner.actions import as_numpy
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.encoding.tfds.rlds_dataset import default_schema
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import BadEpisode
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.testing import make_episode
from rlds_beam.testing.conversions import episode_content, plain

_LENGTHS = (2, 20, 3, 11, 7, 5, 16, 9)


class ConnectorTests:
    """Tests that every connector passes; pytest runs those of a subclass. For example:

        class TestClipReward(ConnectorTests):
            def connectors(self):
                return [pieces.ClipReward(0.5)]

    They check that the dry run on zeros predicts the fields of every episode, also of the shortest, that equal episodes
    give equal results, that episodes are not changed in place, and that the counts add up.
    """

    def connectors(self) -> Sequence[Connector]:
        """The connector, after those that it needs before it."""
        raise NotImplementedError(f"{type(self).__name__}.connectors")

    def episode(self, steps: int, seed: int) -> Episode:
        """A valid episode that the connectors can process; each with the same fields."""
        return make_episode(steps, seed=seed, observation={"state": 3}, terminal=seed % 2 == 0)

    def _episodes(self) -> list[Episode]:
        return [self.episode(steps, seed) for seed, steps in enumerate(_LENGTHS)]

    def _runner(self) -> ConnectorRunner:
        """The connectors, fitted to the episodes."""
        episodes = self._episodes()
        runner = ConnectorRunner.of(Configuration(flat(self.connectors())), default_schema(episodes[0]))
        while runner.unfitted:
            accumulator = runner.accumulator()
            for episode in episodes:
                runner.accumulate(accumulator, [episode])
            runner = runner.fit([json.loads(json.dumps(accumulator.finish()))])
        return runner

    def test_the_dry_run_predicts_the_fields_of_every_episode(self) -> None:
        """`connect` raises if fields, dtypes, or shapes differ from those of the dry run on zeros."""
        runner = self._runner()
        for episode in self._episodes():
            runner.connect([episode])

    def test_the_shortest_episodes(self) -> None:
        """One transition, and a single step without one; both may be dropped or rejected."""
        runner = self._runner()
        for steps in (2, 1):
            try:
                runner.connect([self.episode(steps, seed=0)])
            except BadEpisode:
                continue

    def test_equal_episodes_give_equal_results(self) -> None:
        """In any order, and in another process."""
        runner, episodes = self._runner(), self._episodes()
        again = pickle.loads(pickle.dumps(runner))
        backwards = [batch_content(again.connect([episode])) for episode in reversed(copy.deepcopy(episodes))]
        assert [batch_content(runner.connect([episode])) for episode in episodes] == backwards[::-1]

    def test_episodes_are_not_changed_in_place(self) -> None:
        """Later connectors and outputs read the same arrays."""
        runner, episodes = self._runner(), self._episodes()
        before = [episode_content(episode) for episode in episodes]
        for episode in episodes:
            runner.connect([episode])
        assert [episode_content(episode) for episode in episodes] == before

    def test_the_counts_add_up(self) -> None:
        """Each connector gets what the one before returned, and drops what it does not return."""
        for episode in self._episodes():
            batch = self._runner().connect([episode])
            assert imbalance(1, len(episode), batch.connected) is None
            assert batch.connected[-1].episodes_out == len(batch.episodes)

    def test_each_episode_ends_once(self) -> None:
        """The first step is `is_first`, and the last one `is_last`; no other step is, or is terminal."""
        runner = self._runner()
        for made in (made for episode in self._episodes() for made in runner.connect([episode]).episodes):
            first, last, terminal = (np.asarray(made.steps[name]) for name in ("is_first", "is_last", "is_terminal"))
            end = len(made) - 1 - ("loss_mask" in made.steps)  # AddOneTsToEpisodesAndTruncate adds a step
            assert np.flatnonzero(first).tolist() == [0]
            assert np.flatnonzero(last).tolist() == [end]
            assert {*np.flatnonzero(terminal).tolist()} <= {end}

    def test_its_plan_is_json(self) -> None:
        """A job that resumes compares names, arguments, and versions of the code."""
        plan = Configuration(flat(self.connectors())).plan()
        assert json.dumps(plan) == json.dumps(Configuration(flat(self.connectors())).plan())


def batch_content(batch: Batch) -> dict[str, Any]:
    """The episodes and columns of a batch as values that `==` compares; NaN equals NaN."""
    return {
        "dropped": dict(batch.dropped),
        "episodes": [episode_content(episode) for episode in batch.episodes],
        "columns": [_columns(columns) for columns in batch.columns],
        "modules": {module: _columns(columns) for module, columns in (batch.modules or {}).items()},
    }


def _columns(columns: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, plain(c if isinstance(c, EncodedImages) else as_numpy(c))) for name, c in columns.items()]
