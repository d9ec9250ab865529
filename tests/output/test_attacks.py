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
from rlds_beam.testing import make_episode, read_items, write_dataset

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


EMPTY = {"records": 0, "bytes": 0, "checksum": f"xxh3-128:{'0' * 32}", "first_key": None, "last_key": None}
VICTIMS = ["../victim.txt", "/{parent}/victim.txt", "rejected/../../victim.txt", "thesis.tex", "", ".", "..", 7, None]


@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("place", ["file", "beside"])
def test_a_commit_removes_only_files_of_its_plan(source, output, capsys, victim, place, overwrite):
    outside, inside = output.parent / "victim.txt", output / "thesis.tex"
    for path in (outside, inside):
        path.write_text("mine")
    name = victim.format(parent=output.parent) if isinstance(victim, str) else victim
    commit = output / "_commits" / "train-00000-of-00002.json"
    changed = {"file": name, "beside": []} if place == "file" else {"beside": [name]}
    edit(commit, lambda content: content["files"][0].update(changed, shard=EMPTY, predicted=0))
    other = output / "_commits" / "train-00001-of-00002.json"
    edit(other, lambda content: content["files"][0].update(shard=EMPTY, predicted=0))
    code = convert(source, output, *overwrite)
    assert outside.read_text() == inside.read_text() == "mine"
    if overwrite:
        assert code == 0
    else:
        assert_refused(code, capsys, str(commit))


WRONG = [[], {}, "text", None, 7, {"plan": 1}, {"shards": {}}]
WRONG_PARTS = {
    "split": [1, "../x", "test"],
    "index": ["0", None, 1, 1.0],
    "report": [[], {}, {"records": 1}],
    "rejected": [[], {"records": 1}],
    "files": [[], {}, "x", [1]],
    "plan": [None, 1],
}
WRONG_FILES = {
    "shard": [[], {}, {**EMPTY, "records": "5"}, {**EMPTY, "bytes": -1}, {"records": 0, "bytes": 0}],
    "predicted": [None, True],
    "beside": ["x", [1]],
    "role": ["other", None],
}


def each_value(parts: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    return [(key, value) for key, values in parts.items() for value in values]


@pytest.mark.parametrize("content", WRONG, ids=json.dumps)
def test_a_malformed_commit_is_named(source, output, capsys, content):
    commit = output / "_commits" / "train-00000-of-00002.json"
    commit.write_text(json.dumps(content))
    before = bytes_of(output)
    code = convert(source, output)
    if content is None:  # no content: the range is not finished
        assert code == 0
    else:
        assert_refused(code, capsys, str(commit))
        assert bytes_of(output) == before


@pytest.mark.parametrize(("key", "value"), [*each_value(WRONG_PARTS), *each_value(WRONG_FILES)], ids=str)
def test_a_commit_with_a_wrong_or_missing_part_is_named(source, output, capsys, key, value):
    commit = output / "_commits" / "train-00000-of-00002.json"
    (output / "manifest.json").unlink()
    holder = (lambda content: content["files"][0]) if key in WRONG_FILES else (lambda content: content)
    edit(commit, lambda content: holder(content).update({key: value}))
    assert_refused(convert(source, output), capsys, str(commit))
    edit(commit, lambda content: holder(content).pop(key) and None)
    assert_refused(convert(source, output), capsys, str(commit))


def without(key: str) -> Callable[[Any], Any]:
    return lambda content: {name: part for name, part in content.items() if name != key}


def with_shard(**changes: Any) -> Callable[[Any], Any]:
    return lambda content: {**content, "shards": [{**content["shards"][0], **changes}]}


MANIFESTS = {
    "a list": lambda content: [],
    "an empty object": lambda content: {},
    "no shards": without("shards"),
    "no name": without("name"),
    "shards as an object": lambda content: {**content, "shards": {}},
    "a name with a path": lambda content: {**content, "name": "../x"},
    "a file outside": with_shard(file="../victim.txt"),
    "an absolute file": with_shard(file="/etc/passwd"),
    "text for a number": with_shard(records="5"),
    "a negative size": with_shard(bytes=-1),
    "no checksum": with_shard(checksum=None),
    "an unknown checksum": with_shard(checksum="md5:00"),
    "an invalid dtype": lambda content: {**content, "fields": [{**content["fields"][0], "dtype": "object"}]},
    "an invalid shape": lambda content: {**content, "fields": [{**content["fields"][0], "shape": "2"}]},
    "a negative shape": lambda content: {**content, "fields": [{**f, "shape": [-4]} for f in content["fields"]]},
    "no fields": without("fields"),
    "fields without steps": lambda content: {**content, "fields": content["fields"][1:]},
    "an invalid encoding": lambda content: {**content, "fields": [{**content["fields"][0], "encoding": 1}]},
}


@pytest.mark.parametrize("wrong", MANIFESTS)
def test_every_reader_names_a_malformed_manifest(source, output, capsys, wrong):
    (output.parent / "victim.txt").write_text("mine")
    edit(output / "manifest.json", MANIFESTS[wrong])
    said = str(output) if "field" in wrong or "shape" in wrong or "dtype" in wrong else str(output / "manifest.json")
    for read in (open_converted, load_trajectories):
        with pytest.raises(UsageError, match=str(said)):
            read(str(output))
    assert_refused(main(["push", str(output), "--reverb=127.0.0.1:1", "--table=t"]), capsys, str(output))
    if "dtype" not in wrong and "shape" not in wrong and "field" not in wrong and "encoding" not in wrong:
        assert_refused(convert(source, output), capsys, str(output / "manifest.json"))


PLANS = {
    "no plan": without("plan"),
    "a list as plan": lambda content: {**content, "plan": []},
    "files as text": lambda content: {**content, "files": "x"},
    "a file outside": lambda content: {**content, "files": ["../victim.txt"]},
    "an absolute file": lambda content: {**content, "files": ["/etc/passwd"]},
    "a name with a path": lambda content: {**content, "name": "../victim"},
    "an older plan without ranges": lambda content: {"kind": content["kind"], "plan": {"dataset": "x/1.0.0"}},
}


@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])
@pytest.mark.parametrize("wrong", PLANS)
def test_a_malformed_plan_is_named(source, output, capsys, wrong, overwrite):
    (output.parent / "victim.txt").write_text("mine")
    edit(output / "plan.json", PLANS[wrong])
    before = bytes_of(output.parent)
    assert_refused(convert(source, output, *overwrite), capsys, str(output / "plan.json"))
    assert bytes_of(output.parent) == before


