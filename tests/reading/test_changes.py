"""An input file that changes during a job ends it, so that no output mixes two versions."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from exchanging import export, open_job
from lerobot_data import moving_episode
from small_datasets import DATASETS
from versions import FORMATS, make_shards, record

from rlds_beam.cli.main import main
from rlds_beam.errors import NotVerifiedError
from rlds_beam.formats.format_options import Ros2Options
from rlds_beam.formats.inputs import open_source
from rlds_beam.output.range_conversion import ConvertRanges
from rlds_beam.processing.ranges import FitConnector
from rlds_beam.reading.base import Source
from rlds_beam.reading.changes import Snapshot
from rlds_beam.testing import write_dataset


def replace(path: Path, content: bytes) -> None:
    """Replaces a file by another with the same modification time."""
    times = path.stat()
    other = path.with_name("other")
    other.write_bytes(content)
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    os.replace(other, path)


def videos(directory: Path) -> None:
    data = write_dataset(directory.parent / "data", [moving_episode(3 + i) for i in range(3)])
    export(data, directory, "lerobot", fps=10, images="video")


KINDS: dict[str, tuple[Callable[[Path], object], Callable[[str], list[str]]]] = {
    **{name: (one.make, one.argv) for name, one in DATASETS.items() if "foreign" not in name},
    "lerobot_video": (videos, DATASETS["lerobot"].argv),
    "gzip": (lambda directory: record(directory, 0, "gzip"), DATASETS["rlds"].argv),
    "array_record": (lambda directory: record(directory, 0, "array_record"), DATASETS["rlds"].argv),
}


NEEDED = {
    **dict.fromkeys(("d4rl", "hdf5", "minari"), "h5py"),
    "ros2": "rosbags",
    "array_record": "array_record",
    "lerobot_video": "av",
}


@pytest.mark.parametrize("kind", KINDS)
def test_changes_are_detected_for_every_source(tmp_path, kind):
    if kind in NEEDED:
        pytest.importorskip(NEEDED[kind])
    make, arguments = KINDS[kind]
    make(tmp_path / "input")
    path, *flags = arguments(str(tmp_path / "input"))
    given = dict(flag[2:].split("=", 1) for flag in flags)
    options = Ros2Options(topics=given["topics"]) if "topics" in given else None
    source = open_source(path, from_=given.get("from", "rlds"), options=options)
    files = [name for split in source.splits for s in split.shards for name in (s.path, *source.companions(s))]
    assert all(map(os.path.isfile, files))
    for name in files:
        file = Path(name)
        snapshot = pickle.loads(pickle.dumps(Snapshot(source, "do this")))
        before = fingerprints(source)
        os.chmod(file, 0o600)
        verify_all(source, snapshot)
        content, stat = file.read_bytes(), file.stat()
        middle = len(content) // 2
        # In a TFRecord, a record's length or checksum, which identify its content; in other files, any byte.
        changed = (
            b"\1" + content[1:]
            if "tfrecord" in file.name and content[:2] != b"\x1f\x8b"
            else (content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        )
        replace(file, changed)
        assert file.stat().st_mtime_ns == stat.st_mtime_ns and file.stat().st_size == stat.st_size
        with pytest.raises(NotVerifiedError, match="changed while") as raised:
            verify_all(source, snapshot)
        assert "do this" in str(raised.value)
        assert fingerprints(source) != before
        replace(file, content)
        assert fingerprints(source) == before


def verify_all(source: Source, snapshot: Snapshot) -> None:
    for split in source.splits:
        for shard in split.shards:
            snapshot.verify(split.name, shard)


def fingerprints(source: Source) -> list[Any]:
    snapshot = Snapshot(source, by_content=True)
    return [snapshot.contents(split).tolist() for split in source.splits]


def other_version(data: Path, kind: str) -> Callable[[], None]:
    """Replaces the last shard of a dataset by one from another recording, of equal size."""
    changed = make_shards(record(data.parent / "other", 100, kind))[-1].read_bytes()
    return lambda: replace(make_shards(data / "testing" / "1.0.0")[-1], changed)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("to", ["trajectories", "rlds", "numpy", "lerobot"])
def test_no_range_of_a_changed_file_is_committed(tmp_path, to, kind):
    if kind != "tfrecord" and to != "trajectories":
        pytest.skip("the reader, shared by all outputs, detects it")
    source = record(tmp_path / "data", 0, kind)
    options: dict[str, Any] = {"fps": 10} if to == "lerobot" else {}
    job = open_job(source, tmp_path / "out", to, shards=2, **options)
    first, second = sorted(job.open(), key=str)
    other = other_version(tmp_path / "data", kind)
    job.converter.convert_range(first, {})
    other()
    with pytest.raises(NotVerifiedError, match=make_shards(source)[-1].name) as raised:
        job.converter.convert_range(second, {})
    assert "--overwrite" in str(raised.value)
    assert not list((tmp_path / "out" / "_commits").glob(f"{second}*"))


def before_second(monkeypatch: pytest.MonkeyPatch, of: Any, name: str, change: Callable[[], None]) -> None:
    """Calls `change` before the second call of a method or function."""
    calls, function = [0], getattr(of, name)

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            change()
        return function(*args, **kwargs)

    monkeypatch.setattr(of, name, counting)


@pytest.mark.parametrize("job", ["convert", "fit", "check", "stats"])
def test_a_command_ends_with_exit_code_4(tmp_path, monkeypatch, capsys, job):
    source = record(tmp_path / "data", 0)
    change = other_version(tmp_path / "data", "tfrecord")
    flags = ["--workers=1", "--progress=none"]
    if job in ("convert", "fit"):
        before_second(
            monkeypatch, *{"convert": (ConvertRanges, "convert_range"), "fit": (FitConnector, "process")}[job], change
        )
        flags += [str(tmp_path / "out"), "--shards=2"]
        if job == "fit":
            flags.append(f"--connectors={tmp_path}/normalize.yaml")
            (tmp_path / "normalize.yaml").write_text("- Normalize: {fields: [observation]}\n")
    else:
        from rlds_beam.processing import ranges

        before_second(monkeypatch, ranges, "check_and_connect", change)
        flags += [f"--output={tmp_path / 'out.json'}"] if job == "stats" else []
    assert main(["convert" if job == "fit" else job, str(source), *flags]) == 4
    said = capsys.readouterr().err
    assert make_shards(source)[-1].name in said and "Traceback" not in said
    assert not (tmp_path / "out" / "manifest.json").exists() and not (tmp_path / "out.json").exists()
    if job == "convert":
        again = main(["convert", str(source), *flags])
        assert again == 2 and "--overwrite" in capsys.readouterr().err
        assert main(["convert", str(source), *flags, "--overwrite"]) == 0
