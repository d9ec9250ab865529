"""The episodes of `rlds-beam example --robot`: an arm, a gripper, two cameras."""

from __future__ import annotations

import cmath
import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlds_beam
from rlds_beam.cli.commands.example import JOINTS, ExampleConfig, PlanarArm, example, forward, inverse, make_episodes


@pytest.fixture(scope="module")
def episodes() -> list[rlds_beam.Episode]:
    return list(make_episodes(16, robot=True))


def test_the_values_are_the_same_on_every_machine() -> None:
    """Encoded images are left out: their bytes are those of the installed libjpeg."""
    steps = next(make_episodes(1, seed=7, robot=True)).steps
    values = b"".join(steps[path].tobytes() for path in ("observation/state", "action", "reward"))
    assert hashlib.sha256(values).hexdigest()[:16] == "371c1d66b65248f7"


@given(radius=st.floats(0.05, 0.515), angle=st.floats(-1.2, 1.5))
def test_inverse_kinematics_inverts_forward_kinematics(radius: float, angle: float) -> None:
    tip = 0.14j + cmath.rect(radius, angle)  # about the shoulder, less the length of the hand
    shoulder, elbow = inverse(tip)
    assert -math.pi <= elbow <= 0
    assert forward(shoulder, elbow) == pytest.approx(tip, abs=1e-7)


def test_replayed_actions_give_the_recorded_states(episodes: list[rlds_beam.Episode]) -> None:
    """A policy that repeats the actions moves the hand along the recorded path, and a held block stops the gripper."""
    for episode in episodes:
        states, actions = episode.steps["observation/state"], episode.steps["action"]
        replayed, held = [actions[0].astype(float)], 0
        for action, state in zip(actions, states[1:], strict=False):
            move = 0.8 * (action - replayed[-1])
            move[2] = np.clip(action[2] - replayed[-1][2], -0.12, 0.12)
            replayed.append(replayed[-1] + move)
            if replayed[-1][2] < state[2] - 0.01:
                assert state[2] == pytest.approx(0.06 / 0.09, abs=0.0021)
                replayed[-1][2], held = 0.06 / 0.09, held + 1
        np.testing.assert_allclose(replayed, states, atol=0.0021)  # the noise of the sensors
        hands, recorded = ([forward(*state[:2]) for state in path] for path in (replayed, states))
        np.testing.assert_allclose(hands, recorded, atol=0.003)  # meters
        assert (held > 10) == bool(episode.metadata["success"])


def test_some_episodes_succeed_and_some_fail(episodes: list[rlds_beam.Episode]) -> None:
    succeeded = [bool(episode.metadata["success"]) for episode in episodes]
    assert 8 < sum(succeeded) < 16
    for episode, success in zip(episodes, succeeded, strict=True):
        steps = episode.steps
        end = np.arange(len(episode)) == len(episode) - 2
        assert 30 <= len(episode) <= 60
        np.testing.assert_array_equal(steps["reward"], end & success)
        np.testing.assert_array_equal(steps["discount"], ~(end & success))
        assert steps["is_last"][-1] and steps["is_terminal"][-1] == success
    assert len({episode.steps["language_instruction"][0] for episode in episodes}) > 5


def test_the_cameras_see_the_block_move_with_the_hand(episodes: list[rlds_beam.Episode]) -> None:
    success = next(
        episode for episode in episodes if episode.steps["language_instruction"][0].startswith(b"put the blue")
    )
    for camera in ("front", "wrist"):
        images = success.steps[f"observation/images/{camera}"].decode().astype(int)
        assert images.shape == (len(success), 128, 128, 3)
        blue = images[..., 2] - images[..., :2].max(-1) > 60
        column = [np.argwhere(image)[:, 1].mean() for image in blue]
        grip = success.steps["observation/state"][:, 2] < 0.67
        moved = np.ptp(np.array(column)[grip])
        assert moved > 15 if camera == "front" else moved < 3


def test_names_rate_and_robot_reach_lerobot(tmp_path: Path) -> None:
    dataset = example(ExampleConfig(str(tmp_path / "data"), robot=True, episodes=4))
    assert dataset == str(tmp_path / "data" / "planar_arm" / "1.0.0")
    rlds_beam.convert(dataset, tmp_path / "out", to="lerobot")
    info = json.loads((tmp_path / "out" / "meta" / "info.json").read_text())
    assert (info["fps"], info["robot_type"], info["total_episodes"]) == (10, "planar_arm", 4)
    for feature in ("action", "observation.state"):
        assert info["features"][feature]["names"] == [*JOINTS]
    assert {"observation.images.front", "observation.images.wrist"} < set(info["features"])
    assert info["total_frames"] == sum(map(len, make_episodes(4, robot=True)))  # the actions of last steps are real


def test_the_arm_in_a_loop_follows_its_targets() -> None:
    """`PlanarArm` shows fields and pictures like the dataset's, and follows the targets."""
    arm = PlanarArm(3)
    observation = arm.observe()
    assert [(name, value.dtype.name, value.shape) for name, value in observation.items()] == [
        ("state", "float32", (3,)),
        ("images/front", "uint8", (128, 128, 3)),
        ("images/wrist", "uint8", (128, 128, 3)),
    ]
    for _ in range(20):
        arm.step(np.array([0.9, -1.2, 0.5]))
    np.testing.assert_allclose(arm.observe()["state"], [0.9, -1.2, 0.5], atol=0.003)
    assert not arm.success and arm.instruction.startswith("put the ")