@pytest.mark.parametrize("content", ["[]", "{}", '"x"', "{", "[" * 100_000, ""])
@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])
def test_a_foreign_plan_makes_the_directory_foreign(source, output, capsys, content, overwrite):
    (output / "plan.json").write_text(content)
    before = bytes_of(output)
    assert_refused(convert(source, output, *overwrite), capsys, "rlds-beam did not write")
    assert bytes_of(output) == before


@pytest.mark.parametrize("content", ["[]", "{}", "7", '{"records": "many"}', "[" * 100_000])
def test_a_malformed_report_is_named(source, output, capsys, content):
    (output / "report.json").write_text(content)
    assert_refused(convert(source, output), capsys, str(output / "report.json"))


def test_overwrite_removes_only_files_of_the_plan(source, output):
    mine = {
        "other-train.tfrecord-00000-of-00001": b"a dataset",
        "testing-train.tfrecord-00007-of-00009": b"of another plan",
        "testing-train.tfrecord-00000-of-00002.backup": b"a copy",
        "_commits/notes.txt": b"notes",
        "_commits/train-00000-of-00009.json": b"[]",
        "rejected/notes.txt": b"notes",
        "rejected/train-00005-of-00009.tfrecord": b"records",
        ".notes.tmp": b"notes",
        ".notes.0badcafe.tmp": b"notes",
        "_parts/notes.txt": b"notes",
    }
    for name, content in mine.items():
        (output / name).parent.mkdir(exist_ok=True)
        (output / name).write_bytes(content)
    assert convert(source, output) == 2
    (output / "_commits" / "train-00000-of-00009.json").unlink()
    del mine["_commits/train-00000-of-00009.json"]
    (output / ".testing-train.tfrecord-00000-of-00002.0badcafe.tmp").write_bytes(b"half")
    assert convert(source, output, "--overwrite", "--items=frames") == 0
    found = bytes_of(output)
    assert {name: found[name] for name in mine if name in found} == mine
    assert ".testing-train.tfrecord-00000-of-00002.0badcafe.tmp" not in found
    assert len(read_items(output)) == 30


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


@pytest.mark.parametrize("flags", [(), ("--overwrite",)], ids=["resume", "overwrite"])
@pytest.mark.parametrize("to", ["trajectories", "numpy", "rlds", "zarr"])
def test_directories_in_place_of_files(source, tmp_path, capsys, to, flags):
    whole = tmp_path / "whole"
    assert convert(source, whole, f"--to={to}") == 0
    capsys.readouterr()
    for name in bytes_of(whole):
        output = shutil.copytree(whole, tmp_path / "out")
        (output / name).unlink()
        (output / name).mkdir()
        (output / name / "mine").write_text("mine")
        assert_refused(convert(source, output, f"--to={to}", *flags), capsys, str(output / name))
        assert (output / name / "mine").read_text() == "mine"
        shutil.rmtree(output)
