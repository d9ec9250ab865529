"""Job options, in groups: each option is a Python argument, a flag, and JSON at once.

The groups are frozen dataclasses that import nothing heavy, so that `--help` answers at once. A job's config inherits
the groups it needs (`class ConvertConfig(SourceOptions, CheckOptions, ...)`). A core function takes the group it needs,
so a config can be passed to it directly. The `help` in a field's metadata is the flag's help.

A format's options are a group in one field of the config: `--to=lerobot` puts a `LerobotOptions` into `to_options`.
`Config.create(..., to="lerobot", fps=10)`, which flags and functions use, sorts options into groups.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import json
import numbers
import os
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar, cast

from rlds_beam import lazy
from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean, join_texts
from rlds_beam.user_functions import by_value, qualified_name

__all__ = ["Options", "option"]


Function = TypeVar("Function", bound=Callable[..., Any])


def option(default: Any, help: str, **metadata: Any) -> Any:
    """A dataclass field with a help text.

    Args:
      default: the option's default value.
      help: the help text of its flag.
      metadata: `least`: the smallest allowed number. `metavar`: the name of its value in the help. `code`: it names a
        function as `module:function`, whose code becomes part of the plan. `shared`: a format's option that shares
        its name and value with an option of the job. `short`: a short spelling of its flag: `("-o",)`. `mapping`: a
        list of KEY=VALUE, which is a mapping in Python.
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


@dataclasses.dataclass(frozen=True)
class Options:
    """The base of all groups, and the empty group.

    An option accepts a path for its text, a list or comma-separated text for a tuple, and a function for
    `module:function`; an option with `by_value` accepts any object for its name. A group (`to_options`) may be a
    mapping, as in JSON.

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
        for group in self.groups(vars(self)):
            object.__setattr__(self, group.field, _take_group(getattr(self, group.field), group))

    @classmethod
    def of(cls, options: Any) -> Self:
        """This group's options, taken from a config that includes them."""
        return cls(**{field.name: getattr(options, field.name) for field in dataclasses.fields(cls)})

    def resolve(self) -> Self:
        """These options with what only a look at the input tells: here, nothing."""
        return self

    @classmethod
    def groups(cls, values: Mapping[str, Any]) -> tuple[Group, ...]:
        """The groups of the formats that these option values name.

        Raises:
          UsageError: the format is unknown.
        """
        del values
        return ()

    @classmethod
    def imply(cls, values: Mapping[str, Any], *, look: bool = False) -> dict[str, Any]:
        """Options that follow from these option values: what the input is recognized as.

        Args:
          values: the values of options.
          look: also look at inputs whose format need not be known to sort the options.

        Raises:
          UsageError: the values cannot be used.
        """
        del values, look
        return {}

    @classmethod
    def known_groups(cls) -> tuple[Group, ...]:
        """The groups of all formats that could be named."""
        return ()

    @classmethod
    def create(cls, *positional: Any, **options: Any) -> Self:
        """Makes a config from its own options and those of the formats it names.

            ConvertConfig.create("data/toy/1.0.0", "out", to="lerobot", fps=10)

        Raises:
          UsageError: an option is unknown or belongs to another format, or its value is not allowed.
        """
        positions = (field.name for field in dataclasses.fields(cls) if not field.kw_only)
        options |= cls.imply({**dict(zip(positions, positional, strict=False)), **options})
        own, groups = option_names(cls), distinct_groups(cls, options)
        values = {name: value for name, value in options.items() if name in own}
        for group in groups:
            names = option_names(group.options_class)
            given = {name: options[name] for name in names if name in options}
            own += names
            if given and group.field in values:
                raise UsageError(f"{next(iter(given))} and {group.field} were both given: use one of them")
            if given:
                values[group.field] = _make(group, given)
        for name in options:
            if name not in own:
                belongs = belongs_to(cls, name, groups)
                raise UsageError(belongs or _unknown(cls, name, groups))
        return cls(*positional, **values)


