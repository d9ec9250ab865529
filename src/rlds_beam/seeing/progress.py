"""How far a job is: a live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, TextIO

from rlds_beam.at_work import Done
from rlds_beam.wording import count, format_size

EVERY_SECONDS = 30.0
"""Until the first plain line, and from one to the next; a short job prints none."""

Kind = Literal["auto", "plain", "none"]


@dataclasses.dataclass(frozen=True)
class Total:
    """How much there is to do.

    Attributes:
      name: of the job: `convert`.
      ranges: of the whole plan; None for a job that does not work by ranges.
      finished: of them by an earlier run.
      bytes: of the input; None where it is not known.
    """

    name: str
    ranges: int | None = None
    finished: int = 0
    bytes: int | None = None


class Progress:
    """Prints how far a job is, to `stream`; what a runner tells (`runners.base.Watcher`).

    Args:
      total: how much there is to do.
      kind: `auto` is a live line where the stream is a terminal, else plain lines; `none` prints nothing.
      look: finds out how far the job is, where its runner does not know.
      stream: standard error, by default: standard output is for the result.
    """

    def __init__(
        self,
        total: Total,
        kind: Kind = "auto",
        look: Callable[[], Done] = Done,
        stream: TextIO | None = None,
    ):
        self._total, self._look = total, look
        self._stream = sys.stderr if stream is None else stream
        self._kind: Kind | Literal["live"] = "live" if kind == "auto" and self._stream.isatty() else kind
        self._began = self._printed = time.monotonic()
        self._working_since: float | None = None
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
        with self._lock:
            if self._live is not None:
                self._live.console.print(f"rlds-beam: {place}", soft_wrap=True, highlight=False, markup=False)
            elif self._kind != "none":
                self._print(place)

    def tick(self, done: Done | None) -> None:
        """So much is done by now; None where the runner does not know."""
        now = time.monotonic()
        done = self._look() if done is None else done
        with self._lock:
            if done.records and self._working_since is None:
                self._working_since = now
            elif done.ranges and self._working_since is None:
                self._working_since = self._began
            if self._kind == "live":
                self._show(self.line(done, now))
            elif self._kind != "none" and now - self._printed >= EVERY_SECONDS:
                self._printed = now
                self._print(self.line(done, now))

    def line(self, done: Done, now: float) -> str:
        """How far the job is, in a line: `convert 12 of 71 ranges, 40,000 steps, 21,000 steps/s, ...`."""
        total, parts = self._total, []
        if total.ranges is not None and done.records + done.ranges:
            parts.append(f"{total.finished + done.ranges:,} of {count(total.ranges, 'range')}")
        elif not done.records:
            parts.append(f"looking for duplicates ({done.scanned:,} pieces of files)" if done.scanned else "starting")
        if done.steps:
            parts.append(count(done.steps, "step"))
        if self._working_since is not None and now > self._working_since and done.steps:
            parts.append(f"{done.steps / (now - self._working_since):,.0f} steps/s")
        if done.bytes:
            parts.append(format_size(done.bytes) + ("" if total.bytes is None else f" of {format_size(total.bytes)}"))
        if done.rejected:
            parts.append(f"{done.rejected:,} rejected")
        left = self._seconds_left(done, now)
        parts.append(f"{_clock(now - self._began)} so far" if left is None else f"{_clock(left)} left")
        return f"{total.name} " + ", ".join(parts)

    def _seconds_left(self, done: Done, now: float) -> float | None:
        """From the ranges, or else the bytes, that were done since the work began; None while there are too few."""
        if self._working_since is None:
            return None
        if self._total.ranges is not None:
            part, whole = float(done.ranges), float(self._total.ranges - self._total.finished)
        else:
            part, whole = float(done.bytes), float(self._total.bytes or 0)
        elapsed = now - self._working_since
        if not 0 < part <= whole or elapsed < 1:
            return None
        return elapsed * (whole - part) / part

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


def _clock(seconds: float) -> str:
    """`0:05`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
