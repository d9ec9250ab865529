"""Reads JSON and YAML files from untrusted programs or people, and checks them against a schema.

A schema is a `Kind` (a test and its name), `[schema]` for a list, `{name: schema}` for an object (`"name?"` is
optional, `"*"` is any other name), a dataclass (`from_json`), `Maybe(schema)` to allow null, or a tuple of schemas that
must all match.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar, cast

from rlds_beam import naming
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.text import did_you_mean, shorten


@dataclasses.dataclass(frozen=True)
class Kind:
    """A value that passes a test; `what` describes it in errors."""

    what: str
    test: Callable[[Any], bool]


@dataclasses.dataclass(frozen=True)
class Maybe:
    """A schema that also allows null."""

    schema: Schema


Value = TypeVar("Value")
Schema: TypeAlias = "Kind | Maybe | list[Any] | Mapping[str, Any] | tuple[Any, ...]"

ANY = Kind("anything", lambda value: True)
COUNT = Kind("a whole number from 0 to 2^63 - 1", lambda value: type(value) is int and 0 <= value < 1 << 63)
TEXT = Kind("text", lambda value: isinstance(value, str))
FILE = Kind("the name of a file in its directory", naming.is_file_name)


def check_json(content: Any, schema: Schema, path: str) -> Any:
    """Returns the content of the file at `path` if it matches the schema.

    Raises:
      UsageError: the content does not match; names the file and the place in it.
    """
    for problem in _problems(content, schema, ""):
        raise UsageError(f"{path} is damaged or not written by rlds-beam: {problem}")
    return content


def check_written(content: Any, schema: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns an object that a person wrote, if it matches the schema and has no other names.

    Raises:
      UsageError: it does not; names the place.
    """
    known = [name.rstrip("?") for name in schema]
    for name in content if isinstance(content, dict) and "*" not in schema else ():
        if name not in known:
            hint = did_you_mean(str(name), known, otherwise=f"there are {', '.join(known)}")
            raise UsageError(f"{where}: there is no entry {shorten(name, 80)}{hint}")
    for problem in _problems(content, schema, ""):
        raise UsageError(f"{where}: {problem}")
    return cast("dict[str, Any]", content)


@contextlib.contextmanager
def parsing(path: str) -> Iterator[None]:
    """Wraps code that reads JSON values; converts its errors to a UsageError that names the file."""
    try:
        yield
    except RldsBeamError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        detail = f"there is no {shorten(error)}" if isinstance(error, KeyError) else shorten(error)
        raise UsageError(f"{path} is damaged or not written by rlds-beam: {detail}") from error


def _problems(value: Any, schema: Schema, where: str) -> Iterator[str]:
    if isinstance(schema, tuple):
        for alternative in schema:
            yield from _problems(value, alternative, where)
    elif isinstance(schema, Maybe):
        if value is not None:
            yield from _problems(value, schema.schema, where)
    elif isinstance(schema, Kind):
        if not schema.test(value):
            yield f"{where or 'it'} is {_short(value)}, not {schema.what}"
    elif isinstance(schema, list):
        if not isinstance(value, (list, tuple)):
            yield f"{where or 'it'} is {_short(value)}, not a list"
            return
        for i, element in enumerate(value):
            yield from _problems(element, schema[0], f"{where}[{i}]")
    else:
        yield from _object_problems(value, schema, where)


def _object_problems(value: Any, schema: Mapping[str, Any], where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where or 'it'} is {_short(value)}, not an object"
        return
    named = {name.rstrip("?"): kind for name, kind in schema.items() if name != "*"}
    for name in schema:
        if name != "*" and not name.endswith("?") and name not in value:
            yield f"{where or 'it'} has no {name!r}"
    for name, below in value.items():
        if name in named or "*" in schema:
            expected = named.get(name, schema.get("*"))
            yield from _problems(below, expected, f"{where}.{name}" if where else name)


def _short(value: Any) -> str:
    try:
        text = json.dumps(value, default=repr)
    except ValueError:  # an integer with more digits than Python prints
        text = "a very large number"
    return shorten(text, 40)
