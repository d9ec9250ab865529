"""Recognizing a format looks at few files and never raises anything but a UsageError, whatever is at the path."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz_mutations import mutate
from fuzzed_datasets import DATASETS
from processes import DEADLINE

from rlds_beam.errors import UsageError
from rlds_beam.formats.recognizing import recognize
from rlds_beam.formats.registry import SOURCES, source_class

NAMES = (
    "features.json", "dataset_info.json", "plan.json", "manifest.json", "metadata.json", "metadata.yaml", "x.npz",
    "x.h5", "x.hdf5", "x.mcap", "x.db3", "x.zarr.zip", "x.zip", "x.tfrecord-00000-of-00001", "x.spec", "0", "meta",
    "data", "steps.riegeli", "metadata.riegeli", "train", "buffer.zarr", "episode_offsets.npy", "main_data.hdf5",
)  # fmt: skip
"""Names that a source looks for, or looks into."""

COUNTING = """
import json, sys
from pathlib import Path

counts = {"open": 0, "listed": 0}

def count(event, args):
    if event == "open" and str(args[0]).startswith(sys.argv[1]):
        counts["open"] += 1
    if event in ("os.listdir", "os.scandir") and str(args[0]).startswith(sys.argv[1]):
        counts["listed"] += 1

from rlds_beam.errors import UsageError
from rlds_beam.formats.recognizing import recognize
from rlds_beam.formats.registry import SOURCES, source_class

for name in SOURCES:
    source_class(name).recognize("/dev/null")  # imports
before = Path("/proc/self/io").read_text().split()[1]
sys.addaudithook(count)
try:
    said = str(recognize(sys.argv[1]))
except UsageError as error:
    said = str(error)
counts["read"] = int(Path("/proc/self/io").read_text().split()[1]) - int(before)
print(json.dumps({**counts, "said": said}))
"""


def looked_at(path: Path) -> dict[str, int | str]:
    """How many files are opened, how many directories are listed, and how many bytes are read."""
    command = [sys.executable, "-c", COUNTING, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, int | str] = json.loads(done.stdout)
    return found


def _flat(path: Path) -> None:
    for i in range(100_000):
        os.close(os.open(path / f"{i:06}.jpg", os.O_CREAT))


def _deep(path: Path, levels: int = 4) -> None:
    for i in range(10 if levels else 0):
        (path / f"{i}").mkdir()
        _deep(path / f"{i}", levels - 1)


def _huge(path: Path) -> None:
    for name in NAMES:
        with open(path / name, "wb") as file:
            file.truncate(20 << 30)


def _many(name: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        for i in range(2000):
            (path / f"{i:04}").mkdir()
            (path / f"{i:04}" / name).write_bytes(b"\x89HDF\r\n\x1a\nPK\x03\x04")

    return write


@pytest.mark.parametrize(
    "write",
    [_flat, _deep, _huge, *map(_many, ("x.hdf5", "x.npz", "x.mcap", "metadata.yaml", "plan.json"))],
    ids=["flat", "deep", "huge", "hdf5", "npz", "mcap", "yaml", "plan"],
)
def test_the_work_is_bounded(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path)
    found = looked_at(tmp_path)
    assert int(found["open"]) < 5000 and int(found["listed"]) < 20_000 and int(found["read"]) < 300 << 20, found
    assert str(found["said"]).count("\n") < 25 and len(str(found["said"])) < 3000


def test_special_files(tmp_path: Path) -> None:
    makers: tuple[Callable[[Path], object], ...] = (
        os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to("/dev/tty"),
        lambda path: path.symlink_to(path.name), lambda path: path.symlink_to("nowhere"), lambda path: path.mkdir(),
        lambda path: path.symlink_to("."), lambda path: path.write_bytes(b""), lambda path: path.symlink_to("/"),
        lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(4000)), lambda path: path.write_bytes(b"PK\x05\x06"),
        lambda path: path.write_text("[" * 100_000), lambda path: path.write_text('{"a": 1}'),
    )  # fmt: skip
    for i, make in enumerate(makers):
        for name in NAMES:
            directory = tmp_path / f"{i}" / name.replace(".", "_")
            directory.mkdir(parents=True)
            make(directory / name)
            for path in (directory / name, directory):
                _ask_all(path)


def test_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # its path must be short
    for name in ("x.npz", "x.h5", "metadata.json"):
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(name)
            _ask_all(tmp_path / name)
    _ask_all(tmp_path)


@pytest.mark.parametrize(
    "path", ["", " ", "\x00", "a\x00.npz", "x" * 5000, "x" * 300, "\ud800", "[", "**", "-", ",", "~"]
)
def test_odd_paths(path: str) -> None:
    _ask_all(path)


@pytest.mark.parametrize("name", [name for name in DATASETS if name not in ("merged", "trajectories_spec")])
def test_damaged_files(tmp_path: Path, name: str) -> None:
    made = tmp_path / "made"
    if name == "lerobot_video":
        pytest.importorskip("av")
    DATASETS[name].make(made)
    files = [path.relative_to(made) for path in sorted(made.rglob("*")) if path.is_file()]
    for i in range(6):
        damaged = tmp_path / f"{i}"
        shutil.copytree(made, damaged)
        with contextlib.suppress(OSError):  # HDF5 cannot hold some damage
            mutate(damaged, random.Random(f"{name} {i}"))
        for path in (damaged, *(damaged / file for file in files[:20])):
            _ask_all(path)


def _ask_all(path: Path | str) -> None:
    """Asks every source, and `recognize`: nothing but an OSError or a UsageError about what is there."""
    for name in SOURCES:
        try:
            why = source_class(name).recognize(str(path))
        except (OSError, UsageError):
            continue
        assert why is None or 0 < len(why) < 500
    with contextlib.suppress(UsageError):
        assert recognize(path).format in SOURCES
