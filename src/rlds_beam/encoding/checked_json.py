"""Reads JSON and YAML files from untrusted programs or people, and checks them against a schema.

A schema is a `Kind` (a test and its name), `[schema]` for a list, `{name: schema}` for an object (`"name?"` is
optional, `"*"` is any other name), a dataclass (`from_json`), `Maybe(schema)` to allow null, or a tuple of schemas that
must all match.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import re
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints

from rlds_beam import naming, storage
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
Schema: TypeAlias = "Kind | Maybe | type[Any] | list[Any] | Mapping[str, Any] | tuple[Any, ...]"

_DEPTH = 200
"""Maximum levels of nested lists and objects; the functions that read them are recursive."""

ANY = Kind("anything", lambda value: True)
COUNT = Kind("a whole number from 0 to 2^63 - 1", lambda value: type(value) is int and 0 <= value < 1 << 63)
TEXT = Kind("text", lambda value: isinstance(value, str))
FILE = Kind("the name of a file in its directory", naming.is_file_name)
FILE_PATH = Kind("the path of a file in its directory or below", naming.is_file_path)


def parse_json(text: str | bytes, where: str) -> Any:
    """Parses JSON from an untrusted program or person; `where` names it in errors.

    Raises:
      UsageError: the text is not valid JSON, is nested too deeply, or has invalid Unicode.
    """
    try:
        content = json.loads(text.decode("utf-8") if isinstance(text, bytes) else text)
        check_depth(content)
        if "\\ud" in (text if isinstance(text, str) else text.decode()).lower():  # half of a surrogate pair
            json.dumps(content, ensure_ascii=False).encode()
    except RecursionError:
        raise UsageError(f"{where}: cannot read this JSON: it has more than {_DEPTH} levels") from None
    except ValueError as error:
        raise UsageError(f"{where}: not valid JSON: {shorten(error)}") from None
    return content


def load_json(path: str) -> Any:
    """Loads a JSON file. Raises UsageError as `parse_json` and `storage.read_text`, and OSError."""
    return parse_json(storage.read_text(path), path)


def read_json(path: str) -> Any:
    """Loads a JSON file; None if it is not JSON, for example after a power failure or if another program wrote it.

    Raises:
      UsageError: the path is not a regular file, or is larger than `storage.SMALL`.
    """
    content = storage.read_small(path)
    try:
        return parse_json(content, path)
    except UsageError:
        return None


def check_depth(content: Any, most: float = math.inf) -> None:
    """Raises RecursionError if lists and mappings have more than `_DEPTH` levels or `most` elements."""
    level, count = [content], 0
    for _ in range(_DEPTH + 1):
        count += sum(map(len, filter(_is_nested, level)))
        if count > most:
            break
        level = [child for part in level for child in _below(part) if _is_nested(child)]
        if not level:
            return
    raise RecursionError(f"more than {_DEPTH} levels")


def _is_nested(value: Any) -> bool:
    return isinstance(value, (dict, list))


def _below(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


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


def yaml_text(text: str) -> str:
    """A text as YAML, quoted if it would be read as something else."""
    import yaml

    if re.fullmatch(r"[\w/]+\**", text, re.ASCII) and yaml.safe_load(text) == text:
        return text
    return str(yaml.safe_dump(text, default_style='"', width=math.inf)).strip()


MAY_LACK = {"may_lack": True}
"""The metadata of a dataclass's field that JSON leaves out if it is empty."""


def from_json(kind: type[Value], content: Any, path: str) -> Value:
    """Builds a dataclass from the JSON of `dataclasses.asdict`, checked against the types of its fields.

    They are numbers, texts, literals, dataclasses, named tuples, classes with `parse`, or of these `X | None`,
    `tuple[X, ...]`, `Mapping[str, X]`, or `Annotated[X, schema]`. Only `MAY_LACK` fields may be missing.

    Raises:
      UsageError: the content does not match; names the file and the place in it.
    """
    try:
        return cast(Value, _build(kind, content, ""))
    except ValueError as error:
        raise UsageError(f"{path} is damaged or not written by rlds-beam: {shorten(error)}") from None