def option_names(options_class: type[Options]) -> list[str]:
    """The names of a group's options."""
    return [field.name for field in dataclasses.fields(options_class)]


class Section(NamedTuple):
    """The options that one class declares, with the title of the class."""

    title: str
    owner: type[Any]
    fields: list[dataclasses.Field[Any]]


def sections(options_class: type[Options]) -> Iterator[Section]:
    """The options by the class that declares them, as the help lists them."""
    added: set[str] = set()
    for owner in reversed(options_class.__mro__):
        declared = vars(owner).get("__annotations__", {})
        own = [field for field in dataclasses.fields(options_class) if field.name in declared]
        own = [field for field in own if field.name not in added]  # an overridden default stays in its group
        added.update(field.name for field in own)
        if own:
            yield Section((owner.__doc__ or "").split("\n")[0].rstrip("."), owner, own)


def in_python(text: str) -> str:
    """Text that names flags, with Python's arguments: `to="lerobot"` for `--to=lerobot`."""
    named = re.sub(r"--(\w+)=([\w.]*\w)", r'--\1="\2"', text)
    return re.sub(r"--(\w+)", lambda flag: "from_" if flag[1] == "from" else flag[1], named)


def _unknown(config_class: type[Options], name: str, groups: Sequence[Group] = (), also: Sequence[str] = ()) -> str:
    """The error for an argument that does not exist; `also` are other arguments of the function."""
    if near := difflib.get_close_matches(name, also, 1, 0.8):
        return f"unknown option {name}; did you mean {near[0]}?"
    nearest = nearest_option(config_class, name, groups, also)
    if nearest is None:
        return f"unknown option {name}"
    value = f'="{nearest.value}"' if nearest.value else ""
    place = f", an option of {join_texts([in_python(choice) for choice in nearest.choices])}" if nearest.choices else ""
    return f"unknown option {name}; did you mean {nearest.name}{value}{place}?"


def check_names(options_class: type[Options]) -> Callable[[Function], Function]:
    """Makes a mistyped argument of a function an error that suggests the right name.

    Args:
      options_class: what `**options` takes besides the options of formats; `Options` without `**options`.
    """

    def decorate(function: Function) -> Function:
        parameters = inspect.signature(function).parameters.values()
        own = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            unknown = options.keys() - set(own)
            if unknown and ":" not in str(options.get("from_")):  # a class of the user may have other options
                groups = options_class.known_groups()
                known = {
                    name for own in (options_class, *(g.options_class for g in groups)) for name in option_names(own)
                }
                for name in sorted(unknown - known):
                    raise UsageError(f"{function.__name__}: {_unknown(options_class, name, groups, own)}")
            return function(*args, **options)

        return cast(Function, call)

    return decorate


_EVERYWHERE = ("help", "verbose", "quiet")
"""Flags of every command that are not job options."""


def distinct_groups(config_class: type[Options], values: Mapping[str, Any]) -> tuple[Group, ...]:
    """The groups of the formats that these values name.

    Raises:
      UsageError: there is no such format, or two options have the same name.
    """
    groups = config_class.groups(values)
    taken = dict.fromkeys((*_EVERYWHERE, *option_names(config_class)), "the command")
    for group in groups:
        for field in dataclasses.fields(group.options_class):
            name = field.name
            if name in taken and not field.metadata.get("shared"):
                raise UsageError(
                    f"{group.choice}: its option --{flag_name(name)} is also one of {taken[name]}: rename it"
                )
            taken[name] = group.choice
    return groups


def belongs_to(config_class: type[Options], name: str, chosen: tuple[Group, ...]) -> str | None:
    """The error for an option of a format that was not chosen; None if no format has the option."""
    owners = [group for group in config_class.known_groups() if name in option_names(group.options_class)]
    if not owners:
        return None
    instead = [group.choice for group in chosen if group.field in {owner.field for owner in owners}]
    choices = join_texts([owner.choice for owner in owners])
    return f"--{flag_name(name)} is an option of {choices}" + (f", not {' or '.join(instead)}" if instead else "")


