"""Checks connector arguments from a file, their names and types, before anything is called."""

from __future__ import annotations

import collections.abc
import contextlib
import re
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

_NAMES = {int: "an int", float: "a number", bool: "true or false", str: "text", type(None): "null"}
_MODULE_FUNCTION = "module:function"


def accepts(hint: Any, value: Any) -> bool:
    """Whether a value from YAML or JSON matches an annotated type; True if that cannot be decided."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, types.UnionType) or origin is typing.Union:
        return any(accepts(one, value) for one in inner)
    if origin is typing.Literal:
        return value in inner
    if hint in (int, float):
        return not isinstance(value, bool) and isinstance(value, (int, hint))
    if hint in (bool, str, type(None)):
        return isinstance(value, hint)
    kind = origin or hint
    if kind in (collections.abc.Mapping, dict):
        return isinstance(value, Mapping) and all(accepts(inner[1], item) for item in value.values() if inner)
    if kind in (collections.abc.Sequence, list, tuple):
        if isinstance(value, str):  # many arguments accept one name instead of a list
            return not inner or inner[0] in (str, Any)
        if not isinstance(value, Sequence):
            return False
        each = inner[:1] if kind is not tuple or inner[1:] == (...,) else ()
        return all(accepts(each[0], item) for item in value if each)
    return kind is not collections.abc.Callable or callable(value)


def describe_type(hint: Any) -> str:
    """Describes an annotated type: `an int`, `a list of numbers or null`."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, types.UnionType) or origin is typing.Union:
        return " or ".join(
            dict.fromkeys(_MODULE_FUNCTION if one is str and _callable(inner) else describe_type(one) for one in inner)
        )
    if origin is typing.Literal:
        return " or ".join(map(str, inner))
    kind = origin or hint
    if kind in (collections.abc.Mapping, dict):
        return "a mapping"
    if kind in (collections.abc.Sequence, list, tuple):
        return "a list"
    if kind is collections.abc.Callable:
        return _MODULE_FUNCTION
    return _NAMES.get(hint, getattr(hint, "__name__", str(hint)))


def number_hint(value: Any) -> str:
    """A hint for text that looks like a number but is not one in YAML: `1e-4`, without a dot."""
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+[eE][-+]?\d+", value):
        return f" (YAML reads {value} as text; write {re.sub('[eE]', '.0e', value)})"
    return ""


def _callable(hints: Sequence[Any]) -> bool:
    return any(typing.get_origin(hint) is collections.abc.Callable for hint in hints)


def hints_of(make: Any) -> dict[str, Any]:
    """The annotated types of a class's or function's parameters, except those that cannot be evaluated."""
    called = getattr(make, "__init__", None) if isinstance(make, type) else make
    names = vars(sys.modules[make.__module__]) if getattr(make, "__module__", None) in sys.modules else {}
    hints: dict[str, Any] = {}
    for name, hint in getattr(called, "__annotations__", {}).items():
        with contextlib.suppress(NameError, TypeError, SyntaxError):  # the name is imported for type checkers only
            hints |= typing.get_type_hints(types.SimpleNamespace(__annotations__={name: hint}), names)
    return hints
