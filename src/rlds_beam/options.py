"""Job options, in groups: each option is a Python argument and a flag at once.

The groups are frozen dataclasses that import nothing heavy, so that `--help` answers at once. A job's config inherits
the groups it needs (`class ConvertConfig(InputOptions, CheckOptions, ...)`). A core function takes the group it needs,
so a config can be passed to it directly. The `help` in a field's metadata is the flag's help.

A format's options are a group in one field of the config: `--to=lerobot` puts a `LerobotOptions` into `to_options`.
`Config.create(..., to="lerobot", fps=10)`, which flags and functions use, sorts options into groups.
"""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
import os
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Self

from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean, join_texts
from rlds_beam.user_functions import by_value, qualified_name

__all__ = ["Options", "option"]


def option(default: Any, help: str, **metadata: Any) -> Any:
    """A dataclass field with a help text; a field without one is no flag.

    Args:
      default: the option's default value.
      help: the help text of its flag.
      metadata: `least`: the smallest allowed number. `needs`: another option without which it has no effect:
        `pad_end_of_episodes` or `items=sequences`. `metavar`: the name of its value in the help. `code`: it names a
        function as `module:function`, whose code becomes part of the plan. `by_value`: it takes any object for a name.
        `short`: other spellings: `("-o",)`. `repeated`: a flag for each value. `mapping`: KEY=VALUE, in Python a
        mapping. `positional`: no flag; `several`: one or more of them.
    """
    return dataclasses.field(default=default, metadata={"help": help, **metadata})


@dataclasses.dataclass(frozen=True)
class Options:
    """The base of all groups, and the empty group.

    An option accepts a path for its text, a list or comma-separated text for a tuple, and a function for
    `module:function`. A group (`to_options`) may be a mapping.

    Raises:
      UsageError: a value is not of the type of its option.
    """

    def __post_init__(self) -> None:
        hints = type_hints(type(self))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not field.default and hints[field.name] is not Any:
                checked = check_value(value, hints[field.name], field)
                object.__setattr__(self, field.name, checked)  # how a frozen dataclass initializes itself
        for name, options_class in self.format_options().items():
            object.__setattr__(self, name, options_class.from_options(getattr(self, name)))
        for field in dataclasses.fields(self):
            name, _, choice = field.metadata.get("needs", "").partition("=")
            if not name or getattr(self, field.name) == field.default:
                continue
            if getattr(self, name) != choice if choice else not getattr(self, name):
                raise UsageError(f"--{flag_name(field.name)} needs --{field.metadata['needs']}")

    @classmethod
    def from_options(cls, options: Any) -> Self:
        """This group's options: from a config that includes them, or by name, or their defaults for None."""
        if options is None or isinstance(options, Mapping):
            return cls.create(**(options or {}))
        return cls(**{name: getattr(options, name) for name in option_names(cls)})

    @classmethod
    def known_formats(cls) -> dict[str, type[Options]]:
        """The options of all our formats that could be chosen, by their flag: `--to=lerobot`."""
        return {}

    def format_options(self) -> dict[str, type[Options]]:
        """The classes of the options of the chosen formats, by the field that holds them: `to_options`."""
        return {}

    def with_format(self) -> Self:
        """These options with the format of the input, which is recognized."""
        return self

    @classmethod
    def create(cls, *positional: Any, **options: Any) -> Self:
        """Makes a config from its own options and those of the formats it names.

            ConvertConfig.create("data/toy/1.0.0", "out", to="lerobot", fps=10)

        Raises:
          UsageError: an option is unknown or belongs to another format, or its value is not allowed.
        """
        own = {name: options.pop(name) for name in option_names(cls) if name in options}
        config = cls(*positional, **own)
        known = {name for kind in config.format_options().values() for name in option_names(kind)}
        if not options.keys() <= known:
            config = config.with_format()
        made: dict[str, dict[str, Any]] = {}
        for name, value in options.items():
            owners = [field for field, kind in config.format_options().items() if name in option_names(kind)]
            if not owners:
                raise unknown_option(cls, name)
            for field in owners:
                made.setdefault(field, {})[name] = value
        return dataclasses.replace(config, **made)


