"""Displays of progress: a bar on a terminal, plain lines in a log, or nowhere."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TextIO

from rlds_beam.text import clock, escape_controls, raw_stream

if TYPE_CHECKING:
    from rich.text import Text

EVERY_SECONDS = 25.0
"""Seconds before the first plain line and between two; a short job prints none."""

MAX_SILENT_SECONDS = 30.0
"""Seconds after which `heartbeat` prints a line, for work that reports no progress."""

JSON_SECONDS = 5.0
"""Seconds between two lines of JSON."""

MAX_BAR_COLUMNS, MIN_BAR_COLUMNS = 40, 8
"""Columns of the bar; it is left out if the line has fewer to spare."""

Kind = Literal["auto", "plain", "json", "none"]
Tone = Literal["", "done", "warning", "faint"]


class Fact(NamedTuple):
    """A number in the line of progress.

    Attributes:
      text: `12 of 71 ranges`.
      rank: the order in which facts leave a line that is too narrow, the highest first.
      tone: the kind of color that it has on a terminal.
    """

    text: str
    rank: int = 0
    tone: Tone = ""


@dataclasses.dataclass(frozen=True)
class Status:
    """The progress of a job at one moment.

    Attributes:
      name: the job's name: `convert`.
      facts: what is known, in the order in which it is shown.
      fraction: the finished part of the work, 0 to 1; None if unknown.
      numbers: the same as numbers, for JSON.
    """

    name: str
    facts: tuple[Fact, ...]
    fraction: float | None = None
    numbers: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def line(self) -> str:
        """The status as plain text: `convert 12 of 71 ranges, 40,000 steps, 21,000 steps/s, ...`."""
        return f"{self.name} " + ", ".join(fact.text for fact in self.facts)


class Display(Protocol):
    """Shows the status of a job. Calls are never concurrent."""

    def update(self, status: Status) -> None:
        """Shows a new status."""

    def say(self, text: str) -> None:
        """Prints a permanent line."""

    def close(self) -> None:
        """Removes what should not stay; nothing follows. Called also after an error or Ctrl-C."""


def display_for(kind: Kind, stream: TextIO | None = None) -> Display:
    """The display of a kind of progress.

    Args:
      kind: `auto` is a bar if the stream is a terminal that can overwrite a line, else plain lines.
      stream: the stream to print to; standard error by default, because standard output is for the result.
    """
    stream = sys.stderr if stream is None else stream
    if kind == "none":
        return Nothing()
    if kind == "json":
        return JsonLines(stream)
    if kind == "auto" and stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown"):
        return Bar(raw_stream(stream))
    return PlainLines(stream)


class Nothing:
    """Shows nothing."""

    def update(self, status: Status) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


_printed: float | None = None
"""When the running command, whose jobs share a log, began or printed its last line; None if there is no command."""


def now() -> str:
    """The time as ISO 8601 in UTC: `2026-11-25T18:07:38Z`."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class PlainLines:
    """Prints a line every `EVERY_SECONDS`, for logs; with the time, except on a terminal."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._began = time.monotonic()

    def update(self, status: Status) -> None:
        """Prints the status if the last line is old enough."""
        if time.monotonic() - (self._began if _printed is None else _printed) >= EVERY_SECONDS:
            self.say(status.line())

    def say(self, text: str) -> None:
        """Prints a line."""
        self._print(f"rlds-beam: {text}" if self._stream.isatty() else f"{now()} rlds-beam: {text}")

    def close(self) -> None: ...

    def _print(self, line: str) -> None:
        global _printed
        self._began = time.monotonic()
        _printed = None if _printed is None else self._began
        with contextlib.suppress(OSError):  # a full log must not fail the job
            print(escape_controls(line), file=self._stream, flush=True)


class JsonLines(PlainLines):
    """Prints a line of JSON for the first status of a job, every `JSON_SECONDS`, and for the last status."""

    def __init__(self, stream: TextIO):
        super().__init__(stream)
        self._at = -JSON_SECONDS
        self._last: Status | None = None

    def update(self, status: Status) -> None:
        """Prints the status if the last line is old enough."""
        self._last = status
        if time.monotonic() - self._at >= JSON_SECONDS:
            self._flush()

    def say(self, text: str) -> None:
        """Prints a message."""
        self._print(json.dumps({"time": now(), "message": escape_controls(text)}))

    def close(self) -> None:
        """Prints the last status."""
        self._flush()

    def _flush(self) -> None:
        if self._last is not None:
            self._at = time.monotonic()
            self._print(json.dumps({"time": now(), "command": self._last.name, **self._last.numbers}))
            self._last = None


@contextlib.contextmanager
def heartbeat(name: str, kind: Kind) -> Iterator[None]:
    """Prints a line if the block printed no progress for `MAX_SILENT_SECONDS`; nothing on a terminal with a bar.

    Args:
      name: the command.
      kind: the kind of progress.
    """
    global _printed
    display, ended = display_for(kind), threading.Event()
    began = _printed = time.monotonic()

    def beat() -> None:
        while not ended.wait(min(1.0, MAX_SILENT_SECONDS)):
            if time.monotonic() - (_printed or began) >= MAX_SILENT_SECONDS:
                seconds = round(time.monotonic() - began)
                working = Fact(f"working, {clock(seconds)} so far")
                display.update(Status(name, (working,), None, {"phase": "working", "seconds": seconds}))

    if isinstance(display, PlainLines):
        with contextlib.suppress(RuntimeError):  # no more threads: there are no lines
            threading.Thread(target=beat, name="heartbeat", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        _printed = None


class Bar:
    """A line that is overwritten: name, bar, percent, and the facts that fit. Colors respect `NO_COLOR`."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._live: Any = None

    def update(self, status: Status) -> None:
        """Draws the line again."""
        with contextlib.suppress(OSError):  # the terminal was closed
            live = self._started()
            ascii_only = not live.console.encoding.startswith("utf")
            live.update(bar_line(status, live.console.width - 1, ascii_only), refresh=True)

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        if self._live is None:
            PlainLines(self._stream).say(text)
        else:
            with contextlib.suppress(OSError):
                line = f"rlds-beam: {escape_controls(text)}"
                self._live.console.print(line, soft_wrap=True, highlight=False, markup=False)

    def close(self) -> None:
        """Clears the line."""
        if self._live is not None:
            with contextlib.suppress(OSError):
                self._live.stop()

    def _started(self) -> Any:
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._stream, highlight=False)
            # Drawn on updates, without a refresh thread.
            self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
            self._live.start()
            console.show_cursor(True)  # a killed command could not show it again
        return self._live


