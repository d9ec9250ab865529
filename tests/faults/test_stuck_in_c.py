"""A library that does not return, with or without the interpreter's lock: a signal and a deadline end every command."""

from __future__ import annotations

import os
import re
import signal
import struct
from pathlib import Path
from typing import Any

import pytest
from hdf5_robots import droid
from jobs import complaints
from processes import DEADLINE, run, running, wait_until

from rlds_beam.testing import make_episode, write_dataset
from rlds_beam.watchdog.watcher import READ_SECONDS

STUCK = """
import ctypes
import os

from rlds_beam import watchdog
from rlds_beam.formats.rlds.source import RldsSource

def wait(where):
    if os.environ["STUCK"] not in (where, where + " in a worker" * ("WORKER_ID" in os.environ)):
        return
    library = ctypes.PyDLL(None) if os.environ["LOCK"] == "held" else ctypes.CDLL(None)
    lock = ctypes.create_string_buffer(100)
    library.pthread_mutex_lock(lock)
    with watchdog.reading("some file", "A library"):
        with open(os.environ["REACHED"], "w") as reached:
            reached.write(f"{os.getpid()} {ctypes.addressof(lock):#x}\\n")
        library.pthread_mutex_lock(lock)

class Decoder:
    def __init__(self, decoder):
        self.decoder = decoder

    def decode(self, payload, key):
        wait("decode")
        return self.decoder.decode(payload, key)

class Rlds(RldsSource):
    @classmethod
    def open(cls, input, **options):
        wait("open")
        return cls(**vars(RldsSource.open(input, **options)))

    @property
    def decoder(self):
        return Decoder(super().decoder)
"""
COMMANDS = {
    "open": ["inspect"],
    "decode": ["validate", "--workers=1"],
    "decode in a worker": ["validate", "--workers=2"],
    "convert": ["convert", "OUT", "--workers=1"],
    "browse": ["browse", "--no_open"],
}


@pytest.fixture
def stuck(tmp_path: Path) -> Any:
    """The arguments of a command that a library never returns to, and the options of its process."""
    data = write_dataset(tmp_path / "data", [make_episode(5, seed=i) for i in range(6)], shards=2)
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/stuck.py").write_text(STUCK)
    (tmp_path / "tmp").mkdir()

    def prepare(case: str, lock: str, **environment: str) -> tuple[list[object], dict[str, Any]]:
        name, *rest = (part.replace("OUT", str(tmp_path / "out")) for part in COMMANDS[case])
        options = {
            "PYTHONPATH": str(tmp_path / "modules"),
            "REACHED": str(tmp_path / "reached"),
            "LOCK": lock,
            "STUCK": {"browse": "open", "convert": "decode"}.get(case, case),
            "TMPDIR": str(tmp_path / "tmp"),
            **environment,
        }
        return [name, data, *rest, "--from=stuck:Rlds"], {"env": {**os.environ, **options}}

    return prepare


def waits_in_c(reached: Path) -> bool:
    """Whether the process that wrote `reached` waits for its lock: a signal before that is handled as always."""
    written = re.fullmatch(r"(\d+) (\w+)\n", reached.read_text()) if reached.exists() else None
    calls = Path("/proc", written[1]).glob("task/*/syscall") if written else ()
    return any(written[2] in call.read_text() for call in calls if written)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("lock", ["held", "free"])
@pytest.mark.parametrize("case", COMMANDS)
def test_a_signal_ends_it(stuck: Any, tmp_path: Path, case: str, lock: str, number: signal.Signals) -> None:
    if number == signal.SIGINT and (case, lock) not in (("open", "held"), ("decode in a worker", "held")):
        pytest.skip("as for SIGTERM")
    arguments, options = stuck(case, lock)
    with running(arguments, **options) as process:
        wait_until(lambda: waits_in_c(tmp_path / "reached"), process)
        process.send_signal(number)
        _, err = process.communicate(timeout=DEADLINE)
    (said,) = complaints(err)
    in_worker = case == "decode in a worker"
    assert process.returncode == (130 if in_worker else -signal.SIGKILL)
    how = "interrupted; " if in_worker else "interrupted, and killed because a library did not return; "
    assert said.startswith(f"rlds-beam: {how}")


@pytest.mark.parametrize("lock", ["held", "free"])
@pytest.mark.parametrize("case", COMMANDS)
def test_the_deadline_ends_it(stuck: Any, case: str, lock: str) -> None:
    arguments, options = stuck(case, lock, **{READ_SECONDS: "0.5"})
    code, _, err = run(arguments, **options)
    (said,) = complaints(err)
    assert said.startswith("rlds-beam: some file: A library has been reading it for 0.5 s, so it is probably damaged: ")
    assert code == (1 if case == "decode in a worker" else -signal.SIGALRM)
    assert ("same command to resume" in said) == (case in ("convert", "decode in a worker"))


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_damaged_droid_file(tmp_path: Path, damaged: int) -> None:
    """HDF5 walks a heap whose free space has no bytes, and never reaches its end: in the command, or in a worker."""
    pytest.importorskip("h5py")
    droid(tmp_path / "data", [4, 5])
    path = tmp_path / f"data/lab/success/{damaged}/trajectory.h5"
    content = bytearray(path.read_bytes())
    at = content.index(b"GCOL") + 16
    while (number := struct.unpack_from("<H", content, at)[0]) != 0:
        assert number < 100
        (size,) = struct.unpack_from("<Q", content, at + 8)
        at += 16 + (size + 7) // 8 * 8
    struct.pack_into("<Q", content, at + 8, 0)
    path.write_bytes(content)
    arguments = ["validate", tmp_path / "data", "--from=hdf5", "--workers=2"]
    code, _, err = run(arguments, env={**os.environ, READ_SECONDS: "2"})
    (said,) = complaints(err)
    assert said.startswith(f"rlds-beam: {path}: HDF5 has been reading it for 2 s, so it is probably damaged: leave")
    assert code in (1, -signal.SIGALRM)  # by the process that reads it


def test_a_read_that_takes_all_memory(tmp_path: Path) -> None:
    """The free list of a group's names is a circle: HDF5 follows it, and keeps each of its entries."""
    pytest.importorskip("h5py")
    droid(tmp_path / "data", [4, 4])
    file = sorted((tmp_path / "data").rglob("*.h5"))[-1]
    content = bytearray(file.read_bytes())
    heap = content.index(b"HEAP")
    struct.pack_into("<Q", content, heap + 16, 8)  # the first free entry
    (names,) = struct.unpack_from("<Q", content, heap + 24)
    struct.pack_into("<QQ", content, names + 8, 8, 16)  # the next entry is itself
    file.write_bytes(content)
    code, _, err = run(["validate", tmp_path / "data", "--from=hdf5", "--workers=1"])
    assert code == -signal.SIGALRM, err
    (said,) = complaints(err)
    assert "HDF5 has taken more than 4 GiB of memory for one read" in said
