"""The LIBERO presets, compared with the scripts that make OpenVLA's RLDS datasets, on a small simulator.

The scripts need LIBERO's simulator, so their loops are restated here, line by line, around a simulator of our own that
is as deterministic: an action that does nothing changes nothing. OpenVLA renders at 256 x 256, which no conversion of
the published 128 x 128 files can repeat, so both render at one size.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from exchanging import export, read_back
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_beam.connectors import connect
from rlds_beam.connectors.cleaning.presets import find_preset
from rlds_beam.connectors.configuration import parse
from rlds_beam.episodes.episode import Episode
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.testing import make_episode

Arrays = dict[str, Any]
CAMERAS = {"agentview_rgb": "image", "eye_in_hand_rgb": "wrist_image"}


class Simulator:
    """Its state is the sum of all actions; its images show the state."""

    def __init__(self) -> None:
        self.state = np.zeros(7)

    def step(self, action: Any) -> Arrays:
        self.state = np.append(self.state[:-1] + action[:-1], action[-1])
        return self.observation()

    def observation(self) -> Arrays:
        noise = np.random.default_rng(list(self.state.tobytes())).integers(0, 255, (2, 4, 6, 3), np.uint8)
        ee, gripper = self.state[:6] * 2, np.repeat(self.state[6], 2)
        images = dict(zip(CAMERAS, noise, strict=True))
        return {"ee_states": ee, "gripper_states": gripper, "joint_states": self.state * 3, **images}


def stacked(observations: list[Arrays], actions: Any) -> Arrays:
    ends = np.zeros(len(actions), np.uint8)
    ends[-1] = 1
    arrays = {name: np.stack([one[name] for one in observations]) for name in observations[0]}
    return {**arrays, "actions": np.asarray(actions), "rewards": ends, "dones": ends}


def recorded(actions: Any) -> Arrays:
    """What LIBERO's create_dataset.py stores: the observation that `env.step(action)` returns."""
    simulator = Simulator()
    return stacked([simulator.step(action) for action in actions], actions)


def is_noop(action: Any, prev_action: Any = None, threshold: float = 1e-4) -> bool:
    """As in openvla's regenerate_libero_dataset.py."""
    if prev_action is None:
        return bool(np.linalg.norm(action[:-1]) < threshold)
    return bool(np.linalg.norm(action[:-1]) < threshold and action[-1] == prev_action[-1])


def regenerated(orig_actions: Any) -> Arrays | None:
    """The loop of openvla's regenerate_libero_dataset.py: the observation before each action that is kept."""
    simulator, actions, observations = Simulator(), [], []
    obs = simulator.observation()
    for action in orig_actions:
        prev_action = actions[-1] if len(actions) > 0 else None
        if is_noop(action, prev_action):
            continue
        actions.append(action)
        observations.append(obs)
        obs = simulator.step(action)
    return stacked(observations, actions) if actions else None


def built(demo: Arrays) -> list[Arrays]:
    """The steps of `_parse_example` in moojink's LIBERO_Spatial_dataset_builder.py."""
    actions, images, wrist_images = demo["actions"], demo["agentview_rgb"], demo["eye_in_hand_rgb"]
    return [
        {
            "image": images[i][::-1, ::-1],
            "wrist_image": wrist_images[i][::-1, ::-1],
            "state": np.concatenate((demo["ee_states"][i], demo["gripper_states"][i]), axis=-1).astype(np.float32),
            "joint_state": demo["joint_states"][i].astype(np.float32),
            "action": actions[i].astype(np.float32),
            "reward": float(i == (actions.shape[0] - 1)),
            "is_terminal": i == (actions.shape[0] - 1),
        }
        for i in range(actions.shape[0])
    ]


def as_episode(demo: Arrays) -> Episode:
    """An episode with the fields of the profile `libero`."""
    length = len(demo["actions"])
    renamed = {
        f"observation/{CAMERAS.get(name, name)}": demo[name]
        for name in demo
        if name not in ("actions", "rewards", "dones")
    }
    steps = {**renamed, "action": demo["actions"], "reward": demo["rewards"].astype(np.float32)}
    episode = make_episode(length, observation={"ee_states": 6}, terminal=True)
    return episode.with_columns({**steps, "is_terminal": demo["dones"] == 1})