_STYLES = {"": "", "done": "green", "warning": "yellow", "faint": "dim"}


def bar_line(status: Status, width: int, ascii_only: bool = False) -> Text:
    """A status in one line of at most `width` columns.

    `convert ━━━━━━━━━━━━────── 40%  40 of 100 ranges, 400,000 steps, 3 rejected, 2:40 left`: the bar gives way to the
    facts until it has `MIN_BAR_COLUMNS` columns; then facts leave the line, those of the highest rank first.
    """
    from rich.text import Text

    percent = "" if status.fraction is None else f" {status.fraction:4.0%}"
    facts = list(status.facts)
    least = len(status.name) + (MIN_BAR_COLUMNS + 1 + len(percent) if percent else 0)
    while facts and least + len(_join(facts)) > width:
        facts.remove(max(facts, key=lambda fact: fact.rank))
    line = Text(status.name, style="bold", no_wrap=True, overflow="ellipsis", end="")
    if status.fraction is not None:
        spare = width - len(status.name) - 1 - len(percent) - len(_join(facts))
        if spare >= MIN_BAR_COLUMNS:
            line.append(" ").append_text(_bar(status.fraction, min(spare, MAX_BAR_COLUMNS), ascii_only))
        line.append(percent, style="not bold")
    for number, fact in enumerate(facts):
        line.append(", " if number else "  ", style="not bold").append(
            fact.text, style=f"not bold {_STYLES[fact.tone]}"
        )
    line.truncate(width)
    return line


def _join(facts: list[Fact]) -> str:
    return "  " + ", ".join(fact.text for fact in facts) if facts else ""


def _bar(fraction: float, width: int, ascii_only: bool) -> Text:
    """A bar whose finished part also differs without colors."""
    from rich.text import Text

    finished = int(width * min(max(fraction, 0.0), 1.0))
    done, left = ("=", "-") if ascii_only else ("━", "─")
    return Text.assemble((done * finished, "not bold green"), (left * (width - finished), "not bold dim"))