def _build(hint: Any, value: Any, where: str) -> Any:
    if hint is int or hint is str:
        return _require(value, COUNT if hint is int else TEXT, where)
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _build(parts[0], _require(value, parts[1], where), where)
    if origin is types.UnionType:
        return None if value is None else _build(parts[0], value, where)
    if origin is Literal:
        return _require(value, Kind(f"one of {', '.join(parts)}", parts.__contains__), where)
    if origin is tuple:
        return tuple(_build(parts[0], each, f"{where}[{i}]") for i, each in enumerate(_require(value, [ANY], where)))
    if origin is not None:
        values = _require(value, {}, where).items()
        built = {name: _build(parts[1] if parts[1:] else int, each, f"{where}.{name}") for name, each in values}
        return Counter(built) if origin is Counter else built
    if hasattr(hint, "parse"):
        return hint.parse(_require(value, TEXT, where))
    if not (fields := _fields(hint)):
        return value
    if hasattr(hint, "_fields") and isinstance(value, (list, tuple)):
        value = dict(zip(fields, value, strict=False))
    _require(value, {name: ANY for name, (_, needed) in fields.items() if needed}, where)
    prefix = f"{where}." if where else ""
    return hint(**{n: _build(of, value[n], prefix + n) for n, (of, _) in fields.items() if n in value})


@functools.cache
def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """The type of each field of a class, and whether JSON must have it; empty for other types."""
    if not (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")):
        return {}
    hints, known = get_type_hints(kind, include_extras=True), getattr(kind, "__dataclass_fields__", {})
    return {name: (hints[name], not (known and known[name].metadata)) for name in (known or kind._fields)}


def _require(value: Any, schema: Schema, where: str) -> Any:
    for problem in _problems(value, schema, where):
        raise ValueError(problem)
    return value


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
    elif isinstance(schema, type):
        try:
            _build(schema, value, where)
        except ValueError as error:
            yield str(error)
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


_MAX_NODES = 1_000_000
"""Maximum lists, mappings, and values; nested aliases can expand a few lines to billions."""


def parse_given(text: str, name: str, where: str) -> Any:
    """Parses a file that a person wrote: JSON if its name ends in `.json`, otherwise YAML; `where` names it in errors.

    Raises:
      UsageError: as `parse_json` and `parse_yaml`; or an object has a key twice, of which JSON would keep the last.
    """
    if not name.endswith(".json"):
        return parse_yaml(text, where)
    content = parse_json(text, where)
    json.loads(text, object_pairs_hook=functools.partial(_check_unique, where))
    return content


def _check_unique(where: str, pairs: list[tuple[str, Any]]) -> None:
    for key, number in Counter(key for key, _ in pairs).items():
        if number > 1:
            raise UsageError(f"{where}: {shorten(key, 80)} is given twice in the same place: remove one of them")


@functools.cache
def _yaml_loader() -> Any:
    """PyYAML's safe loader, but a key that is given twice is an error. Cached, because yaml is imported on demand."""
    import yaml

    class UniqueKeysLoader(yaml.SafeLoader):
        def compose_mapping_node(self, anchor: Any) -> Any:
            node, seen = super().compose_mapping_node(anchor), set()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                if (key.tag, key.value) in seen:
                    problem = f"{shorten(key.value, 80)} is given twice in the same place: remove one of them"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                seen.add((key.tag, key.value))
            return node

    return UniqueKeysLoader


def parse_yaml(text: str, where: str) -> Any:
    """Parses YAML; `where` names it in errors.

    Raises:
      UsageError: the text is not valid YAML, has a key twice, is nested too deeply (or in itself), or has too many
        values.
    """
    import yaml

    try:
        content = yaml.load(text, _yaml_loader())
        check_depth(content, _MAX_NODES)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f"line {mark.line + 1}: " if mark else ""
        raise UsageError(f"{where}: not valid YAML: {line}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{where}: not valid YAML: {shorten(error)}") from None
    except RecursionError:
        raise UsageError(f"{where}: cannot read this YAML: it is nested too deeply or too large") from None
    except ValueError as error:  # a number with thousands of digits, or an invalid date
        raise UsageError(f"{where}: not valid YAML: {shorten(error)}") from None
    return content
