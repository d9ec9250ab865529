"""Conditions on signals: parsing, hostile text, rows and tables, and what a conversion can decide."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam.checking.signals import (
    SIGNALS,
    Condition,
    Context,
    EpisodeTable,
    broken_conditions,
    check_single,
    context_for,
    mask,
    matches,
    parse_conditions,
)
from rlds_beam.errors import UsageError
from rlds_beam.jobs.example import make_episodes
from rlds_beam.testing import make_episode


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("frozen_camera > 0.2", [Condition("frozen_camera", ">", 0.2)]),
        ("jump/action>=8", [Condition("jump/action", ">=", 8.0)]),
        ("steps < 10, return < 0", [Condition("steps", "<", 10.0), Condition("return", "<", 0.0)]),
        ("jump", [Condition("jump", ">", SIGNALS["jump"].threshold)]),
        ("gripper_range", [Condition("gripper_range", "<", SIGNALS["gripper_range"].threshold)]),
        ("metadata/success == false", [Condition("metadata/success", "==", False)]),
        ("instruction = 'open it, now'", [Condition("instruction", "==", "open it, now")]),
        ("metadata/robot != widowx", [Condition("metadata/robot", "!=", "widowx")]),
    ],
)
def test_parses(text: str, expected: list[Condition]) -> None:
    assert list(parse_conditions(text)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("frozen_camara > 1", "did you mean frozen_camera"),
        ("jump > big", "is a number, but big is not"),
        ("steps", "needs a comparison"),
        ("", "there is no condition"),
        ("> 3", "is not a condition"),
        ("jump > 3 and steps < 5", "commas separate several"),
        ("instruction > abc", "compared by == and !="),
        ("jump > 3 steps", "is not a condition"),
        ("x" * 100_000, "too long"),
    ],
)
def test_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        parse_conditions(text)
    assert len(str(error.value)) < 300


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        conditions = parse_conditions(text)
    except UsageError:
        return
    assert all(parse_conditions(str(one)) for one in conditions)


def test_rows_and_tables_agree() -> None:
    table = EpisodeTable(Context.of_episode(next(iter(make_episodes(1, camera=True)))))
    for episode in make_episodes(30, camera=True):
        table.add(episode)
    found = table.finish()
    for text in (
        "steps < 20",
        "return > -10, metadata/episode_id == 3",
        "lag > 3",
        "instruction == 'push the point to the goal at the top left'",
        "instruction != 3",
        "metadata/nothing > 1",
        "jitter > 0",
        "rule == non_finite",
    ):
        conditions = parse_conditions(text)
        expected = [matches(row, conditions) is not None for row in found.to_pylist()]
        assert mask(found, conditions).tolist() == expected
    assert mask(found, parse_conditions("steps < 20")).any()


def test_a_conversion_refuses_what_compares_episodes_and_names_the_two_steps() -> None:
    with pytest.raises(
        UsageError, match=r"check INPUT --reject='jump > 8' --write_exclude=FILE.*convert with --exclude=FILE"
    ):
        check_single(parse_conditions("jump > 8"))
    check_single(parse_conditions("frozen_camera > 0.2, steps < 3, idle_share"))


def test_a_violation_names_the_field_and_the_step() -> None:
    image = np.zeros((20, 32, 32, 3), np.uint8)
    image[:, 0, :20] = np.eye(20, dtype=np.uint8)[..., None] * 200
    image[8:15] = image[8]
    conditions = parse_conditions("frozen_camera > 0.2")
    frozen = make_episode(20, columns={"observation/image": image})
    context = context_for(conditions, Context.of_episode(frozen))
    violation = broken_conditions(frozen, conditions, context)
    assert violation is not None
    assert (violation.rule, violation.field, violation.step) == ("signal_limit", "observation/image", 8)
    assert "0.3 (rejected by frozen_camera > 0.2)" in violation.detail
    assert broken_conditions(make_episode(20), conditions, context) is None
