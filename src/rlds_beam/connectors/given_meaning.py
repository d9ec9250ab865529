"""User-supplied names of dimensions (`--names`) and of the robot (`--robot_type`)."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rlds_beam import storage
from rlds_beam.encoding.metadata import parse_given, parse_json
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import UsageError
from rlds_beam.reading.base import Source
from rlds_beam.text import did_you_mean, printable, shorten

Names = Mapping[str, tuple[str, ...]]

_FILES = (".txt", ".yaml", ".yml", ".json")


def parse_names(entries: Sequence[str]) -> Names:
    """The names of each field, from the values of `--names`: `action=x,y,z`, or `action=names.txt`.

    A file has a name on each line, or is a YAML or JSON list.

    Raises:
      UsageError: an entry is malformed, or its file cannot be read.
    """
    names: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        path, equals, text = entry.partition("=")
        if not (path and equals and text):
            raise UsageError(f"--names={shorten(entry)}: expected FIELD=NAME,NAME,... or FIELD=FILE")
        if path in names:
            raise UsageError(f"--names={path}=...: given twice for this field; give all its names at once")
        names[path] = check_names(_read_names(text, f"--names={path}"), f"--names={path}")
    return names


def _read_names(text: str, where: str) -> Any:
    if text.startswith("["):  # a list from Python
        return parse_json(text, where)
    if not text.endswith(_FILES):
        return text.split(",")
    content = storage.read_given(text, f"{where}={text}")
    if text.endswith(".txt"):
        return [line.strip() for line in content.splitlines() if line.strip()]
    return parse_given(content, text, f"{where}={text}")


def check_names(names: Any, where: str) -> tuple[str, ...]:
    """The names of a field. Raises UsageError if they are not a list of texts."""
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) and name.strip() for name in names):
        raise UsageError(f"{where}: expected a list of names, none of them empty")
    return tuple(name.strip() for name in names)


def fits(field: Field | None, names: Sequence[str]) -> bool:
    """Whether a field is a vector of as many values as there are names."""
    return field is not None and bool(field.with_names(names).names)


def name_fields(schema: Schema, names: Names) -> Schema:
    """The schema with these names, by path, for the dimensions of its fields.

    Raises:
      UsageError: there is no such field, it has another number of values, or its values have other names.
    """
    steps = dict(schema.steps)
    for path, given in names.items():
        field = schema.steps.get(path)
        if field is None or not fits(field, given):
            raise UsageError(_misfit(path, given, schema))
        if field.names and field.names != given:
            i = next(i for i, (old, new) in enumerate(zip(field.names, given, strict=True)) if old != new)
            raise UsageError(
                f"--names={path}: value {i} is {printable(field.names[i], 40)} in the data, not {given[i]}: leave the "
                "names out, or rename values with RenameDimensions"
            )
        steps[path] = field.with_names(given)
    return dataclasses.replace(schema, steps=steps)


def _misfit(path: str, names: Sequence[str], schema: Schema) -> str:
    field = schema.steps.get(path)
    if field is None:
        vectors = [path for path, field in schema.steps.items() if field.shape and field.dtype != "string"]
        hint = did_you_mean(path, vectors, otherwise=f"there are {', '.join(vectors)}")
        return f"--names={path}: there is no field {path}{hint}"
    if not field.shape or field.shape[-1] is None or field.dtype == "string" or field.holds_image_files:
        return f"--names={path}: {field} is no vector of numbers, so it has no dimensions to name"
    return f"--names={path}: {len(names):,} names, but {field} has {field.shape[-1]:,} values: name each of them"


def with_given_meaning(source: Source, options: Any) -> Source:
    """The source with the names and the robot that a job's options give.

    Raises:
      UsageError: names of a field that neither the source has, nor connectors may add; or the data has other ones.
    """
    names, robot = parse_names(getattr(options, "names", ())), getattr(options, "robot_type", None)
    if None not in (robot, source.robot) and robot != source.robot and not source.assumes_robot:
        raise UsageError(
            f"--robot_type={robot}: {source.dataset} says {printable(source.robot, 40)}: leave it out, or correct what "
            "the data says"
        )
    if getattr(options, "connectors", None) is not None:  # the dry run checks the others
        names = {path: given for path, given in names.items() if fits(source.schema.steps.get(path), given)}
    changes = {"schema": name_fields(source.schema, names)} if names else {}
    return with_attributes(source, **changes, **({} if robot is None else {"robot": robot}))


def with_attributes(source: Source, **changes: Any) -> Source:
    """A copy of a source, of any class, with other values of some attributes."""
    changed = copy.copy(source)
    for name, value in changes.items():
        object.__setattr__(changed, name, value)  # sources are frozen dataclasses
    return changed
