"""`convert --append`: the old dataset is readable at any time, and the result is that of one conversion."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from appending import append
from checkout import SUPPORT
from exchanging import rich_episode
from processes import DEADLINE

from rlds_beam.cli.main import main
from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.output.commits import read_manifest
from rlds_beam.output.directory import lock_output
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.testing import make_episode, read_items, read_payloads, read_rejected, write_dataset
from rlds_beam.testing.conversions import check_error, convert_here, episode_content, files_in, prepare_conversion

OUTPUTS: dict[str, dict[str, Any]] = {
    "trajectories": {"to": "trajectories"},
    "episodes": {"to": "trajectories", "items": "episodes"},
    "columns": {"to": "columns"},
    "parquet": {"to": "columns", "format": "parquet"},
    "rlds": {"to": "rlds"},
    "array_record": {"to": "rlds", "format": "array_record"},
    "lerobot": {"to": "lerobot", "fps": 10, "image_samples": 1000},
    "lerobot 2.1": {"to": "lerobot", "fps": 10, "image_samples": 1000, "lerobot_version": "2.1"},
}
REFUSED = ("scope_rl", "numpy", "zarr")
"""Outputs of a few files that hold all episodes."""
PLAIN = ("trajectories", "episodes", "scope_rl")
"""Outputs that get episodes without images and texts."""
SHARDS = 4


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, list[Path]]:
    """The shards of a plain dataset (True), and of one with images and texts; each half has a broken episode."""
    made = {}
    for plain in (True, False):
        endless = make_episode(5, seed=100, observation={"state": 3}, breaks=["non_finite"])
        if plain:
            episodes = [make_episode(3 + i % 4, seed=i, observation={"state": 3}) for i in range(12)]
            episodes[1] = episodes[9] = endless
        else:
            episodes = [rich_episode(2 + i % 7, i, terminal=i % 3 != 2) for i in range(12)]
        data = write_dataset(tmp_path_factory.mktemp("data"), episodes, shards=SHARDS)
        made[plain] = sorted(data.glob("*tfrecord-0*"))
        for path in data.iterdir():
            os.utime(path, (1e9, 1e9))  # nobody writes to it
    return made


def paths(shards: dict[bool, list[Path]], name: str) -> list[str]:
    return [str(path) for path in shards[name in PLAIN]]


def begin(shards: dict[bool, list[Path]], name: str, output: Path, **others: Any) -> None:
    """Converts the first half."""
    convert_files(paths(shards, name)[:2], output, {**OUTPUTS[name], "shards": 2, **others})


def convert_files(files: list[str], output: Path, options: dict[str, Any]) -> None:
    convert_here(",".join(files), output, options)


def read(output: Path, name: str) -> Any:
    """The items of an output."""
    manifest = read_manifest(str(output))
    if name in ("trajectories", "episodes", "columns", "parquet"):
        source: Any = None
    else:
        source = open_source(str(output), from_=OUTPUTS[name]["to"])
    if name in ("trajectories", "episodes"):
        return [{path: np.asarray(leaf).tolist() for path, leaf in item.items()} for item in read_items(output)]
    if source is None:
        files = [output / shard["file"] for shard in manifest["shards"] if shard["records"]]
        if name == "parquet":
            return [row for file in files for row in pq.read_table(file).to_pylist()]
        return [payload for file in files for payload in read_payloads(file)]
    reader = EpisodeReader(source)
    works = [(work.split, segment) for work in plan_ranges(source) for segment in work.segments]
    found = [episode_content(episode) for split, segment in works for episode in reader.read(split, segment)]
    assert not any(content["faults"] for content in found), [c["faults"] for c in found]
    return [{key: value for key, value in content.items() if key != "key"} for content in found]


def read_json(output: Path, name: str) -> dict[str, Any]:
    return dict(json.loads((output / name).read_text()))


def without(content: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name not in names}


@pytest.mark.parametrize("name", OUTPUTS)
def test_it_is_what_one_conversion_gives(
    tmp_path: Path, shards: dict[bool, list[Path]], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In two appends; a third adds nothing. What differs: the cut into files, and what names or counts them."""
    every, out, whole = paths(shards, name), tmp_path / "out", tmp_path / "whole"
    begin(shards, name, out)
    old = files_in(out)
    for last in (3, 4):
        append(every[:last], out, OUTPUTS[name])
    before = files_in(out)
    assert append(every, out, OUTPUTS[name]).records == 0
    flags = [f"--{key}" if value is True else f"--{key}={value}" for key, value in OUTPUTS[name].items()]
    assert main(["convert", ",".join(every[2:]), str(out), "--append", *flags, "--progress=none"]) == 0
    assert f"appended  nothing: {out} has the episodes of all 2 files already" in capsys.readouterr().out
    assert files_in(out) == before
    convert_files(every, whole, {**OUTPUTS[name], "shards": 3})

    assert read(out, name) == read(whole, name)
    data = {shard["file"] for shard in json.loads(old["manifest.json"])["shards"]}
    assert all((out / file).read_bytes() == old[file] for file in data)
    assert not (out / "_append").exists()
    cut = ("plan_sha256", "shards", "rejected", "bytes", "appends")
    manifest, expected = read_manifest(str(out)), read_manifest(str(whole))
    assert without(manifest, *cut) == without(expected, *cut)
    assert [entry["records"] for entry in manifest["appends"]] == [3, 3]
    assert sum(entry["rejected"] for entry in manifest["appends"]) == (name in PLAIN)
    assert without(read_json(out, "report.json"), "bytes_written") == without(
        read_json(whole, "report.json"), "bytes_written"
    )
    assert [record for _, record in read_rejected(out)] == [record for _, record in read_rejected(whole)]
    checksums = sorted((out / "checksums.xxh128").read_text().splitlines())
    assert len(checksums) == len(manifest["shards"]) + len(manifest["rejected"])

    ours = {file for file in files_in(out) if "_commits" not in file and "rejected" not in file} - {
        shard["file"] for shard in manifest["shards"]
    }
    theirs = {file for file in files_in(whole) if "_commits" not in file and "rejected" not in file} - {
        shard["file"] for shard in expected["shards"]
    }
    different = {"plan.json", "manifest.json", "checksums.xxh128", "report.json"}
    for file in sorted((ours & theirs) - different):
        if file.endswith("dataset_info.json"):
            splits = [(read_json(at, file)["splits"]) for at in (out, whole)]
            assert without(read_json(out, file), "splits") == without(read_json(whole, file), "splits")
            assert [[sum(map(int, s["shardLengths"])) for s in of] for of in splits[:1]] == [
                [sum(map(int, s["shardLengths"])) for s in of] for of in splits[1:]
            ]
        elif file.startswith("meta/episodes/"):
            continue
        else:
            assert (out / file).read_bytes() == (whole / file).read_bytes(), file
    more = {file for file in ours ^ theirs if not file.endswith(".spec")}
    assert all(file.startswith(("meta/episodes/", "inputs-")) for file in more)
    if name == "lerobot":
        check_episodes(out, whole)


