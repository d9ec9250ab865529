"""Signals that are faster than the steps, with their own times in the file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchanging import export, read_back
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlds_beam.errors import UsageError
from rlds_beam.formats.format_options import ProfileOptions
from rlds_beam.formats.inputs import open_source
from rlds_beam.formats.profiles.model import parse_profile
from rlds_beam.formats.profiles.source import Hdf5Source
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader

PROFILE = """
name: fast
times: stamps
time_unit: {unit}
fields:
  observation/state: qpos
  observation/imu: {{from: imu/data, times: imu/time, window: {window}, names: [x, y, z]}}
  action: action
"""
UNITS = {"s": 1e-9, "ms": 1e-6, "ns": 1}


def write(path: Path, steps: Any, times: Any, unit: str = "ns") -> Any:
    """An HDF5 file with steps and samples at these times (nanoseconds); returns the samples."""
    h5py = pytest.importorskip("h5py")
    samples = np.arange(len(times) * 3).reshape(-1, 3) + 1.0
    with h5py.File(path, "w") as root:
        root["qpos"], root["action"] = np.ones((len(steps), 2)), np.ones((len(steps), 2))
        root["imu/data"] = samples
        for name, values in (("stamps", steps), ("imu/time", times)):
            root[name] = np.asarray(values, np.int64) if unit == "ns" else np.asarray(values) * UNITS[unit]
    return samples


def read(directory: Path, **options: Any) -> list[Any]:
    profile = directory / "profile.yaml"
    profile.write_text(PROFILE.format(**{"unit": "ns", "window": 1000, **options}))
    source = Hdf5Source.open(str(directory), options=ProfileOptions(profile=str(profile)))
    works = plan_ranges(source)
    return [one for work in works for s in work.segments for one in EpisodeReader(source).read(work.split, s)]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    gaps=st.lists(st.integers(0, 120), max_size=60),
    steps=st.lists(st.integers(1, 150), min_size=1, max_size=12),
    unit=st.sampled_from([*UNITS]),
)
def test_every_sample_is_read_once_in_order(tmp_path: Path, gaps: list[int], steps: list[int], unit: str) -> None:
    """Each sample up to the last step is in one, since a usual step before the first."""
    origin, ms = 1_700_000_000 * 10**9, 10**6
    at, shown = origin + np.cumsum(gaps, dtype=np.int64) * ms, origin + (500 + np.cumsum(steps)) * ms
    directory = Path(tempfile.mkdtemp(dir=tmp_path))
    samples = write(directory / "a.hdf5", shown, at, unit)
    (episode,) = read(directory, unit=unit)
    first = shown[0] - int(np.median(np.diff(shown))) if len(shown) > 1 else origin - 1
    near = 1000 if unit != "ns" else 0  # what doubles of seconds since 1970 leave out
    expected = (at > first + near) & (at <= shown[-1] + near) if len(shown) > 1 else at <= shown[-1] + near
    windows, counts, times = (
        np.asarray(episode.steps[f"observation/imu{ending}"]) for ending in ("", "_samples", "_sample_times")
    )
    inside = np.arange(windows.shape[1]) < counts[:, None]
    assert not windows[~inside].any() and not times[~inside].any()
    read_again = windows[inside]
    if unit == "ns":
        np.testing.assert_array_equal(read_again, samples[expected])
        np.testing.assert_allclose(times[inside], (at[expected] - np.repeat(shown, counts)) / 1e9, atol=1e-6)
    else:  # a sample at the time of a step may be in the next one
        assert set(samples[expected][:, 0]) - set(read_again[:, 0]) <= set(samples[np.isin(at, [*shown, first])][:, 0])
        np.testing.assert_array_equal(read_again, np.unique(read_again, axis=0))


@pytest.mark.parametrize("to", ["rlds", "lerobot"])
def test_windows_survive_with_their_names(tmp_path: Path, to: str) -> None:
    (tmp_path / "in").mkdir()
    samples = write(tmp_path / "in/a.hdf5", np.arange(1, 7) * 10**8, np.arange(601) * 10**6)
    (tmp_path / "in/profile.yaml").write_text(PROFILE.format(unit="ns", window=100))
    options = {"from_": "hdf5", "profile": str(tmp_path / "in/profile.yaml")}
    out = tmp_path / "fast/1.0.0"
    export(tmp_path / "in", out, to, **options, **({"fps": 10} if to == "lerobot" else {}))
    (episode,) = read_back(out, to)
    windows = np.asarray(episode.steps["observation/imu"])
    assert windows.shape == (6, 100, 3)
    np.testing.assert_array_equal(windows.reshape(-1, 3), samples[1:601])
    assert open_source(str(out)).schema.names["observation/imu"] == ("x", "y", "z")


def test_an_episode_with_more_samples_is_rejected(tmp_path: Path) -> None:
    for i, rate in enumerate((9, 11)):
        write(tmp_path / f"{i}.hdf5", np.arange(1, 7) * 10**8, np.arange(6 * rate) * 10**8 // rate)
    fits, more = read(tmp_path, window=10)
    assert not fits.faults and fits.steps["observation/imu"].shape == (6, 10, 3)
    assert "observation/imu: 11 samples of a step, more than window: 10" in str(more.faults[0])


def test_times_that_descend_or_are_missing(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    for i in range(3):
        write(tmp_path / f"{i}.hdf5", np.arange(1, 7) * 10**8, np.arange(60) * 10**7)
    with h5py.File(tmp_path / "1.hdf5", "a") as root:
        root["imu/time"][5] = 0
    with h5py.File(tmp_path / "2.hdf5", "a") as root:
        del root["stamps"]
    fits, descends, lacks = read(tmp_path)
    assert not fits.faults
    assert "times are not ascending" in str(descends.faults[0]) and "has no times/stamps" in str(lacks.faults[0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fields: {action: {from: a, window: 3}}", "action: window needs times, also of the steps"),
        ("fields: {action: {from: a, window: 3, times: t}}", "window needs times, also of the steps"),
        ("times: t\nfields: {action: {from: a, times: t}}", "window needs times"),
        ("times: t\nends: [e]\nfields: {action: {from: a, window: 3, times: t}}", "a file or group for each episode"),
    ],
)
def test_windows_that_no_profile_can_have(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_profile(f"name: x\n{text}", "p.yaml")
