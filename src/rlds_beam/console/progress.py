"""How far a job is: a live line on a terminal, a plain line now and then elsewhere."""

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
"""Until the first plain line, and from one to the next; a short job prints none."""

LOOK_SECONDS = 1.0
"""Between two looks at how far the planning of a job is."""

Kind = Literal["auto", "plain", "none"]


@dataclasses.dataclass(frozen=True)
class Total:
    """How much there is to do.

    Attributes:
      name: of the job: `convert`.
      ranges: of the whole plan; None for a job that has none.
      finished: of them by an earlier run.
      bytes: of the input; None where it is not known.
      episodes: to be written, by a job that reads none.
    """

    name: str
    ranges: int | None = None
    finished: int = 0
    bytes: int | None = None
    episodes: int | None = None


class Progress:
    """Prints how far a job is, to `stream`; what a runner tells (`runners.base.Watcher`).

    Args:
      total: how much there is to do.
      kind: `auto` is a live line where the stream is a terminal, else plain lines; `none` prints nothing.
      poll: finds out how far the job is, where its runner does not know.
      stream: standard error, by default: standard output is for the result.
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
        """While the block runs; the live line is gone after it."""
        try:
            yield self
        finally:
            with self._lock:
                self._kind = "none"
                if self._live is not None:
                    self._live.stop()

    def started(self, place: str) -> None:
        """A cluster or service has the job: says where to look at it."""
        self.say(place)

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        with self._lock:
            if self._live is not None:
                self._live.console.print(f"rlds-beam: {text}", soft_wrap=True, highlight=False, markup=False)
            elif self._kind != "none":
                self._print(text)

    def tick(self, done: Done | None) -> None:
        """So much is done by now; None where the runner does not know."""
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
        """How far the job is, in a line: `convert 12 of 71 parts, 40,000 steps, 21,000 steps/s, ...`."""
        if self._start is None and (done.records or done.ranges):
            # What was done before the first look took an unknown part of the time since the start of the command.
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
        """Whether the size of the files tells how much there is to read; of compressed ones it does not."""
        return self._total.bytes is not None and 0 < done.bytes <= self._total.bytes

    def _seconds_left(self, done: Done, now: float) -> float | None:
        """From what was done since the work began; None while that is too little."""
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
        with contextlib.suppress(OSError):  # a log that is full is no reason to fail
            print(f"rlds-beam: {line}", file=self._stream, flush=True)

    def _show(self, line: str) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            console = Console(file=self._stream, highlight=False)
            # Drawn when there is something new, not by a thread of its own.
            self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
            self._live.start()
            console.show_cursor(True)  # a command that is killed could not bring it back
        self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)


@contextlib.contextmanager
def in_this_process(total: Total, kind: Kind) -> Iterator[None]:
    """Shows how far the work of the block is, which this process does and counts (`worker_status.count`)."""
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
    """Shows how much of its input a job has gone through, while the block plans the job in this process."""
    return in_this_process(Total(name), kind)


def _at_the_start(done: Done) -> str:
    """What a job does before it reads episodes."""
    if done.scanned:
        return f"looking for duplicates ({done.scanned:,} pieces of files)"
    return f"planning, {format_size(done.framed)} of files looked at" if done.framed else "starting"


def _clock(seconds: float) -> str:
    """`0:05`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
