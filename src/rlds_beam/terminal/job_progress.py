"""The progress of a job: a bar on a terminal, elsewhere a line every 30 seconds."""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, TextIO

from rlds_beam import worker_status
from rlds_beam.text import clock, count, format_size, raw_stream
from rlds_beam.worker_status import Done

Kind = Literal["auto", "plain", "none"]

EVERY_SECONDS = 30.0
"""Seconds before the first line and between two; a short job prints none."""

LOOK_SECONDS = 1.0
"""Seconds between two updates."""


class Progress:
    """Shows the progress of a job.

    Args:
      name: the job's name: `convert`.
      kind: `auto` shows a bar if the stream is a terminal, else prints plain lines; `none` shows nothing.
      ranges: the number of ranges of the plan; None for a job without ranges.
      finished: the number of ranges that an earlier run finished.
      bytes: the bytes of the input; None if unknown.
      poll: returns the progress if the runner does not report it.
      stream: the stream to print to; standard error by default, because standard output is for the result.
    """

    def __init__(
        self,
        name: str,
        kind: Kind = "auto",
        *,
        ranges: int | None = None,
        finished: int = 0,
        bytes: int | None = None,
        poll: Callable[[], Done] = Done,
        stream: TextIO | None = None,
    ):
        self._name, self._kind, self._poll = name, kind, poll
        self._ranges, self._finished, self._bytes = ranges, finished, bytes
        self._stream = sys.stderr if stream is None else stream
        dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown")
        self._overwrites = kind == "auto" and self._stream.isatty() and not dumb
        self._bar: Any = None
        self._began = self._printed = time.monotonic()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def show(
        self,
        look: Callable[[], Done | None] | None = None,
        place: Callable[[], str | None] = lambda: None,
        seconds: float = LOOK_SECONDS,
    ) -> Iterator[Progress]:
        """Shows the progress during the block; removes the bar after it, also after an error or Ctrl-C.

        Args:
          look: returns the progress, None if the runner does not report it; by default what this process counts.
          place: returns where to watch the job, a name with a URL, once a cluster or service has accepted it.
          seconds: the time between two looks.
        """
        before, ended = worker_status.done(), threading.Event()
        told = False

        def tell() -> None:
            nonlocal told
            if not told and (at := place()) is not None:
                told = True
                self.say(at)

        def follow() -> None:
            looked = time.monotonic()
            while not ended.wait(min(seconds, LOOK_SECONDS)):
                with contextlib.suppress(Exception):  # a cluster may not answer at the moment
                    tell()
                    if time.monotonic() - looked >= seconds:
                        looked = time.monotonic()
                        done = worker_status.done() - before if look is None else look()
                        if not ended.is_set():
                            self.tick(done)

        follower = threading.Thread(target=follow, name="progress", daemon=True)
        follower.start()
        try:
            yield self
        finally:
            ended.set()
            follower.join(LOOK_SECONDS)  # unless a cluster does not answer
            with contextlib.suppress(Exception):
                tell()  # a short job
            with self._lock, contextlib.suppress(OSError):
                if self._bar is not None:
                    self._bar.stop()
                self._bar, self._overwrites = None, False

    def say(self, text: str) -> None:
        """Prints a permanent line."""
        with self._lock:
            self._print(text)

    def tick(self, done: Done | None) -> None:
        """Updates the progress; None if the runner does not report it."""
        done = self._poll() if done is None else done
        with self._lock:
            if self._kind == "none":
                return
            if self._overwrites:
                self._draw(done)
            elif time.monotonic() - self._printed >= EVERY_SECONDS:
                elapsed = clock(time.monotonic() - self._began)
                self._print(f"{self._name} {', '.join([*self.facts(done), f'{elapsed} so far'])}")

    def facts(self, done: Done) -> list[str]:
        """What is known: `12 of 71 ranges`, `3 rejected`, `40,000 steps`, `640.0 MB of 3.2 GB`."""
        facts = []
        if self._ranges is not None and done.records + done.ranges:
            facts.append(f"{self._finished + done.ranges:,} of {count(self._ranges, 'range')}")
        elif done.scanned and not done.records:
            facts.append(f"looking for duplicates ({done.scanned:,} file segments)")
        elif not done.records:
            facts.append(f"planning, {format_size(done.framed)} scanned" if done.framed else "starting")
        if done.rejected:
            facts.append(f"{done.rejected:,} rejected")
        if done.steps:
            facts.append(count(done.steps, "step"))
        if done.bytes:
            whole = f" of {format_size(self._bytes or 0)}" if self._by_bytes(done) else ""
            facts.append(format_size(done.bytes) + whole)
        return facts

    def part(self, done: Done) -> tuple[int, int] | None:
        """The work done and its total, in one unit; None before the first record, or if the total is unknown."""
        if not done.records + done.ranges:
            return None
        if self._by_bytes(done):
            return done.bytes, self._bytes or 0
        return (self._finished + done.ranges, self._ranges) if self._ranges else None

    def _by_bytes(self, done: Done) -> bool:
        """Whether the files' size is the amount to read; it is not for compressed files."""
        return self._bytes is not None and 0 < done.bytes <= self._bytes

    def _print(self, text: str) -> None:
        if self._kind == "none":
            return
        self._printed = time.monotonic()
        line = f"rlds-beam: {text}"
        with contextlib.suppress(OSError):  # a full log or a closed terminal must not fail the job
            if self._bar is not None:
                self._bar.stop()  # removes it
            if not self._stream.isatty():
                line = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ} {line}"
            print(line, file=self._stream, flush=True)
            if self._bar is not None:
                self._bar.start()

    def _draw(self, done: Done) -> None:
        """Draws the bar again."""
        with contextlib.suppress(OSError):
            if self._bar is None:
                self._bar = _new_bar(self._stream)
                self._bar.add_task(self._name, total=None, facts="")
                self._bar.start()
            completed, total = self.part(done) or (0, None)
            self._bar.update(0, completed=completed, total=total, facts=", ".join(self.facts(done)), refresh=True)


def _new_bar(stream: TextIO) -> Any:
    """A line with a name, a bar, the percentage, facts, and the time that is left."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[facts]}", markup=False),
        console=Console(file=raw_stream(stream), highlight=False),
        auto_refresh=False,  # drawn on updates, without a thread
        transient=True,
        redirect_stdout=False,
    )
