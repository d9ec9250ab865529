"""Formats, connectors, and commands of other packages, found by their entry points.

    [project.entry-points."rlds_beam.formats"]
    robot_log = "my_robot:ROBOT_LOG"              # a rlds_beam.formats.Format

    [project.entry-points."rlds_beam.connectors"]
    ClipReward = "my_robot.connectors:ClipReward"

    [project.entry-points."rlds_beam.commands"]
    replay = "my_robot.replay:ReplayConfig"       # the config of a job: rlds_beam.pipelines.base.Job

They are looked up only if a name is not built in, or if all names are listed, so they cost other commands nothing.
Lists import nothing: a package that is broken, slow, or ends the process fails only where its name is used.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import Any, Literal

from rlds_beam.errors import UsageError
from rlds_beam.text import printable
from rlds_beam.user_functions import expect_user_code, user_code

Kind = Literal["formats", "connectors", "commands"]


_NAME = re.compile(r"\w[\w.-]*", re.ASCII)


@functools.cache
def _read_declared(kind: Kind) -> tuple[dict[str, list[tuple[EntryPoint, str]]], list[tuple[str, str]]]:
    """The entry points by name, each with its package; and the names of others, each with what is wrong with it."""
    found: list[tuple[str, str, EntryPoint]] = []
    wrong: list[tuple[str, str]] = []
    for package, entries in _read_packages():
        if isinstance(entries, str):
            wrong.append(("", f"{package}: {entries}"))
            continue
        for entry in entries:
            if entry.group != f"rlds_beam.{kind}":
                continue
            if not _NAME.fullmatch(entry.name):
                wrong.append(("", f"{package}: {printable(entry.name, 40)} is no name for one of the {kind}"))
            elif EntryPoint.pattern.match(entry.value) is None:
                value = printable(entry.value, 40) or "nothing"
                said = f"{package}: {entry.name} is {value}, not module:object (entry point {entry.group})"
                wrong.append((entry.name, said))
            else:
                found.append((entry.name, package, entry))
    by_name: dict[str, list[tuple[EntryPoint, str]]] = {}
    for name, package, entry in sorted(found, key=lambda each: each[:2]):
        by_name.setdefault(name, []).append((entry, package))
    return by_name, sorted(wrong)


@functools.cache
def _read_packages() -> list[tuple[str, list[EntryPoint] | str]]:
    """Maps each installed package to its rlds-beam entry points, or to the error in its entry_points.txt."""
    return [*_iterate_packages()]


def _iterate_packages() -> Iterator[tuple[str, list[EntryPoint] | str]]:
    seen: set[str] = set()
    for package in distributions():
        entries: list[EntryPoint] | str
        try:
            entries = [entry for entry in package.entry_points if entry.group.startswith("rlds_beam.")]
        except Exception as error:  # not UTF-8, or not readable
            entries = f"its entry_points.txt cannot be read: {error}"
        if not entries:
            continue
        name, version = _name(package)
        if name not in seen:  # as for imports, the first on the path counts
            yield f"{name} {version}".strip(), entries
        seen.add(name)


def _name(package: Distribution) -> tuple[str, str]:
    """The name and version; those of the folder of its metadata if the metadata is damaged."""
    with contextlib.suppress(Exception):
        if name := package.metadata["Name"]:
            return printable(name, 80), printable(package.metadata["Version"] or "", 40)
    return printable(str(getattr(package, "_path", "a package without a name")), 200), ""


def names(kind: Kind) -> list[str]:
    """The names that installed packages declare, also of those that cannot be loaded."""
    return list(_read_declared(kind)[0])


def broken(kind: Kind) -> list[str]:
    """What is wrong with declarations that cannot be used, a line each; nothing is imported to find out."""
    return [line for _, line in _read_declared(kind)[1]]


def packages(kind: Kind, name: str) -> list[str]:
    """The packages that declare a name, each with its version."""
    return [package for _, package in _read_declared(kind)[0].get(name, ())]


@functools.cache
def find(kind: Kind, name: str) -> Any:
    """The object that an installed package declares under a name; None if none does.

    Raises:
      UsageError: several packages declare the name, or the object cannot be imported.
    """
    declared, wrong = _read_declared(kind)
    entries = declared.get(name, ())
    if not entries:
        if problem := next((line for other, line in wrong if other == name), None):
            raise UsageError(problem)
        return None
    if len(entries) > 1:
        both = " and ".join(packages(kind, name))
        raise UsageError(f"{name} is declared by {both} (entry points rlds_beam.{kind}): uninstall one of them")
    ((entry, package),) = entries
    expect_user_code(entry.module)
    with user_code(f"{name}: {entry.value} (entry point rlds_beam.{kind} of {package})"):
        return entry.load()


def find_connector(name: str) -> Any:
    """The connector that an installed package declares; None if none does. Raises UsageError as `find` does."""
    return find("connectors", name)


def load_all(kind: Kind) -> dict[str, Any]:
    """All objects that installed packages declare, by name, without those that `find` refuses."""
    found = {}
    for name in names(kind):
        try:
            found[name] = find(kind, name)
        except UsageError:
            continue
    return found


def refuse(kind: Kind, name: str, problem: str) -> UsageError:
    """The error for an entry point whose object is not what it should be."""
    return UsageError(f"{name}: the entry point rlds_beam.{kind} of {' and '.join(packages(kind, name))} {problem}")
