"""What each signal finds in three kinds of data, with one seed of `benchmarks/run.py defects`; laws of its verdicts."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from checkout import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_beam.checking import signals
from rlds_beam.checking.signals import SIGNALS, Context, EpisodeTable, findings
from rlds_beam.episodes.episode import Episode
from rlds_beam.testing import make_episode

sys.path.insert(0, str(ROOT / "benchmarks"))

from data_kinds import KINDS, make_walker
from defects import DEFECTS, Defect, edit
from recall import Result, measure


@functools.cache
def results() -> Mapping[tuple[str, str], Result]:
    """(defect, kind) -> the result; signals without a defect by their own name."""
    return {(defect or signal, kind): found for (signal, defect, kind), found in measure([0]).items()}


EXPECTED: dict[tuple[str, str], list[int]] = {
    ("camera hangs", "grid"): [0, 4, 5],
    ("camera is slow", "grid"): [4, 5, 5],
    ("jump of the state", "robot"): [2, 4, 5],
    ("jump of the action", "robot"): [2, 4, 5],
    ("jump of the state", "walker"): [4, 5, 5],
    ("jump of the action", "walker"): [0, 4, 5],
    ("stuck sensor", "grid"): [0, 0, 0],
    ("robot rests", "robot"): [0, 5, 5],
    ("robot rests", "grid"): [0, 5, 5],
    ("robot rests", "walker"): [0, 5, 5],
    ("gripper chatters", "robot"): [0, 5, 5],
    ("state is late", "robot"): [0, 5, 5],
    ("state is late", "walker"): [0, 5, 5],
    ("episode is cut", "grid"): [0, 0, 0],
    ("episode is cut", "walker"): [0, 1, 5],
    ("reward in another unit", "walker"): [0, 5, 5],
    ("other units", "robot"): [0, 5, 5],
    ("other units", "grid"): [0, 5, 5],
    ("other units", "walker"): [0, 5, 5],
}
"""The defects that are not found in all of 5 episodes at each strength -> in how many they are."""


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_finds_each_defect_as_often_as_documented(defect: Defect, kind: str) -> None:
    result = results().get((defect.name, kind))
    needed = next(one for one in KINDS if one.name == kind)
    assert (result is not None) == all(getattr(needed, need) for need in defect.needs)
    if result is not None:
        assert result.found == EXPECTED.get((defect.name, kind), [5] * len(defect.strengths))


def test_clean_episodes_have_one_false_alarm() -> None:
    alarms = {key: result.alarms for key, result in results().items() if result.alarms}
    assert alarms == {("reward in another unit", "grid"): 1}


def test_each_signal_finds_a_strong_defect_in_some_data() -> None:
    strong = {defect.signal for defect in DEFECTS for kind in KINDS if _found(defect.name, kind.name)}
    assert strong == SIGNALS.keys()


def _found(defect: str, kind: str) -> bool:
    result = results().get((defect, kind))
    return result is not None and result.found[-1] == 5


@functools.cache
def damaged() -> list[Episode]:
    """Walkers in float64, with two jumps and two late states."""
    walker = next(kind for kind in KINDS if kind.name == "walker")
    episodes = [edit_type(episode) for episode in make_walker(24, 7)]
    for number, name in enumerate(("jump of the state", "state is late")):
        defect = next(defect for defect in DEFECTS if defect.name == name)
        for place in (2 * number, 2 * number + 1):
            strong = defect.strengths[-1]
            episodes[place] = defect.change(episodes[place], np.random.default_rng(place), strong, walker)
    return episodes


def edit_type(episode: Episode) -> Episode:
    return episode.with_columns({path: np.array(episode.steps[path], np.float64) for path in ("observation", "action")})


def verdicts(episodes: list[Episode]) -> list[set[str]]:
    table = EpisodeTable(Context.of_episode(episodes[0], fps=20))
    for episode in episodes:
        table.add(episode)
    known = {"jump", "lag"}
    return [{found.signal for found in findings(row)} & known for row in table.finish().to_pylist()]


@settings(max_examples=15)
@given(st.sampled_from(["observation", "action"]), st.floats(-3, 3), st.floats(-3, 3))
def test_the_scale_and_the_zero_of_a_field_change_no_verdict(path: str, power: float, shift: float) -> None:
    changed = [edit(episode, path, lambda values: 10**power * (values + shift)) for episode in damaged()]
    expected = [{"jump"}] * 2 + [{"lag"}] * 2
    assert verdicts(damaged())[:4] == expected
    assert verdicts(changed) == verdicts(damaged())


def dropped_frames(times: np.ndarray[Any, Any]) -> Any:
    episode = make_episode(len(times), columns={"timestamp": times})
    return signals.measure(episode, Context.of_episode(episode))["dropped_frames"]


@given(st.integers(0, 999), st.integers(100, 300), st.integers(1, 9))
def test_lost_frames_are_counted_with_some_jitter(seed: int, steps: int, lost: int) -> None:
    rng = np.random.default_rng(seed)
    times = np.arange(steps) + rng.uniform(-0.1, 0.1, steps)
    kept = np.delete(times, 1 + rng.choice(steps - 2, lost, replace=False))
    assert dropped_frames(kept) == pytest.approx(lost / steps)


def _camera(repeated: slice, state: Callable[[np.ndarray[Any, Any]], Any]) -> dict[str, Any]:
    images = np.random.default_rng(0).integers(0, 255, (40, 16, 16, 3), np.uint8)
    images[repeated] = images[repeated.start]
    columns = {"observation/image": images, "observation/state": state(np.linspace(0, 1, 40))[:, None]}
    episode = make_episode(40, columns=columns, observation={"state": 1})
    table = EpisodeTable(Context.of_episode(episode)).add(episode)
    row: dict[str, Any] = table.finish().to_pylist()[0]
    return row


def test_a_camera_that_hangs_counts_from_its_first_to_its_last_repeat_also_if_the_robot_pauses() -> None:
    def pausing(way: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.where((way > 0.3) & (way < 0.5), 0.3, way)

    row = _camera(slice(8, 28), pausing)
    assert (row["frozen_camera"], row["repeated_images"]) == (19 / 40, 19 / 40)
    assert (row["frozen_camera@step"], row["frozen_camera@stop"]) == (8, 28)
