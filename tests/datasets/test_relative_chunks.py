"""Chunks of actions relative to the state at their first step, in batches and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds_beam import open_dataset
from rlds_beam.connectors import ConvertRotation, RelativeActions, connect
from rlds_beam.errors import UsageError
from rlds_beam.testing import make_episode, write_dataset

transform = pytest.importorskip("scipy.spatial.transform", exc_type=ImportError)

STATE = "observation/state"
REPRESENTATIONS = ["axis_angle", "euler_xyz", "quaternion_xyzw", "6d", "matrix"]

pytestmark = pytest.mark.usefixtures("cache")


def dataset(directory: Path, representation: str = "axis_angle") -> Any:
    """Poses of an arm, and its gripper; the last action of each episode is void."""
    episodes = []
    for seed, length in enumerate((9, 2, 6)):
        random = np.random.default_rng(seed)
        states = np.cumsum(random.normal(0, 0.3, (length, 7)), axis=0)
        targets = (states + random.normal(0, 0.1, (length, 7))).astype(np.float32)
        made = make_episode(length, seed=seed, columns={"action": targets, STATE: states.astype(np.float32)})
        made = made.replace(steps={path: column for path, column in made.steps.items() if path != "observation"})
        convert = [ConvertRotation(field, "axis_angle", representation, 3) for field in ("action", STATE)]
        (made,) = connect(convert, [made]).episodes
        action = made.steps["action"].copy()
        action[-1] = 0
        episodes.append(made.with_columns({"action": action}))
    return open_dataset(write_dataset(directory / "data", episodes), unit="steps")


def arm(representation: str, **arguments: Any) -> RelativeActions:
    values = {"axis_angle": 3, "euler_xyz": 3, "quaternion_xyzw": 4, "6d": 6, "matrix": 9}[representation]
    return RelativeActions(state=STATE, rotation=representation, at=3, absolute=[3 + values], **arguments)


def test_it_is_openpis_delta_actions_of_a_whole_chunk(tmp_path: Path) -> None:
    """`DeltaActions`: actions[..., :dims] -= where(mask, state[..., :dims], 0)[..., None, :]."""
    steps = dataset(tmp_path)
    mask = np.array([True] * 6 + [False])
    for size in (3, 32):
        plain = list(steps.batches(size, chunk=5))
        made = list(steps.batches(size, chunk=5, relative_actions=RelativeActions(state=STATE, absolute=[6])))
        for before, after in zip(plain, made, strict=True):
            expected = before["action"] - np.where(mask, before[STATE], 0)[:, None]
            np.testing.assert_allclose(after["action"], expected, atol=1e-6)
            assert after["action"].dtype == np.float32
            np.testing.assert_array_equal(after["action_is_pad"], before["action_is_pad"])
            np.testing.assert_array_equal(after[STATE], before[STATE])


def test_in_the_hands_frame_it_is_umis_relative_pose(tmp_path: Path) -> None:
    """inv(T_state) @ T_action, for every action of the chunk."""
    steps = dataset(tmp_path)

    def matrices(poses: Any) -> Any:
        flat = poses.reshape(-1, 7).astype(np.float64)
        made = np.tile(np.eye(4), (len(flat), 1, 1))
        made[:, :3, :3] = transform.Rotation.from_rotvec(flat[:, 3:6]).as_matrix()
        made[:, :3, 3] = flat[:, :3]
        return made.reshape(*poses.shape[:-1], 4, 4)

    before = next(steps.batches(32, chunk=4))
    after = next(steps.batches(32, chunk=4, relative_actions=arm("axis_angle", frame="hand", position=0)))
    expected = np.linalg.inv(matrices(before[STATE]))[:, None] @ matrices(before["action"])
    np.testing.assert_allclose(matrices(after["action"]), expected, atol=2e-6)
    np.testing.assert_array_equal(after["action"][..., 6], before["action"][..., 6])


@pytest.mark.parametrize("frame", ["base", "hand"])
@pytest.mark.parametrize("representation", REPRESENTATIONS)
def test_the_inverse_gives_the_same_commands(representation: str, frame: str, tmp_path: Path) -> None:
    steps, relative = dataset(tmp_path, representation), arm(representation, frame=frame, position=0)
    before = next(steps.batches(32, chunk=4))
    after = next(steps.batches(32, chunk=4, relative_actions=relative))
    back = relative.inverse.chunks(after["action"], before[STATE])
    width = before["action"].shape[-1]
    to_matrix = ConvertRotation("action", representation, "matrix", 3)

    def poses(values: Any) -> Any:
        flat = values.reshape(-1, width)
        (made,) = connect([to_matrix], [make_episode(len(flat), columns={"action": flat})]).episodes
        return made.steps["action"]

    np.testing.assert_allclose(poses(back), poses(before["action"]), atol=5e-6)
    one = relative.inverse.chunks(after["action"][3], before[STATE][3])
    np.testing.assert_array_equal(one, back[3])


def test_void_last_actions_stay_zeros(tmp_path: Path) -> None:
    steps = dataset(tmp_path, "quaternion_xyzw")
    batch = next(steps.batches(32, chunk=2, last_step="keep", relative_actions=arm("quaternion_xyzw")))
    assert len(batch["action"]) == 17
    assert not batch["action"][8].any() and batch["action"][7, 0].any() and not batch["action"][7, 1].any()


@pytest.mark.parametrize(
    ("relative", "arguments", "message"),
    [
        (RelativeActions(state=STATE), {}, "relative_actions needs chunks of action: give chunk"),
        (RelativeActions(state=STATE, to="previous"), {"chunk": 2}, "to=previous: chunks are relative to a state"),
        (RelativeActions(state="observation/stat"), {"chunk": 2}, "no column observation/stat; did you mean"),
        (RelativeActions(state="reward"), {"chunk": 2}, "action has 7 values and reward 1"),
        (RelativeActions(state=STATE, absolute=[7]), {"chunk": 2}, "an index of absolute, at, or position is outside"),
    ],
)
def test_what_does_not_fit_is_refused(relative: Any, arguments: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        dataset(tmp_path).batches(4, relative_actions=relative, **arguments)