SYNONYMS = {
    "images=video": "video videos use_video use_videos mp4",
    "fps": "framerate frame_rate rate hz frequency",
    "to": "output_format out_format target_format",
    "from_": "input_format source_format in_format",
    "overwrite": "force clobber f",
    "workers": "jobs j n_jobs num_workers num_proc n_proc threads processes parallel cores cpus",
    "sequence_length": "window window_size horizon seq_len seq_length chunk_size",
    "stride_length": "stride",
    "vcodec": "codec video_codec",
    "robot_type": "robot",
    "progress=none": "no_progress silent",
    "dry_run": "plan simulate n",
    "repair": "fix",
    "env": "environment gym",
    "policy": "agent",
    "steps": "num_steps n_steps total_steps",
    "episodes": "num_episodes n_episodes max_episodes",
    "split=train[:N]": "limit max_episodes num_episodes n_episodes episodes head",
    "output": "o out out_dir output_dir output_path dst dest target",
    "input": "i in input_dir input_path src dataset data path",
}
"""Option, perhaps with a value -> what people call it who come from other programs."""


_MIN_ABBREVIATION = 3
"""Letters from which on the beginning of an option is taken to mean it."""


class Nearest(NamedTuple):
    """The option that a mistyped or foreign name may mean.

    Attributes:
      name: the option: `images`.
      value: the value that it may need: `video`; empty if any.
      choices: the formats that have the option, if none of them was chosen: `["--to=lerobot"]`.
    """

    name: str
    value: str = ""
    choices: Sequence[str] = ()

    def __str__(self) -> str:
        flag = f"--{flag_name(self.name)}{'=' * bool(self.value)}{self.value}"
        return f"{flag}, an option of {join_texts(self.choices)}" if self.choices else flag


def nearest_option(
    config_class: type[Options], name: str, chosen: Sequence[Group] = (), also: Sequence[str] = ()
) -> Nearest | None:
    """The option that a name may mean which is none: one of the job, of the chosen formats, or of the others.

    Args:
      config_class: the options of the job.
      name: the name.
      chosen: the groups of the formats that were chosen.
      also: more names that the job has.
    """
    name = name.replace("-", "_").lower()
    places = [("", config_class, tuple(also)), *(("", group.options_class, ()) for group in chosen)]
    places += [(group.choice, group.options_class, ()) for group in config_class.known_groups() if group not in chosen]
    meant = [(name, ""), *(called.partition("=")[::2] for called, words in SYNONYMS.items() if name in words.split())]
    near = [
        candidate for candidate in meant if any(_takes(options_class, *candidate) for _, options_class, _ in places)
    ]
    names = [known for _, options_class, more in places for known in (*_shown_names(options_class), *more)]
    longer = [known for known in names if known.startswith(name)] if len(name) >= _MIN_ABBREVIATION else []
    likely = difflib.get_close_matches(name, names, 1, 0.85) or longer or difflib.get_close_matches(name, names, 1)
    near += [(similar, "") for similar in likely[:1]]
    if not near:
        return None
    having = [choice for choice, options_class, _ in places if _takes(options_class, *near[0])]
    return Nearest(*near[0], () if "" in having else having)


def _shown_names(options_class: type[Options]) -> list[str]:
    return [field.name for field in dataclasses.fields(options_class) if not field.metadata.get("hidden")]


def _takes(options_class: type[Options], name: str, value: str) -> bool:
    """Whether a group has this option with this value; an empty value stands for any."""
    if name not in option_names(options_class):
        return False
    hint = type_hints(options_class)[name]
    return not value or typing.get_origin(hint) is not typing.Literal or value in typing.get_args(hint)


def flag_name(name: str) -> str:
    """The flag of an option: `from` for `from_`, which is a keyword in Python."""
    return name.rstrip("_")


