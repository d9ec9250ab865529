"""Output directories prepared by an attacker: files outside of them, and files that are not ours, stay untouched."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from directories import bytes_of

from rlds_beam.cli.main import main
from rlds_beam.errors import UsageError
from rlds_beam.formats.trajectories.loaders import load_trajectories
from rlds_beam.formats.trajectories.written_items import open_converted
from rlds_beam.testing import make_episode, write_dataset

FLAGS = ("--accept=duplicate_episode", "--shards=2")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A dataset and its converted output."""
    directory = tmp_path_factory.mktemp("made")
    source = write_dataset(directory / "data", [make_episode(5, seed=i) for i in range(6)])
    assert main(["convert", str(source), str(directory / "out"), *FLAGS]) == 0
    return source, directory / "out"


@pytest.fixture
def source(made: tuple[Path, Path]) -> Path:
    return made[0]


@pytest.fixture
def output(made: tuple[Path, Path], tmp_path: Path) -> Path:
    """A finished output of the source."""
    return shutil.copytree(made[1], tmp_path / "parent" / "out")


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    content = json.loads(path.read_text())
    changed = change(content)
    path.write_text(json.dumps(content if changed is None else changed))


def convert(source: Path, output: Path, *flags: str) -> int:
    return main(["convert", str(source), str(output), *FLAGS, *flags])


def assert_refused(code: int, capsys: pytest.CaptureFixture[str], *said: str) -> None:
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), err
    assert len([line for line in err.splitlines() if " resumed: " not in line]) == 1
    for text in said:
        assert text in err


def with_shard(**changes: Any) -> Callable[[Any], Any]:
    return lambda content: {**content, "shards": [{**content["shards"][0], **changes}]}


WRONG = {
    "_commits/train-00000-of-00002.json": lambda content: {**content, "report": {"records": -1}},
    "manifest.json": with_shard(file="../victim.txt"),
    "plan.json": lambda content: {**content, "plan": "../victim.txt"},
    "report.json": lambda content: {**content, "records": "many"},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_malformed_file_is_named(source, output, capsys, name):
    edit(output / name, WRONG[name])
    before = bytes_of(output)
    assert_refused(convert(source, output), capsys, str(output / name))
    assert bytes_of(output) == before


@pytest.mark.parametrize("changes", [{"checksum": "md5:00"}, {"file": "/etc/passwd"}, {"bytes": 1 << 70}])
def test_every_reader_names_a_malformed_manifest(output, changes):
    edit(output / "manifest.json", with_shard(**changes))
    for read in (open_converted, load_trajectories):
        with pytest.raises(UsageError, match=str(output / "manifest.json")):
            read(str(output))


@pytest.mark.parametrize("content", ["[]", "{", "[" * 100_000])
def test_a_foreign_plan_makes_the_directory_foreign(source, output, capsys, content):
    (output / "plan.json").write_text(content)
    before = bytes_of(output)
    assert_refused(convert(source, output, "--overwrite"), capsys, "rlds-beam did not write")
    assert bytes_of(output) == before


@pytest.mark.parametrize("name", ["_commits", "rejected", "_parts"])
@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])
def test_a_directory_that_leads_elsewhere_is_rejected(source, output, capsys, tmp_path, name, overwrite):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for file in ("train-00000-of-00002.json", "train-00000-of-00002.tfrecord"):
        (elsewhere / file).write_text("mine")
    if (output / name).exists():
        (output / name).rename(tmp_path / "moved")
    (output / name).symlink_to(elsewhere)
    assert_refused(convert(source, output, *overwrite), capsys, str(output / name), "is a link")
    assert [path.read_text() for path in elsewhere.iterdir()] == ["mine", "mine"]
