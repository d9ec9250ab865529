"""Marks of reads, and what a watcher concludes from them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import DEADLINE

from rlds_beam import watchdog
from rlds_beam.watchdog import marks, watcher
from rlds_beam.watchdog.watcher import READ_SECONDS, Watch


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Watch, Clock]]:
    """A watch of this process."""
    clock = Clock()
    monkeypatch.setattr(marks, "_memory", None)
    monkeypatch.setattr(marks, "_thread", threading.local())
    monkeypatch.setattr(watcher, "time", clock)
    with open(tmp_path / "marks", "w+b") as file:
        watchdog.keep_marks(file.fileno())
        yield Watch(file.fileno(), os.getpid()), clock


def stuck_after(watched: tuple[Watch, Clock], seconds: int) -> str | None:
    """What the watch says after looking every second."""
    watch, clock = watched
    said = None
    for _ in range(seconds + 1):
        said = watch.stuck()
        clock.now += 1
    return said


def test_a_read_that_does_not_end(watched: tuple[Watch, Clock]) -> None:
    assert stuck_after(watched, 100) is None
    with watchdog.reading("a.h5", "HDF5"):
        assert stuck_after(watched, 60) is None
        assert (stuck_after(watched, 2) or "").startswith("a.h5: HDF5 has been reading it for 60 s, so it is probably")
    assert stuck_after(watched, 100) is None


def test_progress(watched: tuple[Watch, Clock]) -> None:
    """Reads inside a read, and other reads, are progress; waiting for a store is no read."""
    with watchdog.reading("a.h5", "HDF5"):
        for _ in range(3):
            assert stuck_after(watched, 50) is None
            with watchdog.reading("b.mp4", "FFmpeg"):
                assert stuck_after(watched, 50) is None
        with watchdog.waiting():
            assert stuck_after(watched, 100) is None
        assert "a.h5: HDF5" in (stuck_after(watched, 70) or "")
    for _ in range(3):
        with watchdog.reading("b.mp4", "FFmpeg"):
            assert stuck_after(watched, 50) is None
    with watchdog.waiting():
        assert stuck_after(watched, 100) is None


def test_a_thread_that_is_stuck_while_another_reads(watched: tuple[Watch, Clock]) -> None:
    reached, end = threading.Event(), threading.Event()

    def read() -> None:
        with watchdog.reading("a.h5", "HDF5"):
            reached.set()
            end.wait(DEADLINE)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        assert reached.wait(DEADLINE)
        said = None
        for _ in range(70):
            with watchdog.reading("b.mp4", "FFmpeg"):
                said = stuck_after(watched, 0)
        assert "a.h5: HDF5" in (said or "")
    finally:
        end.set()
        thread.join(DEADLINE)


def test_a_stopped_watcher_counts_no_time(watched: tuple[Watch, Clock]) -> None:
    """Ctrl-Z stops a command together with its watchdog."""
    watch, clock = watched
    with watchdog.reading("a.h5", "HDF5"):
        assert stuck_after(watched, 50) is None
        clock.now += 10_000
        assert watch.stuck() is None


@pytest.mark.parametrize(("setting", "seconds"), [("5", 5), ("0.5", 0.5), ("x", 60)])
def test_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, seconds: float) -> None:
    monkeypatch.setenv(READ_SECONDS, setting)
    (tmp_path / "marks").write_bytes(bytes(1 << 16))
    with open(tmp_path / "marks", "rb") as file:
        assert Watch(file.fileno(), os.getpid())._limit == seconds


def test_without_a_watcher_nothing_is_marked() -> None:
    assert marks._memory is None
    with watchdog.reading("a.h5", "HDF5"), watchdog.waiting():
        pass


def test_a_handler_sets_an_event_that_the_interrupted_code_waits_for() -> None:
    """`threading.Event.set` would wait for the interrupted `wait`, forever, in about one of a thousand."""
    before = signal.getsignal(signal.SIGVTALRM)
    try:
        for i in range(500):
            event = watchdog.SignalEvent()
            signal.signal(signal.SIGVTALRM, lambda *_, event=event: event.set())
            signal.setitimer(signal.ITIMER_VIRTUAL, 1e-4 * (1 + i % 5))
            while not event.wait(0):
                pass
            assert event.is_set()
    finally:
        signal.signal(signal.SIGVTALRM, before)


def test_a_read_that_takes_memory(watched: tuple[Watch, Clock], monkeypatch: pytest.MonkeyPatch) -> None:
    watch, _ = watched
    used = [0]
    monkeypatch.setattr(watch, "_measure_memory", lambda: used[0])
    for library in ("HDF5", "FFmpeg"):
        with watchdog.reading("a.h5", library):  # each read counts on its own
            assert stuck_after(watched, 3) is None
            used[0] += 3 << 30
            assert stuck_after(watched, 3) is None
    with watchdog.reading("a.h5", "HDF5"):
        assert stuck_after(watched, 3) is None
        used[0] += 5 << 30
        said = stuck_after(watched, 3) or ""
        assert said.startswith("a.h5: HDF5 has taken more than 4 GiB of memory for one read, so it is probably damaged")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="the system does not say it")
def test_the_memory_of_a_process(watched: tuple[Watch, Clock]) -> None:
    watch, _ = watched
    before = watch._measure_memory()
    kept = bytearray(os.urandom(1 << 20) * 100)
    assert watch._measure_memory() > before + len(kept) // 2
