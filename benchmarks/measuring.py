"""Timed commands and tables. Imports nothing heavy: a child's peak memory starts with its parent's."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "bench_data"
COMMAND = Path(sys.executable).parent / "rlds-beam"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much to measure: `quick` only shows that everything works."""

    repeats: int
    quick: bool

    def of(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The result of one process.

    Attributes:
      content: the JSON it printed.
      rate: steps per second at work.
      working: seconds at work.
      start_up: the remaining seconds.
      peak_mb: peak resident memory of the process.
      output: its output directory.
    """

    content: dict[str, Any]
    rate: float = 0.0
    working: float = 0.0
    start_up: float = 0.0
    peak_mb: float = 0.0
    output: Path = DATA


@dataclasses.dataclass(frozen=True)
class Figure:
    """A line of the summary. With a target or a claim, also a row of `docs/figures.json` (`figures.py`).

    Attributes:
      name: identifies the figure.
      measured: a ratio, or a number of `unit`.
      target: without one, the figure is only printed.
      higher_is_better: whether the target is a minimum.
      what: the row's claim; by default the name up to its last colon.
      against: the other side of the comparison; by default the rest of the name.
      peer: the short name of the other program; the figure is then also a bar of the chart.
      front: a label; the figure is then also in the picture of the front page.
      unit: the unit of `measured`; empty for a ratio.
      runs: the value of each run, if it was measured several times.
    """

    name: str
    measured: float
    target: float | None = None
    higher_is_better: bool = True
    what: str = ""
    against: str = ""
    peer: str = ""
    front: str = ""
    unit: str = ""
    runs: tuple[float, ...] = ()

    @property
    def target_text(self) -> str:
        return "" if self.target is None else f"{'>=' if self.higher_is_better else '<='} {self.target:g}"

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        met = self.measured >= self.target if self.higher_is_better else self.measured <= self.target
        return "met" if met else "MISSED"


def at_least(name: str, measured: float, target: float | None, **row: Any) -> Figure:
    """A figure that should not be lower than its target; `row`: the other fields."""
    return Figure(name, measured, target, **row)


def below(name: str, measured: float, target: float | None, **row: Any) -> Figure:
    """A figure that should not be higher than its target."""
    return Figure(name, measured, target, higher_is_better=False, **row)


def ratios(ours: Iterable[Measurement | float], theirs: Iterable[Measurement | float]) -> tuple[float, ...]:
    """The ratio of each pair of runs, by their rates; runs alternate, so both of a pair had about the same machine."""
    return tuple(_rate(a) / _rate(b) for a, b in zip(ours, theirs, strict=False))


def _rate(run: Measurement | float) -> float:
    return run.rate if isinstance(run, Measurement) else run


def best(runs: Iterable[Measurement]) -> Measurement:
    return max(runs, key=lambda run: run.rate)


def command(arguments: list[Any]) -> tuple[str, float]:
    """A command's standard output and its peak memory in MB. Ends the benchmark if the command fails.

    Modules are compiled once, as after an installation, not at each start.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        # Not in the project's root, so that the installed package runs.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        process = subprocess.Popen([str(a) for a in arguments], stdout=out, stderr=err, cwd=DATA, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode:
            text = err.read() or out.read()
            sys.exit(f"{' '.join(process.args)}\nended with {process.returncode}:\n{text}")
        return out.read(), usage.ru_maxrss / 1024


def script(name: str, *arguments: Any) -> Measurement:
    """Runs a script of this directory that prints JSON."""
    content = json.loads(command([sys.executable, HERE / name, *arguments])[0].splitlines()[-1])
    rate, working, start_up = (content.get(name, 0.0) for name in ("steps_per_second", "seconds", "start_up"))
    return Measurement(content, rate, working, start_up)


def make(kind: str, steps: int, files: int = 1) -> Path:
    """The directory of a dataset, generated if needed."""
    return Path(command([sys.executable, HERE / "data.py", kind, steps, files, "--into", DATA])[0].strip())


def convert(data: Path, *flags: str) -> Measurement:
    """`rlds-beam convert` into an empty directory."""
    output = DATA / "converted"
    shutil.rmtree(output, ignore_errors=True)
    printed, peak = command([COMMAND, "convert", data, output, "--json", *flags])
    content = json.loads(printed)
    working = content["working_seconds"]
    return Measurement(content, content["steps_per_second"], working, content["seconds"] - working, peak, output)


def table(title: str, head: list[str], *rows: list[str]) -> None:
    """Prints a table; all columns but the first are numbers."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    print(f"\n{title}")
    for row in (head, *rows):
        first, *others = row
        cells = [first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(others, widths[1:], strict=True))]
        print("  " + "  ".join(cells).rstrip(), flush=True)