def check_episodes(out: Path, whole: Path) -> None:
    """meta/episodes is the same but for the files and the times in them; frames have the same numbers."""
    tables = [pq.read_table(at / "meta" / "episodes").to_pylist() for at in (out, whole)]
    rows = [
        [{k: v for k, v in row.items() if not k.startswith(("data/", "meta/", "videos/"))} for row in t] for t in tables
    ]
    assert rows[0] == rows[1]
    frames = [
        [row for f in sorted((at / "data").rglob("*.parquet")) for row in pq.read_table(f).to_pylist()]
        for at in (out, whole)
    ]
    assert frames[0] == frames[1]
    for row in tables[0]:
        file = out / f"data/chunk-{row['data/chunk_index']:03d}/file-{row['data/file_index']:03d}.parquet"
        assert row["episode_index"] in pq.read_table(file)["episode_index"].to_pylist()


@pytest.mark.parametrize("name", ["trajectories", "columns", "rlds", "lerobot", "lerobot 2.1"])
def test_killed_at_any_change(tmp_path: Path, shards: dict[bool, list[Path]], name: str) -> None:
    """The old dataset or the new one is there, whole; the same command ends with the bytes of an undisturbed one."""
    every, whole, copies = paths(shards, name), tmp_path / "whole", tmp_path / "copies"
    begin(shards, name, whole)
    old, options = read(whole, name), {**OUTPUTS[name], "shards": 2}
    about = json.dumps({"input": every, "output": str(whole), "options": options})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(SUPPORT / "appending.py"), about, str(copies)]
    subprocess.run(command, check=True, env=environment, timeout=300)
    new, files = read(whole, name), files_in(whole)
    count = len([*copies.iterdir()])
    assert count > 30
    # The last changes are those of the output itself: all of them; of the others, some.
    for last in [*range(0, count - 30, 8), *range(max(0, count - 30), count, 2)]:
        out = copies / str(last)
        assert read(out, name) in (old, new), last
        source = open_source(str(out), from_=str(options["to"])) if name == "rlds" else None
        assert source is None or not source.details.violations
        append(every, out, options)
        assert files_in(out) == files, last


