"""NextStateAsAction: actions of the states that follow."""

from __future__ import annotations

import numpy as np
import pytest

from rlds_beam.connectors import NextStateAsAction, connect
from rlds_beam.errors import UsageError
from rlds_beam.testing import make_episode

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


def test_one_field_keeps_its_shape():
    made = edited(NextStateAsAction("observation/count", name="action/count"), umi(3))
    assert made.steps["action/count"].tolist() == [1, 2, 2]


@pytest.mark.parametrize(("fields", "message"), [
    ([], "fields is empty"), (["observation/none"], "has no field observation/none"),
    (["observation/text"], "does not hold numbers"), ([*POSE, "observation/count"], "the dtypes float32, int64"),
])  # fmt: skip
def test_fields_that_cannot_be_an_action(fields, message):
    with pytest.raises(UsageError, match=message):
        edited(NextStateAsAction(fields), umi(3))