def _make(group: Group, values: Mapping[str, Any]) -> Options:
    """Makes a group's options; turns a ValueError of a user's `__post_init__` into a UsageError."""
    try:
        return group.options_class.create(**values)
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"{group.choice}: {error}") from error


def _take_group(value: Any, group: Group) -> Options:
    if value is None:
        return _make(group, {})
    if isinstance(value, Mapping):
        return _make(group, value)
    if type(value) is not group.options_class:
        raise UsageError(f"{group.choice} takes {group.options_class.__name__}, not {type(value).__name__}")
    return value


def options_given(options: Any, *groups: type[Options]) -> list[str]:
    """The names of these groups' options that differ from their defaults."""
    fields = (field for group in groups for field in dataclasses.fields(group))
    return [field.name for field in fields if getattr(options, field.name) != field.default]


def type_hints(options_class: type[Any]) -> dict[str, Any]:
    """The type of each option by name; `int` for `int | None`."""
    hints: dict[str, Any] = {}
    for owner in reversed(options_class.__mro__):
        # Not typing.get_type_hints: before Python 3.11 it rejects KW_ONLY.
        hints |= inspect.get_annotations(owner, eval_str=True)
    return {name: _without_none(hint) for name, hint in hints.items()}


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
        repeated = field.metadata.get("repeated")  # one flag per value; a value may contain commas
        if isinstance(value, Mapping) and field.metadata.get("mapping"):
            value = [
                f"{key}={_text(flag, of_key) if _is_text(of_key) else _list_text(flag, of_key)}"
                for key, of_key in value.items()
            ]
        alone = isinstance(value, os.PathLike) or (repeated and not isinstance(value, (list, tuple)))
        parts: Any = [value] if alone else value
        parts = parts.split(",") if isinstance(parts, str) else parts
        if not isinstance(parts, (list, tuple, set, frozenset)):
            raise UsageError(f"{flag}={value!r}: expected a list of text")
        return tuple(_part(flag, part, field) for part in parts if not (isinstance(part, str) and part == ""))
    if _is_object(value, field):
        return by_value(field.name, value)
    if kind is str:
        if field.metadata.get("positional") and isinstance(value, (list, tuple)):
            return ",".join(_text(flag, part) for part in value)
        return _text(flag, value)
    if isinstance(value, str) and "parse" in field.metadata:
        return field.metadata["parse"](value)
    if not _is_number(value, kind):
        raise UsageError(f"{flag}={value!r}: expected {getattr(kind, '__name__', 'a number')}")
    least = field.metadata.get("least")
    if least is not None and not value >= least:
        raise UsageError(f"{flag}={value}: must be at least {least}")
    return value


def _part(flag: str, value: Any, field: dataclasses.Field[Any]) -> str:
    return by_value(field.name, value) if _is_object(value, field) else _text(flag, value)


def _is_object(value: Any, field: dataclasses.Field[Any]) -> bool:
    """Whether an option that accepts any object got an object, not a name."""
    named = isinstance(value, (str, os.PathLike, type, types.FunctionType))
    return bool(field.metadata.get("by_value")) and not named


def _text(flag: str, value: Any) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    elif callable(value):
        value = qualified_name(value)
    if not isinstance(value, str):
        raise UsageError(f"{flag}={value!r}: expected text, not {type(value).__name__}")
    return value


def _is_text(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike))


def _list_text(flag: str, value: Any) -> str:
    """A list of texts as JSON."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(part, str) for part in value):
        raise UsageError(f"{flag}={value!r}: expected a list of text")
    return json.dumps([*value])


def _is_number(value: Any, kind: Any) -> bool:
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    return isinstance(value, numbers.Integral if kind is int else numbers.Real)


# Documented under this path.
__getattr__, *_ = lazy.exports(
    __name__,
    {
        "CheckOptions": "rlds_beam.checking.rules",
        "FrameOptions": "rlds_beam.trajectories.options",
        "ItemOptions": "rlds_beam.trajectories.options",
        "SourceOptions": "rlds_beam.formats.options",
    },
)
