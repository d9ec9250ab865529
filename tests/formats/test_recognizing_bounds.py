"""Recognition is bounded, on disks and in stores, and hostile files are no failure."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub_server import HubServer, hub_server
from memory_store import memory_store
from processes import DEADLINE
from small_datasets import DATASETS

import rlds_beam
from rlds_beam.errors import UsageError
from rlds_beam.formats.recognition import recognize
from rlds_beam.formats.registry import SOURCES, source_class

NAMES = (
    "features.json",
    "dataset_info.json",
    "plan.json",
    "manifest.json",
    "metadata.json",
    "metadata.yaml",
    "x.npz",
    "x.h5",
    "x.hdf5",
    "x.mcap",
    "x.db3",
    "x.zarr.zip",
    "x.zip",
    "x.tfrecord-00000-of-00001",
    "x.spec",
    "0",
    "meta",
    "data",
    "steps.riegeli",
    "metadata.riegeli",
    "train",
    "buffer.zarr",
    "episode_offsets.npy",
    "main_data.hdf5",
)
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
from rlds_beam.formats.recognition import recognize
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
    for i in range(20_000):
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
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to("/dev/tty"),
        lambda path: path.symlink_to(path.name),
        lambda path: path.symlink_to("nowhere"),
        lambda path: path.mkdir(),
        lambda path: path.symlink_to("."),
        lambda path: path.write_bytes(b""),
        lambda path: path.symlink_to("/"),
        lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(4000)),
        lambda path: path.write_bytes(b"PK\x05\x06"),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text('{"a": 1}'),
    )
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


KNOWN_BY_NAMES = (
    "rlds",
    "lerobot_foreign",
    "lerobot_v21_foreign",
    "d4rl",
    "minari",
    "npz",
    "hdf5_aloha",
    "zarr",
    "ros2",
)
BY_NAME = ("rlds", "lerobot_foreign", "lerobot_v21_foreign", "zarr")
"""Recognized from the names of files alone."""


def made(name: str, directory: Path) -> Path:
    DATASETS[name].make(directory)
    (directory / "plan.json").unlink(missing_ok=True)  # of rlds-beam
    return directory / "bag" if name == "ros2" else directory


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with hub_server() as server:
        for name, value in server.environment(tmp_path / "hf_home").items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.mark.parametrize("name", KNOWN_BY_NAMES)
def test_in_a_bucket(tmp_path: Path, name: str) -> None:
    local = made(name, tmp_path / "data")
    with memory_store() as store:
        there = f"{store.root}/{local.name}"
        for path in local.rglob("*"):
            if path.is_file():
                store.files[f"{there}/{path.relative_to(local).as_posix()}"] = path.read_bytes()
        store.files[f"{store.root}/notes/a.txt"] = b"nothing"
        found, wanted = recognize(there), recognize(local)
        assert (found.format, found.why) == (wanted.format, wanted.why)
        assert recognize(f"{there}/").format == wanted.format
        if name in ("rlds", "npz", "hdf5_aloha"):
            assert (
                rlds_beam.check(there, rules=True).report.records
                == rlds_beam.check(local, rules=True).report.records
                > 0
            )
        with pytest.raises(UsageError, match="not a dataset in a known format"):
            recognize(f"{store.root}/notes")


@pytest.mark.parametrize("name", KNOWN_BY_NAMES)
def test_on_the_hub(tmp_path: Path, hub: HubServer, name: str) -> None:
    local = made(name, tmp_path / "data")
    there = hub.add(local, f"robots/{name}")
    hub.requests.clear()
    found, wanted = recognize(there), recognize(local)
    assert (found.format, found.why) == (wanted.format, wanted.why)
    read = [one for one in hub.requests if "/resolve/" in one]
    assert len(hub.requests) < 25, hub.requests
    assert not (name in BY_NAME and read), read
    if name in ("rlds", "npz", "hdf5_aloha"):
        assert rlds_beam.inspect(there, sample_bytes=10_000).format == str(found)
        assert (
            rlds_beam.check(there, rules=True).report.records == rlds_beam.check(local, rules=True).report.records > 0
        )


def test_a_large_repository_without_datasets(tmp_path: Path, hub: HubServer) -> None:
    for i in range(40):
        for j in range(3):
            path = tmp_path / "data" / f"{i:02}" / f"{j}" / "image.jpg"
            path.parent.mkdir(parents=True)
            path.write_bytes(b"\xff\xd8")
    there = hub.add(tmp_path / "data", "robots/pictures")
    hub.requests.clear()
    with pytest.raises(UsageError, match=r"in the 24 files and directories below"):
        recognize(there)
    assert len(hub.requests) < 150, len(hub.requests)
    assert not [one for one in hub.requests if "/resolve/" in one]
