"""Counts the rooms that a job walks through before it runs: python tools/rooms.py DATASET

A room is a package of the table in tests/project/test_layers.py. A climb is a call, from one module to another, into a
room that the table does not put below: a callback, or a method of a class that a higher room defined.
"""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "project"), str(ROOT / "tests" / "support")]


class Walk:
    """Records which of our modules call which, while it is entered."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.calls: set[tuple[str, str]] = set()

    def __enter__(self) -> Walk:
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, value: object) -> None:
        name = str(frame.f_globals.get("__name__"))
        if event != "call" or not name.startswith("rlds_beam.") or frame.f_code.co_name == "<module>":
            return
        self.modules.add(name)
        caller = frame.f_back
        while caller is not None and not str(caller.f_globals.get("__name__")).startswith("rlds_beam."):
            caller = caller.f_back
        if caller is not None and caller.f_globals["__name__"] != name and caller.f_code.co_name != "<module>":
            self.calls.add((str(caller.f_globals["__name__"]), name))


def command(*words: str) -> None:
    """Runs a command of rlds-beam in this process."""
    sys.argv = ["rlds-beam", *words]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        runpy.run_module("rlds_beam", run_name="__main__")


def batches(dataset: str) -> None:
    """The first batch of a dataset."""
    import rlds_beam

    next(iter(rlds_beam.open_dataset(dataset, unit="steps").batches(8)))


def main(dataset: str) -> None:
    """Prints a line for each flow."""
    import test_layers

    flows: dict[str, Callable[[str], Any]] = {
        "convert --dry_run": lambda out: command("convert", dataset, out, "--dry_run"),
        "push --dry_run": lambda out: command("push", dataset, "--reverb=embedded", "--table=t", "--dry_run"),
        "open_dataset(...).batches(8)": lambda out: batches(dataset),
    }
    for name, flow in flows.items():
        with tempfile.TemporaryDirectory() as directory, Walk() as walk:
            flow(f"{directory}/out")
        rooms = {test_layers.package_of(module) for module in walk.modules} - test_layers.FLOOR
        climbs = [
            f"{caller} -> {callee}"
            for caller, callee in sorted(walk.calls)
            if not test_layers.is_allowed(test_layers.Import(caller, 0, callee))
        ]
        print(f"{name}: {len(rooms)} rooms, {len(walk.modules)} modules, {len(climbs)} climbs", *climbs, sep="\n    ")


if __name__ == "__main__":
    main(sys.argv[1])
