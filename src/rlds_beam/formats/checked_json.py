"""JSON files that are checked against a schema when they are read: another program or person may have made them.

A schema is a `Kind` (a test and its name), `[schema]` for a list, `{name: schema}` for an object (`"name?"` may be
missing, `"*"` is any other name), `Maybe(schema)` for null as well, or a tuple of schemas that all hold.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from rlds_beam import storage
from rlds_beam.errors import RldsBeamError, UsageError


@dataclasses.dataclass(frozen=True)
class Kind:
    """A value that passes a test; `what` names it for a person."""

    what: str
    test: Callable[[Any], bool]


@dataclasses.dataclass(frozen=True)
class Maybe:
    """The schema, or null."""

    schema: Schema


Schema: TypeAlias = "Kind | Maybe | list[Any] | Mapping[str, Any] | tuple[Any, ...]"

ANY = Kind("anything", lambda value: True)
COUNT = Kind("a number of 0 or more", lambda value: type(value) is int and value >= 0)
TEXT = Kind("text", lambda value: isinstance(value, str))
FILE = Kind("the name of a file in its directory", storage.is_file_name)
FILE_PATH = Kind("the name of a file in its directory, or in directories below it", storage.is_file_path)


def read_json(path: str) -> Any:
    """What is in a JSON file; None where it is no JSON: a power failure cut it short, or another program wrote it."""
    try:
        return json.loads(storage.read_text(path))
    except (ValueError, RecursionError):
        return None


def check_json(content: Any, schema: Schema, path: str) -> Any:
    """The content of the file at `path`, if it is of the schema.

    Raises:
      UsageError: it is not; names the file and the place in it.
    """
    for problem in _problems(content, schema, ""):
        raise UsageError(f"{path} is damaged, or rlds-beam did not write it: {problem}")
    return content


@contextlib.contextmanager
def parsing(path: str) -> Iterator[None]:
    """Around code that makes objects of the JSON in a file: what it cannot use is a UsageError that names the file."""
    try:
        yield
    except RldsBeamError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} is damaged, or rlds-beam did not write it: {type(error).__name__}: {error}"
        ) from error


def _problems(value: Any, schema: Schema, where: str) -> Iterator[str]:
    if isinstance(schema, tuple):
        for one in schema:
            yield from _problems(value, one, where)
    elif isinstance(schema, Maybe):
        if value is not None:
            yield from _problems(value, schema.schema, where)
    elif isinstance(schema, Kind):
        if not schema.test(value):
            yield f"{where or 'it'} is {_short(value)}, which is not {schema.what}"
    elif isinstance(schema, list):
        if not isinstance(value, list):
            yield f"{where or 'it'} is {_short(value)}, which is not a list"
            return
        for i, element in enumerate(value):
            yield from _problems(element, schema[0], f"{where}[{i}]")
    else:
        yield from _object_problems(value, schema, where)


def _object_problems(value: Any, schema: Mapping[str, Any], where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where or 'it'} is {_short(value)}, which is not an object"
        return
    named = {name.rstrip("?"): one for name, one in schema.items() if name != "*"}
    for name in schema:
        if name != "*" and not name.endswith("?") and name not in value:
            yield f"{where or 'it'} has no {name!r}"
    for name, below in value.items():
        if name in named or "*" in schema:
            one = named.get(name, schema.get("*"))
            yield from _problems(below, one, f"{where}.{name}" if where else name)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