def after(preset: str, demo: Arrays) -> Episode | None:
    connectors = parse([*find_preset(preset).connectors], preset).connectors
    episodes = connect(list(connectors), [as_episode(demo)]).episodes
    return episodes[0] if episodes else None


def same_step(episode: Episode, ours: int, theirs: Arrays, *, acts: bool = True) -> None:
    steps: Any = episode.steps
    state = np.concatenate([steps["observation/ee_states"][ours], steps["observation/gripper_states"][ours]])
    np.testing.assert_array_equal(state.astype(np.float32), theirs["state"])
    np.testing.assert_array_equal(steps["observation/joint_states"][ours].astype(np.float32), theirs["joint_state"])
    for camera in CAMERAS.values():
        np.testing.assert_array_equal(steps[f"observation/{camera}"][ours], theirs[camera])
    if acts:
        np.testing.assert_array_equal(steps["action"][ours].astype(np.float32), theirs["action"])
        assert steps["reward"][ours] == theirs["reward"]


ACTIONS = st.lists(st.tuples(st.sampled_from([0.0, 0.25, -0.5]), st.sampled_from([-1.0, 1.0])), min_size=1, max_size=12)


@settings(deadline=None, max_examples=60)
@given(ACTIONS)
def test_published_files_become_what_openvla_trains_on(chosen):
    """All steps but the first, whose observation the published files do not hold; and the final observation."""
    actions = np.array([[move, *[0.0] * 5, gripper] for move, gripper in chosen])
    episode, theirs = after("libero", recorded(actions)), regenerated(actions)
    if theirs is None:
        assert episode is None
        return
    assert episode is not None
    steps = built(theirs)
    assert len(episode) == len(steps)
    for ours, step in enumerate(steps[1:]):
        same_step(episode, ours, step)
    assert np.flatnonzero(episode.steps["is_terminal"]).tolist() == [len(steps) - 1]
    np.testing.assert_array_equal(episode.steps["is_last"], episode.steps["is_terminal"])


@settings(deadline=None, max_examples=30)
@given(ACTIONS.filter(lambda actions: any(move for move, _ in actions)))
def test_regenerated_files_become_openvlas_steps(chosen):
    theirs = regenerated(np.array([[move, *[0.0] * 5, gripper] for move, gripper in chosen]))
    assert theirs is not None
    episode = after("libero_no_noops", theirs)
    assert episode is not None and len(episode) == len(theirs["actions"])
    for at, step in enumerate(built(theirs)):
        same_step(episode, at, step)
        assert episode.steps["is_terminal"][at] == step["is_terminal"]


def test_a_published_file_is_converted_with_the_preset(tmp_path: Path) -> None:
    import h5py

    actions = np.zeros((8, 7))
    actions[:, 0], actions[:, 6] = [0.5, 0, 0.5, 0.5, 0, 0, 0.5, 0], [-1, -1, -1, -1, 1, 1, 1, 1]
    demos = tmp_path / "libero_spatial"
    demos.mkdir()
    with h5py.File(demos / "pick_up_the_bowl_demo.hdf5", "w") as file:
        file.create_group("data").attrs["problem_info"] = json.dumps({"language_instruction": "pick up the bowl"})
        for name, values in recorded(actions).items():
            file[f"data/demo_0/{name if name in ('actions', 'rewards', 'dones') else f'obs/{name}'}"] = values
    out = tmp_path / "libero" / "1.0.0"
    export(demos, out, "rlds", from_="hdf5", profile="libero", preset="libero")
    (episode,) = read_back(out, "rlds")
    theirs = regenerated(actions)
    assert theirs is not None
    steps: Any = {path: c.decode() if isinstance(c, EncodedImages) else c for path, c in episode.steps.items()}
    assert len(episode) == len(theirs["actions"]) == 5
    for at, step in enumerate(built(theirs)[1:]):
        same_step(episode.with_columns(steps), at, step)
    assert set(steps["language_instruction"].tolist()) == {b"pick up the bowl"}
