"""AddFieldsToBatch, AddWeightsToBatch, and NextStateAsAction, compared with the pictures in their docstrings."""

from __future__ import annotations

import numpy as np
import pytest

from rlds_beam.connectors import (
    AddColumnsFromEpisodesToTrainBatch,
    AddFieldsToBatch,
    AddTimeDimToBatchAndZeroPad,
    AddWeightsToBatch,
    NextStateAsAction,
    connect,
)
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.testing import make_episode

T, F = True, False


def episode(transitions: int, *, terminal: bool = True, **fields: object) -> Episode:
    """Observations 1, 2, ...; actions 10, 11, ...; rewards 1, 2, 4, ...; discounts 1, and 0 into the terminal state."""
    count = transitions + 1
    flags = {name: np.zeros(count, bool) for name in ("is_first", "is_last", "is_terminal")}
    flags["is_first"][0] = flags["is_last"][-1] = True
    flags["is_terminal"][-1] = terminal
    steps = {
        "observation": np.arange(1.0, count + 1, dtype=np.float32)[:, None],
        "action": np.arange(10.0, 10 + count, dtype=np.float32)[:, None],
        "reward": 2.0 ** np.arange(count),
        "discount": np.where(np.arange(count) == transitions - 1, 1.0 - terminal, 1.0).astype(np.float32),
        **flags,
        **fields,
    }
    metadata = {"episode_metadata/task": b"push", "episode_metadata/size": np.float32(0.5), "name": "one"}
    return Episode(EpisodeKey("d/1.0.0", "train", 0, 0), steps, metadata)


def test_fields_of_the_steps_and_of_the_episode():
    language = np.array([b"pick", b"place", b"", b""], object)
    of = episode(3, language_instruction=language, **{"state_out/h": np.arange(8.0).reshape(4, 2)})
    names = {"text": "language_instruction", "task": "episode_metadata/task", "state_out": "state_out", "who": "name"}
    made = connect([AddFieldsToBatch(names)], [of]).columns[0]
    assert made["text"].tolist() == [b"pick", b"place", b""]
    assert made["task"].tolist() == [b"push"] * 3
    assert made["who"].tolist() == [b"one"] * 3
    np.testing.assert_array_equal(made["state_out/h"], of.steps["state_out/h"][:3])
    both = connect([AddFieldsToBatch(["episode_metadata"]), AddTimeDimToBatchAndZeroPad(2)], [of]).columns[0]
    assert both["episode_metadata/task"].tolist() == [[b"push", b"push"], [b"push", b""]]
    np.testing.assert_array_equal(both["episode_metadata/size"], np.array([[0.5, 0.5], [0.5, 0]], np.float32))
    with pytest.raises(UsageError, match=r"no field language_instructions; did you mean language_instruction\?"):
        connect([AddFieldsToBatch(["language_instructions"])], [of])


def test_weights():
    of = episode(3, quality=np.array([0.5, 1, 2, 9]))
    for piece, expected in (
        (AddWeightsToBatch(), [1, 1, 1]),
        (AddWeightsToBatch(2, "quality"), [1, 2, 4]),
        (AddWeightsToBatch(field="episode_metadata/size"), [0.5, 0.5, 0.5]),
    ):
        (weights,) = connect([piece], [of]).columns[0].values()
        np.testing.assert_array_equal(weights, np.array(expected, np.float32))
        assert weights.dtype == np.float32
    with pytest.raises(UsageError, match="is not a number per step"):
        connect([AddWeightsToBatch(field="name")], [of])
    recorded = connect([AddWeightsToBatch(), AddColumnsFromEpisodesToTrainBatch()], [episode(2, weights=np.zeros(3))])
    np.testing.assert_array_equal(
        recorded.columns[0]["weights"], [1, 1]
    )  # the first connector that adds the column wins


# NextStateAsAction: actions of the states that follow.

POSE = ["observation/pos", "observation/width"]


def umi(steps: int):
    """An episode without actions."""
    columns = {
        "observation/pos": np.arange(steps * 3, dtype=np.float32).reshape(steps, 3),
        "observation/width": np.arange(steps, dtype=np.float32),
        "observation/count": np.arange(steps),
        "observation/text": np.array([b"x"] * steps, object),
    }
    made = make_episode(steps, columns=columns)
    return made.replace(steps={path: column for path, column in made.steps.items() if path != "action"})


def edited(connector, episode):
    (made,) = connect([connector], [episode]).episodes
    return made


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_action_is_the_next_pose(steps):
    made = edited(NextStateAsAction(POSE), umi(steps))
    pose = np.concatenate([made.steps["observation/pos"], made.steps["observation/width"][:, None]], axis=1)
    assert made.steps["action"].dtype == np.float32
    assert made.steps["action"].tolist() == [*pose[1:].tolist(), pose[-1].tolist()]
