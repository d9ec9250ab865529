"""Job options, in groups: each option is a Python argument and a flag at once.

The groups are frozen dataclasses that import nothing heavy, so that `--help` answers at once. A job's config inherits
the groups it needs (`class ConvertConfig(SourceOptions, CheckOptions, ...)`). A core function takes the group it needs,
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
from typing import Any, NamedTuple, Self

from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean, join_texts
from rlds_beam.user_functions import by_value, qualified_name

__all__ = ["Options", "option"]


def option(default: Any, help: str, **metadata: Any) -> Any:
    """A dataclass field with a help text.

    Args:
      default: the option's default value.
      help: the help text of its flag.
      metadata: `least` and `most`: the smallest and largest allowed number. `needs`: another option without which it
        has no effect: `pad_end_of_episodes` or `items=sequences`. `metavar`: the name of its value in the help. `code`:
        it names a function as `module:function`, whose code becomes part of the plan. `by_value`: it takes any object
        for a name. `parse`: a function that reads its text. `short`: a short spelling of its flag: `("-o",)`.
        `repeated`: a flag for each value. `mapping`: a list of KEY=VALUE, which is a mapping in Python. `positional`:
        no flag; `several`: one or more of them. `hidden`: neither a flag nor in the help.
    """
    return dataclasses.field(default=default, metadata={"help": help, **metadata})


class Group(NamedTuple):
    """The options that another option's value brings along: LeRobot's, for `--to=lerobot`.

    Attributes:
      field: the config's field that holds them: `to_options`.
      choice: the other option with its value: `--to=lerobot`.
      options_class: the class of the options.
    """

    field: str
    choice: str
    options_class: type[Options]

    def take(self, value: Any) -> Options:
        """The group's options, given as such, by name, or not at all. Raises UsageError if they cannot be used."""
        if value is None or isinstance(value, Mapping):
            try:
                return self.options_class.create(**(value or {}))
            except ValueError as error:  # of a user's `__post_init__`
                raise error if isinstance(error, UsageError) else UsageError(f"{self.choice}: {error}") from error
        if type(value) is not self.options_class:
            raise UsageError(f"{self.choice} takes {self.options_class.__name__}, not {type(value).__name__}")
        return value


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
                taken = check_value(value, hints[field.name], field)
                object.__setattr__(self, field.name, taken)  # how a frozen dataclass initializes itself
        for field in dataclasses.fields(self):
            name, _, choice = field.metadata.get("needs", "").partition("=")
            if not name or getattr(self, field.name) in (field.default, None):
                continue
            if getattr(self, name) != choice if choice else not getattr(self, name):
                raise UsageError(f"--{flag_name(field.name)} needs --{field.metadata['needs']}")
        for group in self.groups(vars(self)):
            object.__setattr__(self, group.field, group.take(getattr(self, group.field)))

    @classmethod
    def of(cls, options: Any) -> Self:
        """This group's options, taken from a config that includes them."""
        return cls(**{field.name: getattr(options, field.name) for field in dataclasses.fields(cls)})

    @classmethod
    def groups(cls, values: Mapping[str, Any]) -> tuple[Group, ...]:
        """The groups of the formats that these option values name. Raises UsageError if a format is unknown."""
        del values
        return ()

    @classmethod
    def known_groups(cls) -> tuple[Group, ...]:
        """The groups of all our formats that could be named."""
        return ()

    @classmethod
    def open_input(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """These option values with the format of the input, which decides what further options there are."""
        return values

    @classmethod
    def create(cls, *positional: Any, **options: Any) -> Self:
        """Makes a config from its own options and those of the formats it names.

            ConvertConfig.create("data/toy/1.0.0", "out", to="lerobot", fps=10)

        Raises:
          UsageError: an option is unknown or belongs to another format, or its value is not allowed.
        """
        names = [field.name for field in dataclasses.fields(cls) if not field.kw_only]
        if len(positional) > len(names):
            raise TypeError(f"{cls.__name__} takes {len(names)} positional arguments, not {len(positional)}")
        values: Mapping[str, Any] = {**dict(zip(names, positional, strict=False)), **options}
        own, groups = option_names(cls), cls.groups(values)
        if values.keys() - {*own, *(name for group in groups for name in option_names(group.options_class))}:
            values = cls.open_input(values)
            groups = cls.groups(values)
        made = {name: values[name] for name in own if name in values}
        unknown = [name for name in values if name not in own]
        for group in groups:
            names = option_names(group.options_class)
            if given := {name: values[name] for name in names if name in values}:
                if group.field in made:
                    raise UsageError(f"{next(iter(given))} and {group.field} were both given: use one of them")
                made[group.field] = group.take(given)
            unknown = [name for name in unknown if name not in names]
        if unknown:
            raise unknown_option(cls, unknown[0])
        return cls(**made)


def unknown_option(config_class: type[Options], name: str) -> UsageError:
    """The error for an option that a job and the chosen formats lack: which format has it, or the nearest option."""
    groups = config_class.known_groups()
    if owners := [group.choice for group in groups if name in option_names(group.options_class)]:
        return UsageError(f"--{flag_name(name)} is an option of {join_texts(owners)}")
    classes = (config_class, *(group.options_class for group in groups))
    names = dict.fromkeys(f"--{flag_name(name)}" for options_class in classes for name in option_names(options_class))
    flag = f"{'-' if len(name) == 1 else '--'}{flag_name(name)}"
    return UsageError(f"unknown option {flag}{did_you_mean(flag, names)}")


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
    return {name: _without_none(hint) for name, hint in typing.get_type_hints(options_class).items()}


def _without_none(hint: Any) -> Any:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return kinds[0] if len(kinds) == 1 else typing.Union[tuple(kinds)]  # noqa: UP007
    return hint


def check_value(value: Any, kind: Any, field: dataclasses.Field[Any]) -> Any:
    """Converts a value to the option's type; raises UsageError if it has another type or is not allowed."""
    flag = f"--{flag_name(field.name)}"
    if value is None and field.default is None:
        return None
    if typing.get_origin(kind) is typing.Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            hint = did_you_mean(str(value), map(str, choices))
            raise UsageError(f"{flag}={value}: expected one of {', '.join(map(str, choices))}{hint}")
        return value
    if typing.get_origin(kind) is tuple:
        parts = _take_list(flag, value, field)
        return tuple(_take_text(flag, part, field) for part in parts if not (isinstance(part, str) and part == ""))
    if kind is str and field.metadata.get("positional") and isinstance(value, (list, tuple)):
        return ",".join(_take_text(flag, part, field) for part in value)
    if kind is str:
        return _take_text(flag, value, field)
    if isinstance(value, str) and "parse" in field.metadata:
        return field.metadata["parse"](value)
    expected = bool if kind is bool else numbers.Integral if kind is int else numbers.Real
    if not isinstance(value, expected) or isinstance(value, bool) != (kind is bool):
        raise UsageError(f"{flag}={value!r}: expected {getattr(kind, '__name__', 'a number')}")
    least, most = field.metadata.get("least", -math.inf), field.metadata.get("most", math.inf)
    if not value >= least:
        raise UsageError(f"{flag}={value}: must be at least {least}")
    if value > most:
        raise UsageError(f"{flag}={value}: must be at most {most}")
    return value


def _take_list(flag: str, value: Any, field: dataclasses.Field[Any]) -> Sequence[Any]:
    """The values of an option with several: of a list, of comma-separated text, of a mapping."""
    if isinstance(value, Mapping) and field.metadata.get("mapping"):
        return [
            f"{key}={own if isinstance(own, (str, os.PathLike)) else json.dumps(list(own))}"
            for key, own in value.items()
        ]
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if field.metadata.get("repeated") or isinstance(value, os.PathLike):  # one flag per value, which may have commas
        return [value]
    if isinstance(value, str):
        return value.split(",")
    raise UsageError(f"{flag}={value!r}: expected a list of text")


def _take_text(flag: str, value: Any, field: dataclasses.Field[Any]) -> str:
    """The text of a value: itself, a path, the name of a function, or what stands for an object."""
    if isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if field.metadata.get("by_value") and not isinstance(value, (type, types.FunctionType)):
        return by_value(field.name, value)
    if callable(value):
        return qualified_name(value)
    raise UsageError(f"{flag}={value!r}: expected text, not {type(value).__name__}")