@pytest.mark.parametrize("name", REFUSED)
def test_formats_that_cannot_be_appended_to(tmp_path: Path, shards: dict[bool, list[Path]], name: str) -> None:
    every, out = paths(shards, name), tmp_path / "out"
    convert_files(every[:2], out, {"to": name})
    before = files_in(out)
    with pytest.raises(UsageError, match=r"--append: --to=\w+ cannot be appended to: convert again") as error:
        append(every, out, {"to": name})
    check_error(error.value)
    assert files_in(out) == before


def test_other_options_are_refused(tmp_path: Path, shards: dict[bool, list[Path]]) -> None:
    every, out = paths(shards, "trajectories"), tmp_path / "out"
    begin(shards, "trajectories", out)
    before = files_in(out)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"items": "frames"}, 'items.items was "pairs" and is now "frames"'),
        ({"repair": ["missing_is_last"]}, 'check.repair was .* and is now .*"missing_is_last"'),
        ({"to": "rlds"}, "was written with --to=trajectories, not --to=rlds"),
        ({"overwrite": True}, "--append adds to an output and --overwrite replaces it"),
    ]
    for options, message in cases:
        with pytest.raises(UsageError, match=message) as error:
            append(every, out, options)
        check_error(error.value)
    with pytest.raises(UsageError, match=r"has been appended to|another plan"):
        convert_files(every, out, {"items": "pairs"})
    assert files_in(out) == before


def test_an_appended_output_is_not_converted_again(tmp_path: Path, shards: dict[bool, list[Path]]) -> None:
    every, out = paths(shards, "rlds"), tmp_path / "out"
    begin(shards, "rlds", out)
    append(every, out, OUTPUTS["rlds"])
    with pytest.raises(UsageError, match="has been appended to: add --append") as error:
        begin(shards, "rlds", out)
    check_error(error.value)
    job = prepare_conversion(",".join(every), out, {"to": "numpy", "overwrite": True})
    job.convert_here()
    convert_here(",".join(every), tmp_path / "clean", {"to": "numpy"})
    assert files_in(out).keys() == files_in(tmp_path / "clean").keys()


def test_two_at_once(tmp_path: Path, shards: dict[bool, list[Path]]) -> None:
    every, out = paths(shards, "rlds"), tmp_path / "out"
    begin(shards, "rlds", out)
    with lock_output(str(out)), pytest.raises(UsageError, match="another rlds-beam is writing"):
        append(every, out, OUTPUTS["rlds"])
    first, second = (prepare_conversion(",".join(every), out, {"to": "rlds", "append": True}) for _ in range(2))
    first.convert_here()
    with pytest.raises(UsageError, match=r"another command changed .* meanwhile: run the same command again") as error:
        second.convert_here()
    check_error(error.value)


