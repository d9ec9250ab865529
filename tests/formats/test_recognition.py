"""The format of an input is recognized from its files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from exchanging import export, read_back

import rlds_beam
from rlds_beam.cli.main import main
from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.formats.recognition import recognize
from rlds_beam.testing import make_episode, write_dataset

_OPTIONS: dict[str, dict[str, Any]] = {
    "lerobot": {"fps": 10},
    "trajectories": {"items": "frames"},
    "scope_rl": {"policy": "behavior"},
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    episodes = [make_episode(5, seed=i) for i in range(3)]
    return write_dataset(tmp_path_factory.mktemp("data"), episodes)


@pytest.fixture(scope="module")
def outputs(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of `convert`, each in a directory with its name."""
    directory = tmp_path_factory.mktemp("outputs")
    for to in ("rlds", "trajectories", "columns", "lerobot", "numpy", "zarr"):
        export(dataset, directory / to, to, **_OPTIONS.get(to, {}))
    return directory


@pytest.mark.parametrize("to", ["rlds", "lerobot", "zarr"])
def test_our_outputs_are_read_without_from(outputs: Path, to: str) -> None:
    found = recognize(outputs / to)
    assert (found.format, found.why) == (to, "plan.json of rlds-beam convert")
    assert rlds_beam.check(outputs / to, rules=True).report.records == 3


def test_shards_of_rlds_are_recognized(dataset: Path) -> None:
    (shard,) = (path for path in dataset.iterdir() if ".tfrecord" in path.name)
    for given in (str(shard), [str(shard)], f"{dataset}/*.tfrecord*"):
        assert recognize(given).format == "rlds"
        assert rlds_beam.check(given, rules=True).report.records == 3


def test_logs_of_other_programs_are_recognized_by_names(tmp_path: Path) -> None:
    for file, name in (
        ("metadata.riegeli", "envlogger"),
        ("1631000000000000/steps.riegeli", "envlogger"),
        ("meta/info.json", "lerobot"),
        ("toy-train.array_record-00000-of-00001", "rlds"),
    ):
        path = tmp_path / file.replace("/", "_") / file
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
        assert str(recognize(tmp_path / file.replace("/", "_"))) == f"{name} ({file})"


@pytest.mark.parametrize("to", ["columns", "numpy"])
def test_what_cannot_be_read_says_what_reads_it(outputs: Path, to: str) -> None:
    for job in (rlds_beam.stats, rlds_beam.inspect, rlds_beam.check):
        with pytest.raises(UsageError, match="written by rlds-beam convert") as caught:
            job(outputs / to)
    if to == "columns":
        assert "rlds-beam show" in str(caught.value)
        assert main(["show", str(outputs / to)]) == 0


def test_an_unfinished_output_is_named(outputs: Path, tmp_path: Path) -> None:
    copied = tmp_path / "unfinished"
    shutil.copytree(outputs / "lerobot", copied)
    (copied / "manifest.json").unlink()
    with pytest.raises(UsageError, match="holds the unfinished output of rlds-beam convert"):
        rlds_beam.check(copied, rules=True)


def test_the_only_version_of_a_tfds_dataset_is_opened(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(dataset.parent)]) == 0
    assert "format    rlds (1.0.0/features.json)\n" in capsys.readouterr().out
    assert rlds_beam.check(dataset.parent, rules=True).report.records == 3


def test_the_error_lists_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "notes.txt").write_text("features.json")
    with pytest.raises(UsageError) as caught:
        recognize(tmp_path)
    lines = str(caught.value).splitlines()
    assert "were looked for in it:" in lines[0] and "--from=FORMAT" in lines[-1]
    assert any(line.split() == ["lerobot", "meta/info.json"] for line in lines)
    with pytest.raises(UsageError, match="not a dataset in a known format"):
        recognize(tmp_path / "a" / "notes.txt")


def test_two_formats_are_both_named(dataset: Path, tmp_path: Path) -> None:
    both = tmp_path / "both"
    shutil.copytree(dataset, both)
    (both / "meta").mkdir()
    (both / "meta" / "info.json").write_text("{}")
    with pytest.raises(UsageError, match=r"could be rlds \(features.json\) and lerobot \(meta/info.json\): choose one"):
        rlds_beam.check(both, rules=True)
    assert rlds_beam.check(both, from_="rlds", rules=True).report.records == 3
    assert main(["inspect", str(both), "--from=rlds"]) == 0


def test_nothing_there_is_an_error_of_rlds(tmp_path: Path) -> None:
    for name in ("nowhere", "*.tfrecord"):
        with pytest.raises(UsageError, match="no such file or directory"):
            open_source(str(tmp_path / name))


FROM = {
    "lerobot": {"fps": 10},
    "lerobot 2.1": {"fps": 10, "lerobot_version": "2.1"},
    "rlds": {},
    "zarr": {},
}


@pytest.mark.parametrize("of", FROM)
def test_special_characters_in_a_directory_name(tmp_path, of):
    data = write_dataset(tmp_path / "data[1]", [make_episode(4, seed=i, observation={"x": 2}) for i in range(2)])
    to = of.split()[0]
    made = tmp_path / "a*b[12]?"
    export(data, made, to, **FROM[of])
    assert [len(episode) for episode in read_back(made, to)] == [4, 4]
