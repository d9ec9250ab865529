"""Metadata files: those of rlds-beam are msgspec structs; others are checked when they are read."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import Meta

from rlds_beam import storage
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.text import shorten

Value = TypeVar("Value")

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""A count in a struct; JSON has integers of any size."""
_NAME = r"(?!\.{1,2}(?:/|$))[^/\\\x00-\x1f\x7f]{1,255}"
FileName = Annotated[str, Meta(pattern=rf"^{_NAME}\Z", description="the name of a file in its directory")]
FilePath = Annotated[str, Meta(pattern=rf"^{_NAME}(?:/{_NAME})*\Z", description="a path in its directory or below")]


def encode(value: Any) -> str:
    """Encodes a struct, or JSON, as the text of a file. NaN becomes null, and invalid Unicode `?`."""
    try:
        content = msgspec.json.encode(value)
    except UnicodeEncodeError:  # for example the name of a file
        content = json.dumps(msgspec.to_builtins(value), ensure_ascii=False).encode(errors="replace")
    return msgspec.json.format(content, indent=2).decode() + "\n"


def decode(path: str, kind: type[Value]) -> Value:
    """Reads a JSON file that rlds-beam wrote as a struct.

    Raises:
      UsageError: it does not match the struct, is not a regular file, or is larger than `storage.SMALL`.
      OSError: it cannot be read.
    """
    return decode_json(storage.read_small(path), kind, path)


def decode_whole(path: str, kind: type[Value]) -> Value | None:
    """`decode`, but None if the file does not exist or is cut short, for example after a power failure."""
    if not storage.exists(path):
        return None
    content = storage.read_small(path)
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise _describe_damage(path, error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def decode_json(text: str | bytes, kind: type[Value], where: str, *, foreign: bool = False) -> Value:
    """Decodes JSON as a struct; `where` names it in errors. Raises UsageError if it does not match.

    Args:
      foreign: another program wrote it, perhaps with numbers as text.
    """
    try:
        return msgspec.json.decode(text, type=kind, strict=not foreign)
    except msgspec.ValidationError as error:
        raise (UsageError(f"{where}: {shorten(error)}") if foreign else _describe_damage(where, error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{where}: not valid JSON: {shorten(error)}") from None


def convert(content: Any, kind: Any, where: str) -> Any:
    """Converts parsed JSON or YAML to a struct or another type. Raises UsageError if it does not match."""
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {shorten(error)}") from None
    except RecursionError:
        raise UsageError(f"{where}: it is nested too deeply") from None


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


def _describe_damage(path: str, error: msgspec.ValidationError) -> UsageError:
    return UsageError(f"{path} is damaged or not written by rlds-beam: {shorten(error)}")


def parse_json(text: str | bytes, where: str) -> Any:
    """Parses JSON of another program or person, which may have NaN; `where` names it in errors.

    Raises:
      UsageError: the text is not valid JSON, is nested too deeply, or has invalid Unicode.
    """
    try:
        content = json.loads(text)
        if "\\ud" in (text if isinstance(text, str) else text.decode()).lower():  # half of a surrogate pair
            json.dumps(content, ensure_ascii=False).encode()
    except RecursionError:
        raise UsageError(f"{where}: cannot read this JSON: it is nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"{where}: not valid JSON: {shorten(error)}") from None
    return content


def load_json(path: str) -> Any:
    """Loads a JSON file. Raises UsageError as `parse_json` and `storage.read_small`, and OSError."""
    return parse_json(storage.read_small(path), path)


def parse_yaml(text: str, where: str) -> Any:
    """Parses YAML; `where` names it in errors. Raises UsageError if it is not valid, or gives a name twice."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                if isinstance(key.value, str) and key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
                seen.add(key.value if isinstance(key.value, str) else None)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise UsageError(f"{where}: not valid YAML: {line}{error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:  # for example a number with thousands of digits, or an invalid date
        raise UsageError(f"{where}: not valid YAML: {shorten(error)}") from None
    except RecursionError:
        raise UsageError(f"{where}: cannot read this YAML: it is nested too deeply") from None


def parse_given(text: str, name: str, where: str) -> Any:
    """Parses a file that a person wrote: JSON if its name ends in `.json`, otherwise YAML; `where` names it in errors.

    Raises:
      UsageError: as `parse_json` and `parse_yaml`.
    """
    return parse_json(text, where) if name.endswith(".json") else parse_yaml(text, where)


def yaml_text(text: str) -> str:
    """A text as YAML, quoted if it would be read as something else."""
    import yaml

    if re.fullmatch(r"[\w/]+\**", text, re.ASCII) and yaml.safe_load(text) == text:
        return text
    return cast(str, yaml.safe_dump(text, default_style='"', width=math.inf)).strip()