def test_another_dataset(tmp_path: Path, shards: dict[bool, list[Path]]) -> None:
    """Of the same name with shards of the same names, or of another name."""
    out = tmp_path / "out"
    days = [
        write_dataset(tmp_path / f"day{i}", [make_episode(4, seed=10 * i + j) for j in range(3)], shards=1)
        for i in range(3)
    ]
    convert_here(days[0], out, {"to": "rlds"})
    append(days[1], out, {"to": "rlds"})
    other = tmp_path / "other"
    shutil.copytree(days[2], other)
    info = other / "dataset_info.json"
    info.write_text(info.read_text().replace('"testing"', '"other"'))
    for path in [*other.glob("testing-*")]:
        path.rename(other / path.name.replace("testing", "other"))
    append(other, out, {"to": "rlds"})
    assert len(read(out, "rlds")) == 9
    assert json.loads((out / "provenance.json").read_text())["source"]["appended"] == ["other/1.0.0"]
    assert [entry["dataset"] for entry in read_manifest(str(out))["appends"]] == ["testing/1.0.0", "other/1.0.0"]


def test_a_file_that_has_changed_is_refused(tmp_path: Path, shards: dict[bool, list[Path]]) -> None:
    """It may hold episodes that are there already."""
    data, out = tmp_path / "data", tmp_path / "out"
    shutil.copytree(shards[True][0].parent, data)
    files = sorted(data.glob("*tfrecord-0*"))
    convert_here(",".join(map(str, files[:1])), out, {"to": "rlds"})
    files[0].write_bytes(files[0].read_bytes() + files[1].read_bytes())  # it has grown
    with pytest.raises(UsageError, match="has the name of a file that was converted") as error:
        append(files[0], out, {"to": "rlds"})
    check_error(error.value)


def test_files_in_a_folder_for_each_day(tmp_path: Path) -> None:
    """They have the names of the day before."""
    data, out = tmp_path / "data", tmp_path / "out"
    pattern = f"{data}/*/*.npz"
    for day in range(2):
        write_npz(data / f"day{day}" / "0.npz", seed=day)
    append(pattern, out, {"to": "rlds"})
    for name in ("day2/0.npz", "day2/1.npz"):
        write_npz(data / name, seed=int(name[5]) + 2)
    assert append(pattern, out, {"to": "rlds"}).records == 2
    assert append(pattern, out, {"to": "rlds"}).records == 0
    assert len(read(out, "rlds")) == 4
    write_npz(data / "day1/0.npz", seed=9)  # it has changed
    with pytest.raises(
        UsageError, match=r"day1/0\.npz has the name of a file that was converted from 0/1\.0\.0"
    ) as error:
        append(pattern, out, {"to": "rlds"})
    check_error(error.value)


def write_npz(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).normal(size=(20, 3)).astype(np.float32)
    np.savez(path, observations=values, actions=values, terminals=np.arange(20) == 19)


def test_fitted_connectors_are_refused(tmp_path: Path, shards: dict[bool, list[Path]]) -> None:
    every, out = paths(shards, "trajectories"), tmp_path / "out"
    convert_files(every[:2], out, {})
    connectors = tmp_path / "connectors.yaml"
    connectors.write_text("- MeanStdFilter\n")
    with pytest.raises(UsageError, match="--append: a connector is fitted to the whole dataset") as error:
        append(every, out, {"connectors": str(connectors)})
    check_error(error.value)


