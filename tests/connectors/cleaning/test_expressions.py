"""Conditions on episodes."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from edits import edited

from rlds_beam import connectors as c
from rlds_beam.connectors.cleaning.expressions import EpisodeCondition
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.testing import make_episode

EPISODE = make_episode(
    5,
    key=EpisodeKey("toy/1.0.0", "train", 3, 99),
    columns={"language": ["open it"] * 5},
    metadata={
        "success": np.bool_(True),
        "episode_metadata/task": b"Open",
        "episode_metadata/id": np.int32(7),
        "a-b": 2,
    },
)


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ("success", True),
        ("not success or steps == 5", True),
        ("episode_metadata.task == 'Open' and episode_metadata.id in [6, 7]", True),
        ("lower(episode_metadata.task) == 'close'", False),
        ("3 < steps <= 5", True),
        ("matches(first.language, 'open.*')", True),
        ("last.is_terminal and split == 'train' and shard == 3", True),
        ("field('a-b') * 2 - 1 > 3", False),
        ("len(episode_metadata.task) % 2 == 0", True),
        ("position not in (1, 2)", True),
        ("-abs(steps) < 0", True),
    ],
)
def test_conditions(where, holds):
    assert EpisodeCondition(where).holds(EPISODE) is holds
    assert pickle.loads(pickle.dumps(EpisodeCondition(where))).holds(EPISODE) is holds
    assert len(edited(c.SelectEpisodes(where), EPISODE)) == holds


@pytest.mark.parametrize(
    "where",
    [
        "__import__('os').system('true')",
        "success.__class__",
        "(1).real",
        "[x for x in [1]]",
        "lambda: 1",
        "steps ** 9",
        "steps if success else 1",
        "open('x')",
        "success := 1",
        "{}",
        "f'{steps}'",
        "matches.__globals__",
        "(" * 300,
        "",
    ],
)
def test_invalid_conditions_are_refused_and_never_run(where):
    with pytest.raises(UsageError, match=r"is not allowed|is not an expression|there is no field"):
        EpisodeCondition(where).holds(EPISODE)


def test_a_condition_on_a_missing_field_lists_the_fields():
    with pytest.raises(UsageError, match=r"there is no field sucess.*did you mean success"):
        EpisodeCondition("sucess").holds(EPISODE)
    with pytest.raises(UsageError, match="not supported between"):
        EpisodeCondition("success < 'a'").holds(EPISODE)
