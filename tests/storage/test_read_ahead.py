"""Files in buckets are prefetched during sequential reads, and only then."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import DEADLINE

from rlds_beam.buckets import files

FIRST, LAST = 8, 64
CONTENT = bytes(range(256)) * 8


@pytest.fixture(autouse=True, scope="module")
def small_windows() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(files, "FIRST_WINDOW", FIRST)
        patches.setattr(files, "_LAST_WINDOW", LAST)
        yield


class Object:
    """An object in a bucket. Prefetches can be delayed until `go`; requests that start at `fails` fail."""

    def __init__(self, *, waits: bool = False) -> None:
        self.requests: list[tuple[int, int]] = []
        self.fails: int | None = None
        self.threads: list[threading.Thread] = []
        self.open, self.most = 0, 0
        self.go, self._changed = threading.Event(), threading.Condition()
        if not waits:
            self.go.set()

    def fetch(self, start: int, stop: int) -> bytes:
        with self._changed:
            self.requests.append((start, stop))
        if threading.current_thread() is not threading.main_thread():
            with self._changed:
                self.threads.append(threading.current_thread())
                self._changed.notify_all()
                self.open += 1
                self.most = max(self.most, self.open)
            assert self.go.wait(DEADLINE)
            with self._changed:
                self.open -= 1
        if start == self.fails:
            raise OSError(f"no bytes from {start}")
        return CONTENT[start:stop]

    def wait_for_threads(self, number: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.threads) >= number, DEADLINE)

    def end_threads(self) -> None:
        for thread in self.threads:
            thread.join(DEADLINE)
        assert not any(thread.is_alive() for thread in self.threads)


def test_each_byte_is_requested_once_and_windows_grow() -> None:
    there = Object()
    with files.reader(there.fetch, len(CONTENT)) as file:
        assert b"".join(iter(lambda: file.read(5), b"")) == CONTENT
    requests = sorted(there.requests)
    assert requests[0][0] == 0 and requests[-1][1] == len(CONTENT)
    assert all(one[1] == other[0] for one, other in itertools.pairwise(requests))
    assert [stop - start for start, stop in requests[:5]] == [16, 32, 64, 64, 64]
    assert len(there.threads) == len(requests) - 2 and there.most <= files._AHEAD
    there.end_threads()


def test_prefetching_is_never_further_ahead_than_the_bytes_read() -> None:
    there = Object()
    with files.reader(there.fetch, len(CONTENT)) as file:
        for position in range(0, 300, 2):
            file.read(2)
            needed = next(stop for start, stop in sorted(there.requests) if stop > position + 1)
            ahead = [stop - start for start, stop in sorted(there.requests) if start >= needed]
            assert len(ahead) <= files._AHEAD and sum(ahead[:-1]) < needed
    there.end_threads()


def test_small_random_reads_prefetch_nothing() -> None:
    there = Object()
    with files.reader(there.fetch, len(CONTENT)) as file:
        for position in (1000, 8, 500, 1500, 30, 2000):
            file.seek(position)
            assert file.read(4) == CONTENT[position : position + 4]
    assert len(there.requests) == 6 and not there.threads


def test_an_error_is_raised_by_the_read_that_needs_the_bytes() -> None:
    there = Object()
    there.fails = 48
    with files.reader(there.fetch, len(CONTENT)) as file:
        assert b"".join(file.read(4) for _ in range(12)) == CONTENT[:48]
        for _ in range(2):
            with pytest.raises(OSError, match="no bytes from 48"):
                file.read(2)
        there.fails = None
        assert file.read() == CONTENT[48:]
    there.end_threads()


def test_a_closed_file_waits_for_nothing_and_stops_prefetching() -> None:
    there = Object(waits=True)
    file = files.reader(there.fetch, len(CONTENT))
    file.read(20)
    file.close()  # a request is in flight
    there.wait_for_threads(1)
    requests = [*there.requests]
    assert len(there.threads) == 1 and there.threads[0].is_alive()
    there.go.set()
    there.end_threads()
    assert there.requests == requests


def test_jumps_do_not_pile_up_requests() -> None:
    there = Object(waits=True)
    with files.reader(there.fetch, len(CONTENT)) as file:
        for position in range(0, 2000, 100):
            file.seek(position)
            assert file.read(20) == CONTENT[position : position + 20]
        there.wait_for_threads(files._AHEAD)
        assert len(there.threads) == files._AHEAD
        there.go.set()
        there.end_threads()
        file.seek(0)
        assert file.read() == CONTENT
    there.end_threads()


STUCK = """
import sys, threading, time
from rlds_beam.buckets import files

def fetch(start, stop):
    if threading.current_thread() is not threading.main_thread():
        time.sleep(3600)
    return bytes(stop - start)

file = files.reader(fetch, 100 << 20)
file.read(300_000)
assert threading.active_count() > 1
"""


@pytest.mark.parametrize(("last", "code"), [("", 0), ("file.close()", 0), ("1 / 0", 1), ("sys.exit(3)", 3)])
def test_a_process_ends_while_a_request_is_in_flight(last: str, code: int) -> None:
    program = [sys.executable, "-c", STUCK + last]
    assert subprocess.run(program, check=False, timeout=DEADLINE, stderr=subprocess.DEVNULL).returncode == code


def test_ctrl_c_ends_a_read_that_waits() -> None:
    interrupt = "import os, signal\nthreading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()\nfile.read()"
    done = subprocess.run(
        [sys.executable, "-c", STUCK + interrupt], check=False, timeout=DEADLINE, capture_output=True, text=True
    )
    assert done.returncode != 0 and done.stderr.endswith("KeyboardInterrupt\n")


def test_a_forked_process_reads_without_the_threads_of_its_parent() -> None:
    """A reader detects a fork by the process id."""
    child = "import os\nos.getpid = lambda: -1\nassert file.read() == bytes((100 << 20) - 300_000)\n"
    subprocess.run([sys.executable, "-c", STUCK + child], check=True, timeout=DEADLINE)


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from(["seek", "skip", "end", "read"]), st.integers(-40, 400)), max_size=30),
    st.integers(0, len(CONTENT)),
    st.integers(0, 2 * FIRST),
)
def test_any_seeks_and_reads_give_the_bytes_of_the_object(steps: list[tuple[str, int]], size: int, known: int) -> None:
    there, wanted = Object(), io.BytesIO(CONTENT[:size])
    with files.reader(there.fetch, size, CONTENT[: min(known, size)]) as file:
        for kind, number in steps:
            if kind == "read":
                count = max(-1, number)
                assert file.read(count) == wanted.read(count)
            elif kind == "seek":
                assert file.seek(max(0, number)) == wanted.seek(max(0, number))
            else:
                whence, offset = (io.SEEK_CUR, max(number, -wanted.tell())) if kind == "skip" else (io.SEEK_END, 0)
                assert file.seek(offset, whence) == wanted.seek(offset, whence)
            assert file.tell() == wanted.tell()
    there.end_threads()
