"""The progress of a job: a live line on a terminal, or a plain line now and then."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, TextIO

from rlds_beam import worker_status
from rlds_beam.text import count, format_size
from rlds_beam.worker_status import Done

EVERY_SECONDS = 30.0
"""Seconds before the first plain line and between two; a short job prints none."""

LOOK_SECONDS = 1.0
"""Seconds between two updates while a job is planned."""

Kind = Literal["auto", "plain", "none"]


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
    """Prints the progress that a runner reports (a `runners.base.Watcher`).

    Args:
      total: the total amount of work.
      kind: `auto` prints a live line if the stream is a terminal, else plain lines; `none` prints nothing.
      poll: returns the progress if the runner does not report it.
      stream: the stream to print to; standard error by default, because standard output is for the result.
    """

    def __init__(
        self,
        total: Total,
        kind: Kind = "auto",
        poll: Callable[[], Done] = Done,
        stream: TextIO | None = None,
    ):
        self._total, self._poll = total, poll
        self._stream = sys.stderr if stream is None else stream
        self._kind: Kind | Literal["live"] = "live" if kind == "auto" and self._stream.isatty() else kind
        self._began = self._printed = time.monotonic()
        self._start: tuple[float, Done] | None = None
        self._live: Any = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def shown(self) -> Iterator[Progress]:
        """Shows the progress during the block; removes the live line after it."""
        try:
            yield self
        finally:
            with self._lock:
                self._kind = "none"
                if self._live is not None:
                    self._live.stop()

    def started(self, place: str) -> None:
        """Prints where to watch the job that a cluster or service accepted."""
        self.say(place)

    def say(self, text: str) -> None:
        """Prints a permanent line."""
        with self._lock:
            if self._live is not None:
                self._live.console.print(f"rlds-beam: {text}", soft_wrap=True, highlight=False, markup=False)
            elif self._kind != "none":
                self._print(text)

    def tick(self, done: Done | None) -> None:
        """Updates the progress; `done` is None if the runner does not report it."""
        now = time.monotonic()
        done = self._poll() if done is None else done
        with self._lock:
            if self._kind == "live":
                self._show(self.line(done, now))
            elif self._kind != "none":
                line = self.line(done, now)
                if now - self._printed >= EVERY_SECONDS:
                    self._printed = now
                    self._print(line)

    def line(self, done: Done, now: float) -> str:
        """The progress as a line: `convert 12 of 71 parts, 40,000 steps, 21,000 steps/s, ...`."""
        if self._start is None and (done.records or done.ranges):
            # It is unknown how long the work before the first update took, so the rate starts here.
            self._start = (now, done) if done.records else (self._began, Done())
        total, parts = self._total, []
        if total.ranges is not None and done.records + done.ranges:
            parts.append(f"{total.finished + done.ranges:,} of {count(total.ranges, 'part')}")
        elif total.episodes is not None:
            parts.append(f"{done.records:,} of {count(total.episodes, 'episode')}")
        elif not done.records:
            parts.append(_at_the_start(done))
        if done.steps:
            parts.append(count(done.steps, "step"))
        if self._start is not None and now - self._start[0] >= 1 and done.steps > self._start[1].steps:
            parts.append(f"{(done.steps - self._start[1].steps) / (now - self._start[0]):,.0f} steps/s")
        if done.bytes:
            of_total = f" of {format_size(total.bytes or 0)}" if self._by_bytes(done) else ""
            parts.append(format_size(done.bytes) + of_total)
        if done.rejected:
            parts.append(f"{done.rejected:,} rejected")
        left = self._seconds_left(done, now)
        parts.append(f"{_clock(now - self._began)} so far" if left is None else f"{_clock(left)} left")
        return f"{total.name} " + ", ".join(parts)

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

    def _print(self, line: str) -> None:
        with contextlib.suppress(OSError):  # a full log must not fail the job
            print(f"rlds-beam: {line}", file=self._stream, flush=True)

    def _show(self, line: str) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            console = Console(file=self._stream, highlight=False)
            # Drawn on updates, without a refresh thread.
            self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
            self._live.start()
            console.show_cursor(True)  # a killed command could not show it again
        self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)


@contextlib.contextmanager
def in_this_process(total: Total, kind: Kind) -> Iterator[None]:
    """Shows the progress of work that this process does and counts in the block (`worker_status.count`)."""
    before, ended = worker_status.done(), threading.Event()

    def tick(progress: Progress) -> None:
        while not ended.wait(LOOK_SECONDS):
            progress.tick(worker_status.done() - before)

    with Progress(total, kind).shown() as progress:
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


def _clock(seconds: float) -> str:
    """`0:05`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
