"""The progress of a job: how much is done, how fast, and how long the rest takes."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from rlds_beam import worker_status
from rlds_beam.terminal.displays import Fact, Kind, Nothing, Status, display_for
from rlds_beam.text import clock, count, format_size
from rlds_beam.worker_status import Done

LOOK_SECONDS = 1.0
"""Seconds between two updates while a job is planned."""


@dataclasses.dataclass(frozen=True)
class Total:
    """The total amount of work.

    Attributes:
      name: the job's name: `convert`.
      ranges: the number of ranges of the plan; None for a job without ranges.
      finished: the number of ranges that an earlier run finished.
      bytes: the bytes of the input; None if unknown.
      episodes: the number of episodes to write, for a job that reads none.
    """

    name: str
    ranges: int | None = None
    finished: int = 0
    bytes: int | None = None
    episodes: int | None = None


class Progress:
    """Shows the progress that a runner reports (a `runners.base.Watcher`).

    Args:
      total: the total amount of work.
      kind: `auto` shows a bar if the stream is a terminal, else prints plain lines; `none` shows nothing.
      poll: returns the progress if the runner does not report it.
      stream: the stream to print to; standard error by default.
    """

    def __init__(
        self,
        total: Total,
        kind: Kind = "auto",
        poll: Callable[[], Done] = Done,
        stream: TextIO | None = None,
    ):
        self._total, self._poll = total, poll
        self._display = display_for(kind, stream)
        self._began = time.monotonic()
        self._start: tuple[float, Done] | None = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def show(self) -> Iterator[Progress]:
        """Shows the progress during the block; removes the bar after it."""
        try:
            yield self
        finally:
            with self._lock:
                display, self._display = self._display, Nothing()
                display.close()

    def started(self, place: str) -> None:
        """Prints where to watch the job that a cluster or service accepted."""
        self.say(place)

    def say(self, text: str) -> None:
        """Prints a permanent line."""
        with self._lock:
            self._display.say(text)

    def tick(self, done: Done | None) -> None:
        """Updates the progress; `done` is None if the runner does not report it."""
        now = time.monotonic()
        done = self._poll() if done is None else done
        with self._lock:
            self._display.update(self.status(done, now))

    def status(self, done: Done, now: float) -> Status:
        """The status at a moment, from what was done until then."""
        if self._start is None and (done.records or done.ranges):
            # It is unknown how long the work before the first update took, so the rate starts here.
            self._start = (now, done) if done.records else (self._began, Done())
        total, facts = self._total, []
        if total.ranges is not None and done.records + done.ranges:
            facts.append(Fact(f"{total.finished + done.ranges:,} of {count(total.ranges, 'range')}", 4))
        elif total.episodes is not None:
            facts.append(Fact(f"{done.records:,} of {count(total.episodes, 'episode')}", 4))
        elif not done.records:
            facts.append(Fact(_at_the_start(done)))
        if done.steps:
            facts.append(Fact(count(done.steps, "step"), 5))
        if self._start is not None and now - self._start[0] >= 1 and done.steps > self._start[1].steps:
            facts.append(Fact(f"{(done.steps - self._start[1].steps) / (now - self._start[0]):,.0f} steps/s", 3))
        if done.bytes:
            of_total = f" of {format_size(total.bytes or 0)}" if self._by_bytes(done) else ""
            facts.append(Fact(format_size(done.bytes) + of_total, 6))
        if done.rejected:
            facts.append(Fact(f"{done.rejected:,} rejected", 2, "warning"))
        left = self._seconds_left(done, now)
        facts.append(Fact(f"{clock(now - self._began)} so far" if left is None else f"{clock(left)} left", 1, "faint"))
        return Status(total.name, tuple(facts), self._fraction(done), self._numbers(done, now, left))

    def _numbers(self, done: Done, now: float, left: float | None) -> dict[str, Any]:
        """The progress as numbers, the same for each job; None if unknown."""
        total = self._total
        ranges = None if total.ranges is None else total.finished + done.ranges
        start, first = self._start or (now, done)
        per_second = (done.steps - first.steps) / (now - start) if now - start >= 1 else None
        return {
            "phase": self._phase(done, ranges),
            "ranges": ranges,
            "ranges_total": total.ranges,
            "episodes": done.records,
            "episodes_total": total.episodes,
            "steps": done.steps,
            "rejected": done.rejected,
            "bytes": done.bytes,
            "bytes_total": total.bytes,
            "steps_per_second": None if per_second is None else round(per_second, 1),
            "seconds": round(now - self._began, 1),
            "seconds_left": None if left is None else round(left, 1),
        }

    def _phase(self, done: Done, ranges: int | None) -> str:
        """The phase of the job: planning, looking for duplicates, starting, running, or completing."""
        if done.records + done.ranges:
            return "completing" if ranges is not None and ranges == self._total.ranges else "running"
        known = _at_the_start(done).partition(",")[0].partition(" (")[0]
        return "planning" if known == "starting" and self._total == Total(self._total.name) else known

    def _fraction(self, done: Done) -> float | None:
        """The finished part of the work; None before the first record, or if the amount is unknown."""
        total = self._total
        if not done.records + done.ranges:
            return None
        if total.episodes is not None:
            part, whole = done.records, total.episodes
        elif self._by_bytes(done):
            part, whole = done.bytes, total.bytes or 0
        else:
            part, whole = total.finished + done.ranges, total.ranges or 0
        return min(part / whole, 1.0) if whole else None

    def _by_bytes(self, done: Done) -> bool:
        """Whether the files' size is the amount to read; it is not for compressed files."""
        return self._total.bytes is not None and 0 < done.bytes <= self._total.bytes

    def _seconds_left(self, done: Done, now: float) -> float | None:
        """An estimate from the work done so far; None until there is enough."""
        if self._start is None or now - self._start[0] < 1:
            return None
        began, first = self._start
        if self._total.episodes is not None:
            part, left = done.records - first.records, self._total.episodes - done.records
        elif self._by_bytes(done):
            part, left = done.bytes - first.bytes, (self._total.bytes or 0) - done.bytes
        else:
            part = done.ranges - first.ranges
            left = (self._total.ranges or 0) - self._total.finished - done.ranges
        return (now - began) * left / part if part > 0 and left >= 0 else None


@contextlib.contextmanager
def in_this_process(total: Total, kind: Kind) -> Iterator[None]:
    """Shows the progress of work that this process does and counts in the block (`worker_status.count`)."""
    before, ended = worker_status.done(), threading.Event()

    def tick(progress: Progress) -> None:
        while not ended.wait(LOOK_SECONDS):
            progress.tick(worker_status.done() - before)

    with Progress(total, kind).show() as progress:
        threading.Thread(target=tick, args=(progress,), name="planning", daemon=True).start()
        try:
            yield
        finally:
            ended.set()


def planning(name: str, kind: Kind) -> contextlib.AbstractContextManager[None]:
    """Shows how much input was read while the block plans a job in this process."""
    return in_this_process(Total(name), kind)


def _at_the_start(done: Done) -> str:
    """The text before the first episode is read."""
    if done.scanned:
        return f"looking for duplicates ({done.scanned:,} file segments)"
    return f"planning, {format_size(done.framed)} scanned" if done.framed else "starting"