def test_splits(tmp_path: Path) -> None:
    """One that exists, one that was empty, and a new one; TFDS reads them all."""
    splits = {
        "train": [make_episode(4, seed=1)],
        "empty": [make_episode(4, seed=2, breaks=["non_finite"])],
    }
    more = {
        "new": [make_episode(4, seed=6), make_episode(5, seed=7)],
        "train": [make_episode(4, seed=3)],
        "empty": [make_episode(4, seed=4), make_episode(4, seed=5)],
    }
    out = tmp_path / "out"
    convert_here(write_splits(tmp_path / "a", splits), out, {"to": "rlds"})
    append(write_splits(tmp_path / "b", more), out, {"to": "rlds"})
    source = open_source(str(out))
    assert {split.name: split.episodes for split in source.splits} == {"train": 2, "empty": 2, "new": 2}
    assert not source.details.violations
    assert [commit.name for commit in sorted((out / "_commits").iterdir())] == [
        f"{name}.json"
        for name in (
            "empty-00000-of-00001",
            "empty-00001-of-00001",
            "new-00000-of-00001",
            "train-00000-of-00001",
            "train-00001-of-00001",
        )
    ]
    tfds = pytest.importorskip("tensorflow_datasets")
    builder = tfds.builder_from_directory(str(out))
    for name in ("train", "empty", "new"):
        assert len(list(builder.as_dataset(split=name))) == 2, name
    assert len(list(builder.as_dataset(split="train[1:]"))) == 1


def test_lerobot_appends_to_the_last_split(tmp_path: Path) -> None:
    first = {name: [make_episode(4, seed=i)] for i, name in enumerate(("train", "val"))}
    later = {name: [make_episode(4, seed=5 + i)] for i, name in enumerate(("train", "val", "test"))}
    out, options = tmp_path / "out", {"to": "lerobot", "fps": 10}
    convert_here(write_splits(tmp_path / "a", first), out, options)
    more = write_splits(tmp_path / "b", later)
    with pytest.raises(
        UsageError, match=r"only val, the last one, can be appended to, not train: use --split"
    ) as error:
        append(more, out, options)
    check_error(error.value)
    append(more, out, {**options, "split": "val+test"})
    assert read_json(out, "meta/info.json")["splits"] == {"train": "0:1", "val": "1:3", "test": "3:4"}
    with pytest.raises(UsageError, match="only test, the last one"):
        append(write_splits(tmp_path / "c", {"val": [make_episode(4, seed=9)]}), out, options)
    found = {split.name: split.episodes for split in open_source(str(out), from_="lerobot").splits}
    assert found == {"train": 1, "val": 2, "test": 1}


def test_slices(tmp_path: Path) -> None:
    """A file of which only some episodes were converted would not be complete."""
    data = write_dataset(tmp_path / "data", [make_episode(4, seed=i) for i in range(6)], shards=2)
    out = tmp_path / "out"
    convert_here(data, out, {"to": "rlds", "split": "train[:4]"})
    with pytest.raises(UsageError, match="only some episodes of train were or are converted") as error:
        append(data, out, {"to": "rlds"})
    check_error(error.value)


def write_splits(directory: Path, splits: dict[str, list[Any]]) -> Path:
    """A dataset of several splits, of a shard each."""
    return [write_dataset(directory, episodes, split=name) for name, episodes in splits.items()][-1]


def test_files_that_are_still_written_to_are_left(tmp_path: Path, shards: dict[bool, list[Path]]) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    shutil.copytree(shards[True][0].parent, data)
    files = sorted(data.glob("*tfrecord-0*"))
    convert_here(str(files[0]), out, {"to": "rlds"})
    whole, ended = files[3].read_bytes(), threading.Event()

    def write() -> None:
        while not ended.wait(0.05):
            with files[3].open("ab") as file:
                file.write(b"\0")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while files[3].stat().st_size == len(whole):
            time.sleep(0.01)
        job = prepare_conversion(",".join(map(str, files)), out, {"to": "rlds", "append": True})
    finally:
        ended.set()
        writer.join(DEADLINE)
    assert job.left == [str(files[3])]
    assert job.convert_here().records == 6
    files[3].write_bytes(whole)
    assert append(files, out, {"to": "rlds"}).records == 3
