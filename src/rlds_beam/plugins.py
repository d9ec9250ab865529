"""Formats, connectors, and commands of other packages, found by their entry points.

    [project.entry-points."rlds_beam.formats"]
    robot_log = "my_robot:ROBOT_LOG"              # a rlds_beam.formats.Format

    [project.entry-points."rlds_beam.connectors"]
    ClipReward = "my_robot.connectors:ClipReward"

    [project.entry-points."rlds_beam.commands"]
    replay = "my_robot.replay:ReplayConfig"       # the config of a job: rlds_beam.pipelines.base.Job

They are looked up only if a name is not built in, or if all names are listed, so they cost other commands nothing.
Lists import nothing: a package that is broken or slow fails only where its name is used.
"""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from rlds_beam.user_functions import expect_user_code, user_code

Kind = Literal["formats", "connectors", "commands"]


@functools.cache
def _read_declared(kind: Kind) -> dict[str, EntryPoint]:
    return {
        entry.name: entry for entry in sorted(entry_points(group=f"rlds_beam.{kind}"), key=lambda entry: entry.name)
    }


def names(kind: Kind) -> list[str]:
    """The names that installed packages declare, also of those that cannot be loaded."""
    return list(_read_declared(kind))


def describe_package(kind: Kind, name: str) -> str:
    """The package that declares a name: its line in lists, which import nothing."""
    package = _read_declared(kind)[name].dist
    return f"of the package {package.name} {package.version}" if package else ""


@functools.cache
def find(kind: Kind, name: str) -> Any:
    """The object that an installed package declares under a name; None if none does.

    Raises:
      UsageError: the object cannot be imported.
    """
    entry = _read_declared(kind).get(name)
    if entry is None:
        return None
    expect_user_code(entry.module)
    with user_code(f"{name}, {describe_package(kind, name)} ({entry.value})"):
        return entry.load()


def find_connector(name: str) -> Any:
    """The connector that an installed package declares; None if none does. Raises UsageError as `find` does."""
    return find("connectors", name)
