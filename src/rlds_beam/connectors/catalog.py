"""All connectors by name, also those of other packages; their sections in the help, and their argument types."""

from __future__ import annotations

import collections.abc
import contextlib
import importlib
import inspect
import re
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from rlds_beam import plugins
from rlds_beam.connectors import CONNECTORS
from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean, shorten
from rlds_beam.user_functions import check_configurable

SECTIONS = {
    "Columns of a training batch": ("learner.columns",),
    "Other observations": ("learner.observations",),
    "Returns and advantages": ("learner.returns", "statistics.standardization", "learner.truncation"),
    "Sequences and states": ("learner.sequences", "learner.models"),
    "Off-policy evaluation": ("statistics.importance",),
    "Normalization": ("statistics.normalization",),
    "Other episodes": ("cleaning.edits", "cleaning.resampling"),
    "Cleaning": ("cleaning.selection", "cleaning.idle", "cleaning.episode_lists", "cleaning.splits"),
    "Action spaces": ("cleaning.rotations", "cleaning.relative_actions", "cleaning.dimensions"),
    "Images, text, grippers": (
        "cleaning.pixels",
        "cleaning.language",
        "cleaning.grippers",
        "cleaning.trajectory_functions",
    ),
    "Agents, modules, batches": ("learner.agents",),
    "From a model to environments": ("learner.actions",),
    "Written for RLlib": ("learner.rllib",),
}
"""Section -> the modules whose connectors are in it. A connector of another module is an error."""


def names(modules: tuple[str, ...]) -> list[str]:
    """The connectors of modules, in the order in which they are defined."""
    loaded = [(module, importlib.import_module(f"rlds_beam.connectors.{module}")) for module in modules]
    return [name for module, loaded_module in loaded for name in vars(loaded_module) if CONNECTORS.get(name) == module]


def connector_names() -> list[str]:
    """All connectors, with those of other packages at the end."""
    return [*CONNECTORS, *(name for name in plugins.names("connectors") if name not in CONNECTORS)]


def connector_class(name: str, where: str = "help connectors") -> Any:
    """The class (or function) of a connector.

    Args:
      where: the place of the name, for messages.

    Raises:
      UsageError: there is none of that name, or another package's cannot be used.
    """
    if name in CONNECTORS:
        return getattr(importlib.import_module(f"rlds_beam.connectors.{CONNECTORS[name]}"), name)
    found = plugins.find("connectors", name)
    if found is None:
        raise UsageError(f"{where}: there is no connector {shorten(name)}{did_you_mean(name, connector_names())}")
    check_configurable(found, name, where)
    return found


def summary(name: str) -> str:
    """The first sentence of a connector's docstring."""
    text = " ".join((inspect.getdoc(connector_class(name)) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.:])\s(?=[A-Z])", text)[0].removesuffix(":")


_NAMES = {int: "an int", float: "a number", bool: "true or false", str: "text", type(None): "null"}
_MODULE_FUNCTION = "module:function"


def accepts(hint: Any, value: Any) -> bool:
    """Whether a value from YAML or JSON matches an annotated type; True if that cannot be decided."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, types.UnionType) or origin is typing.Union:
        return any(accepts(each, value) for each in inner)
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
            dict.fromkeys(
                _MODULE_FUNCTION if each is str and _callable(inner) else describe_type(each) for each in inner
            )
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


def type_hints(make: Any) -> dict[str, Any]:
    """The annotated types of a class's or function's parameters, except those that cannot be evaluated."""
    called = getattr(make, "__init__", None) if isinstance(make, type) else make
    names = vars(sys.modules[make.__module__]) if getattr(make, "__module__", None) in sys.modules else {}
    hints: dict[str, Any] = {}
    for name, hint in getattr(called, "__annotations__", {}).items():
        with contextlib.suppress(NameError, TypeError, SyntaxError):  # the name is imported for type checkers only
            hints |= typing.get_type_hints(types.SimpleNamespace(__annotations__={name: hint}), names)
    return hints