def unknown_option(config_class: type[Options], name: str) -> UsageError:
    """The error for an option that a job and the chosen formats lack: which format has it, or the nearest option."""
    flag, known = f"--{flag_name(name)}", config_class.known_formats()
    if owners := [choice for choice, options_class in known.items() if name in option_names(options_class)]:
        return UsageError(f"{flag} is an option of {join_texts(owners)}")
    flags = [f"--{flag_name(name)}" for kind in (config_class, *known.values()) for name in option_names(kind)]
    return UsageError(f"unknown option {flag}{did_you_mean(flag, flags)}")


def option_names(options_class: type[Options]) -> list[str]:
    """The names of a group's options."""
    return [field.name for field in dataclasses.fields(options_class)]


def flag_name(name: str) -> str:
    """The flag of an option: `from` for `from_`, which is a keyword in Python."""
    return name.rstrip("_")


def options_given(options: Any, *groups: type[Options]) -> list[str]:
    """The names of these groups' options that differ from their defaults."""
    fields = (field for group in groups for field in dataclasses.fields(group))
    return [field.name for field in fields if getattr(options, field.name) != field.default]


def type_hints(options_class: type[Any]) -> dict[str, Any]:
    """The type of each option by name; `int` for `int | None`."""
    unions = (types.UnionType, typing.Union)
    hints = typing.get_type_hints(options_class)
    return {
        name: typing.get_args(hint)[0] if typing.get_origin(hint) in unions else hint for name, hint in hints.items()
    }


def check_value(value: Any, kind: Any, field: dataclasses.Field[Any]) -> Any:
    """Converts a value to the option's type; raises UsageError if it has another type or is not allowed."""
    flag = f"--{flag_name(field.name)}"
    if typing.get_origin(kind) is typing.Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            hint = did_you_mean(str(value), choices)
            raise UsageError(f"{flag}={value}: expected one of {', '.join(choices)}{hint}")
        return value
    if typing.get_origin(kind) is tuple:
        return tuple(_to_text(part, field) for part in _to_list(value, field))
    if kind is str and field.metadata.get("several") and isinstance(value, (list, tuple)):
        return ",".join(_to_text(part, field) for part in value)
    if kind is str:
        return _to_text(value, field)
    expected = bool if kind is bool else numbers.Integral if kind is int else numbers.Real
    if not isinstance(value, expected) or isinstance(value, bool) != (kind is bool):
        raise UsageError(f"{flag}={value!r}: expected {kind.__name__}")
    if not value >= (least := field.metadata.get("least", -math.inf)):
        raise UsageError(f"{flag}={value}: must be at least {least}")
    return value


def _to_list(value: Any, field: dataclasses.Field[Any]) -> Sequence[Any]:
    """The values of an option with several: of a list, of comma-separated text, of a mapping."""
    if isinstance(value, Mapping) and field.metadata.get("mapping"):
        return [
            f"{key}={own if isinstance(own, (str, os.PathLike)) else json.dumps([*own])}" for key, own in value.items()
        ]
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if isinstance(value, str) and not field.metadata.get("repeated"):  # one flag per value, which may have commas
        return [part for part in value.split(",") if part]
    return [value]


def _to_text(value: Any, field: dataclasses.Field[Any]) -> str:
    """The text of a value: itself, a path, the name of a function, or what stands for an object."""
    if isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if field.metadata.get("by_value") and not isinstance(value, (type, types.FunctionType)):
        return by_value(field.name, value)
    if callable(value):
        return qualified_name(value)
    raise UsageError(f"--{flag_name(field.name)}={value!r}: expected text, not {type(value).__name__}")
