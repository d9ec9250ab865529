"""Files of each recorder are recognized, and every value arrives in RLDS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchanging import export, read_back
from hdf5_robots import BUILDERS, robomimic

from rlds_beam.cli.main import main
from rlds_beam.errors import UsageError
from rlds_beam.formats.hdf5.source import Hdf5Source
from rlds_beam.formats.profiles.shipped import shipped_profiles
from rlds_beam.formats.sources import open_source
from rlds_beam.images.encoded_images import EncodedImages

STEPS = [4, 7, 5, 3, 6, 4, 5, 3, 4, 6, 5, 4]  # with episode 10 after episode 2


def test_there_is_a_builder_for_each_profile() -> None:
    assert set(BUILDERS) == set(shipped_profiles())


@pytest.fixture(scope="module", params=BUILDERS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Any]:
    directory = tmp_path_factory.mktemp(request.param)
    return request.param, directory, BUILDERS[request.param](directory, STEPS)


def same(column: Any, values: Any) -> bool:
    """Whether a column holds these values: arrays with their dtype, images byte for byte (or pixel by pixel)."""
    if isinstance(column, EncodedImages):
        return list(column) == values if isinstance(values, list) else np.array_equal(column.decode(), values)
    if isinstance(values, list):
        return column.tolist() == values
    return column.dtype == values.dtype and np.array_equal(column, values)


def test_it_is_recognized(made: tuple[str, Path, Any]) -> None:
    name, directory, _ = made
    said = Hdf5Source.recognize(str(directory))
    assert said is not None and said.startswith(f"profile {name}: ") and said.count("profile") == 1
    assert open_source(str(directory), from_="hdf5").notes[0] == f"profile {name}"


def test_every_value_is_read(made: tuple[str, Path, Any]) -> None:
    name, directory, written = made
    episodes = sorted(
        read_back(directory, "hdf5", ranges=2 if name != "robomimic" else 1), key=lambda e: e.key.position
    )
    if not shipped_profiles()[name].per_file:
        assert [e.metadata["group"].decode() for e in episodes] == [f"data/demo_{i}" for i in range(len(STEPS))]
    else:
        episodes.sort(key=lambda e: e.key.shard)
    for episode, one, steps in zip(episodes, written, STEPS, strict=True):
        assert not episode.faults
        last = name == "robomimic"  # next_obs gives the last observation; its action is void
        assert len(episode) == steps + last
        for path, values in one.items():
            column = episode.steps[path]
            assert same(column[: len(values)], values), path
            if len(values) < len(episode):
                assert not column[-1:].any(), path
        assert episode.steps["is_first"].tolist() == [True] + [False] * (len(episode) - 1)
        assert episode.steps["is_last"].tolist() == [False] * (len(episode) - 1) + [True]


def test_rlds_reads_as_the_source(made: tuple[str, Path, Any], tmp_path: Path) -> None:
    name, directory, _ = made
    output = tmp_path / name / "1.0.0"
    report = export(directory, output, "rlds", from_="hdf5")
    assert (report.items_written, report.rejected) == (len(STEPS), 0)
    for ours, stored in zip(read_back(directory, "hdf5"), read_back(output, "rlds"), strict=True):
        assert ours.steps.keys() == stored.steps.keys() and ours.metadata.keys() == stored.metadata.keys()
        for path, column in ours.steps.items():
            values = list(column) if isinstance(column, EncodedImages) else column
            assert same(
                stored.steps[path], values if isinstance(values, list) or values.dtype != object else list(values)
            )


def test_tfds_reads_it(made: tuple[str, Path, Any], tmp_path: Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    name, directory, written = made
    output = tmp_path / name / "1.0.0"
    export(directory, output, "rlds", from_="hdf5")
    builder = tfds.builder_from_directory(str(output))
    for episode in builder.as_dataset(split="train").take(1):
        steps = next(iter(episode["steps"].batch(100).as_numpy_iterator()))
        action = steps["action"]
        action = next(iter(action.values())) if isinstance(action, dict) else action
        values = next(values for path, values in written[0].items() if path.startswith("action"))
        assert action.dtype == values.dtype
        assert np.array_equal(action[: len(values)], values) or isinstance(steps["action"], dict)


@pytest.mark.parametrize("job", ["inspect", "validate", "stats", "check"])
def test_jobs(made: tuple[str, Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], job: str) -> None:
    name, directory, _ = made
    if name not in ("aloha", "robomimic"):
        pytest.skip("the jobs know nothing of profiles")
    assert main([job, str(directory), "--from=hdf5"]) in (0, 3)
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    if job == "inspect":
        assert f"note: profile {name}" in out


def test_filter_keys_are_splits(tmp_path: Path) -> None:
    robomimic(tmp_path, STEPS)
    source = open_source(str(tmp_path), from_="hdf5")
    assert {one.name: one.episodes for one in source.splits} == {"train": 11, "valid": 1}
    (last,) = read_back(tmp_path, "hdf5", split="valid")
    assert last.metadata["group"] == b"data/demo_11"
    assert (last.metadata["mask/valid"], last.metadata["mask/20_percent"]) == (True, False)
    assert len(read_back(tmp_path, "hdf5", split="train[2:5]")) == 3


def test_without_next_observations_the_last_step_keeps_its_action(tmp_path: Path) -> None:
    written = robomimic(tmp_path, [4, 5], next_obs=False)
    for episode, one in zip(read_back(tmp_path, "hdf5"), written, strict=True):
        assert np.array_equal(episode.steps["action"], one["action"])
        assert episode.steps["reward"].tolist() == one["reward"].tolist()
        assert episode.steps["is_terminal"].tolist() == episode.steps["is_last"].tolist()


def test_two_profiles_that_fit_are_both_named(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    BUILDERS["aloha"](tmp_path, [3])
    with h5py.File(tmp_path / "episode_0.hdf5", "a") as root:
        root["puppet/x"], root["master/x"] = np.zeros((3, 2)), np.zeros((3, 2))
        root["observations/rgb_images/top"] = np.zeros((3, 2))
    with pytest.raises(UsageError, match=r"several profiles fit: aloha \(.*robomind \(.*Choose one with --profile"):
        open_source(str(tmp_path), from_="hdf5")


def test_files_of_one_name_have_their_own_fingerprints(tmp_path: Path) -> None:
    BUILDERS["droid"](tmp_path / "in", [3, 4, 5])
    export(tmp_path / "in", tmp_path / "out", "rlds", from_="hdf5")
    shards = json.loads((tmp_path / "out/provenance.json").read_text())["source"]["shards"]["train"]
    assert [one["file"] for one in shards] == ["trajectory.h5"] * 3
    assert len({one["fingerprint"] for one in shards}) == 3
