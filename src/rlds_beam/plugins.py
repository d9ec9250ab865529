"""Formats, connectors, and signals of other packages, found by their entry points.

    [project.entry-points."rlds_beam.formats"]
    robot_log = "my_robot:ROBOT_LOG"              # a rlds_beam.formats.Format

    [project.entry-points."rlds_beam.connectors"]
    ClipReward = "my_robot.connectors:ClipReward"

    [project.entry-points."rlds_beam.signals"]
    fast_share = "my_robot.signals:fast_share"    # a function with rlds_beam.checking.signals.signal

They are looked up only if a name is not built in, or if all names are listed, so they cost other commands nothing;
signals are all loaded where signals are measured.
Lists import nothing: a package that is broken or slow fails only where its name is used.
"""

from __future__ import annotations

import functools
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from rlds_beam.errors import UsageError
from rlds_beam.user_functions import expect_user_code, user_code

Kind = Literal["formats", "connectors", "signals"]


@functools.cache
def _read_declared(kind: Kind) -> dict[str, list[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = {}
    for entry in sorted(entry_points(group=f"rlds_beam.{kind}"), key=lambda entry: entry.name):
        found.setdefault(entry.name, []).append(entry)
    return found


def names(kind: Kind) -> list[str]:
    """The names that installed packages declare, also of those that cannot be loaded."""
    return list(_read_declared(kind))


def describe_package(kind: Kind, name: str) -> str:
    """The packages that declare a name: its line in lists, which import nothing."""
    packages = [f"{entry.dist.name} {entry.dist.version}" for entry in _read_declared(kind)[name] if entry.dist]
    return f"of the package {' and '.join(sorted(packages))}" if packages else ""


def is_imported(kind: Kind, name: str) -> bool:
    """Whether a module that declares a name is imported, perhaps not yet to its end."""
    return any(entry.module in sys.modules for entry in _read_declared(kind)[name])


@functools.cache
def find(kind: Kind, name: str) -> Any:
    """The object that an installed package declares under a name; None if none does.

    Raises:
      UsageError: several packages declare the name, or the object cannot be imported.
    """
    entries = _read_declared(kind).get(name, ())
    if not entries:
        return None
    where = f"{name}, {describe_package(kind, name)}"
    if len(entries) > 1:
        raise UsageError(f"{where}, is an entry point of both: uninstall one of them")
    expect_user_code(entries[0].module)
    with user_code(f"{where} ({entries[0].value})"):
        return entries[0].load()
