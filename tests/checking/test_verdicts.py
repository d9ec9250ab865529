"""Values that an output does not use: void values of the last step, and fields that are left out."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import rlds_beam
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.validation import validate_episode
from rlds_beam.checking.verdicts import IgnoredValues
from rlds_beam.testing import make_episode, write_dataset

STEPS = 5


def with_nan(*places: tuple[str, int], value: float = np.nan, **kwargs: Any) -> Any:
    """An episode with NaN in these columns and steps, and an unused step field `extra/score`."""
    made = make_episode(STEPS, columns={"extra/score": np.zeros(STEPS, np.float32)}, **kwargs)
    columns = {path: np.array(column) for path, column in made.steps.items()}
    for path, step in places:
        columns[path][step] = value
    return made.replace(steps=columns)


VOID = ("action", "reward", "discount")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("path", VOID)
def test_void_values_are_not_checked_and_become_0(path, value):
    episode = with_nan((path, -1), value=value)
    verdict = validate_episode(episode, CheckOptions())
    (accepted,) = verdict.episodes
    assert verdict.violations == () and not np.any(accepted.steps[path][-1])
    np.testing.assert_array_equal(accepted.steps[path][:-1], episode.steps[path][:-1])
    assert not np.isfinite(episode.steps[path][-1]).any()  # the input is unchanged


@pytest.mark.parametrize("path", [*VOID, "observation"])
def test_all_other_values_are_checked(path):
    steps = [-1] if path == "observation" else [-2]
    verdict = validate_episode(with_nan(*((path, step) for step in steps)), CheckOptions())
    assert [v.rule for v in verdict.violations] == ["non_finite"]


def test_a_step_that_does_not_end_the_episode_is_not_void():
    episode = with_nan(("reward", -1))
    episode = episode.replace(
        steps={**episode.steps, "is_last": np.zeros(STEPS, bool), "is_terminal": np.zeros(STEPS, bool)}
    )
    assert [v.rule for v in validate_episode(episode, CheckOptions()).violations] == ["missing_is_last", "non_finite"]
    episode = with_nan(("reward", 1), ("reward", -1))
    flags = {"is_last": np.array([0, 1, 0, 0, 1], bool), "is_first": np.array([1, 0, 1, 0, 0], bool)}
    parts = validate_episode(
        episode.replace(steps={**episode.steps, **flags}), CheckOptions(repair=("unexpected_is_last",))
    )
    assert [p.steps["reward"][-1] for p in parts.episodes] == [0, 0]


def test_unused_fields_are_checked_only_on_request():
    episode, ignored = with_nan(("extra/score", 2)), IgnoredValues(frozenset({"extra/score"}))
    assert [v.field for v in validate_episode(episode, CheckOptions()).violations] == ["extra/score"]
    assert not validate_episode(episode, CheckOptions(), ignored).violations
    asked = validate_episode(episode, CheckOptions(check_unused=True), ignored)
    assert [v.field for v in asked.violations] == ["extra/score"]


# The commands


@pytest.fixture
def source(tmp_path):
    episodes = [
        with_nan(seed=0),
        with_nan(("reward", -1), ("action", -1), seed=1),
        with_nan(("extra/score", 1), seed=2),
    ]
    return write_dataset(tmp_path / "data", episodes)


@pytest.mark.parametrize(
    ("flags", "rejected"),
    [
        ((), 0),
        (("--check_unused",), 2),
        (("--last_step=absorbing",), 1),
        (("--policy_info_fields=extra/score",), 1),
        (("--items=episodes",), 0),
        (("--policy_info_fn=scores_of_unused:scores",), 1),
    ],
)
def test_convert(convert_only, source, tmp_path, monkeypatch, flags, rejected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scores_of_unused.py").write_text("def scores(steps, following):\n    return steps['extra']['score']\n")
    ran = convert_only(source, *flags)
    assert ran.code == (3 if rejected else 0), ran.err
    assert ran.rules.get("non_finite", 0) == rejected
    for item in ran.items:
        assert all(np.isfinite(value).all() for value in item.values() if value.dtype.kind == "f")


@pytest.mark.parametrize("to", ["rlds", "numpy", "lerobot", "zarr"])
@pytest.mark.parametrize(("said", "rejected"), [("real", 1), ("void", 0)])
def test_last_actions_that_are_real_are_checked(tmp_path, to, said, rejected):
    if to == "zarr":
        pytest.importorskip("zarr")
    episodes = [make_episode(STEPS, seed=0), with_nan(("action", -1), seed=1)]
    source = write_dataset(tmp_path / "data", episodes)
    (source / "meaning.json").write_text(json.dumps({"last_action": said}))
    options = {"fps": 10} if to == "lerobot" else {}
    report = rlds_beam.convert(source, tmp_path / "out", to=to, **options).report
    assert rlds_beam.convert(source, tmp_path / "pairs", items="pairs").report.rejected == rejected
    assert report.rejected == rejected == rlds_beam.check(source, rules=True).report.rejected
    assert rlds_beam.inspect(source, to=to, **options).sampled.rejected == rejected


def test_a_last_action_that_is_assumed_to_be_real_is_checked_where_it_is_a_row(tmp_path):
    episodes = [*(make_episode(STEPS, seed=i) for i in range(3)), with_nan(("action", -1), seed=3)]
    source = write_dataset(tmp_path / "data", episodes)
    done = rlds_beam.convert(source, tmp_path / "out", to="lerobot", fps=10)
    assert (done.report.rejected, done.report.items_written) == (1, 3 * STEPS)
