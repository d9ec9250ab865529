"""Dataclass fields become argparse arguments: every option of a config a flag, every group of options a section."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from rlds_beam import plugins
from rlds_beam.errors import UsageError
from rlds_beam.options import Options, flag_name, type_hints, unknown_option
from rlds_beam.text import join_texts

Config = TypeVar("Config", bound=Options)

WIDTH = 80
"""Columns of the help, at most."""

_METAVARS = {int: "N", float: "N", int | float: "N", tuple[str, ...]: "NAMES"}

CHOOSING = ("from_", "to", "runner")
"""The options whose values decide which others there are."""


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises UsageError instead of ending the process."""

    def __init__(self, prog: str, description: str = "", **kwargs: Any):
        formatter = functools.partial(argparse.RawDescriptionHelpFormatter, width=WIDTH)
        super().__init__(prog, description=description, allow_abbrev=False, formatter_class=formatter, **kwargs)
        self.color = False  # Python 3.14 would write control characters

    def error(self, message: str) -> typing.NoReturn:
        raise UsageError(message)


def parse(config_class: type[Config], parser: argparse.ArgumentParser, words: Sequence[str]) -> Config:
    """Adds the flags of a config and of the formats that `words` choose to a parser, and reads `words`.

    Raises:
      UsageError: a flag is unknown, or its value is not allowed.
    """
    chosen = find_choices(config_class, words)
    add_config(parser, config_class, chosen)
    namespace, rest = parser.parse_known_intermixed_args(list(words))
    values = vars(namespace)
    unknown = [word for word in rest if word.startswith("-")]
    if unknown and "from_" not in {*chosen} and plugins.names("formats"):  # perhaps of another package's format
        recognized = config_class.open_input(values)
        source = Parser("", add_help=False)
        for group in config_class.groups(recognized):
            add_options(source, group.options_class)
        namespace, rest = source.parse_known_intermixed_args(rest)
        values, unknown = {**recognized, **vars(namespace)}, [word for word in rest if word.startswith("-")]
    if unknown:
        name = unknown[0].lstrip("-").partition("=")[0]
        raise unknown_option(config_class, name)
    if rest:
        raise UsageError(f"unexpected argument {rest[0]!r}; quote patterns: '*.tfrecord*'")
    return config_class.create(**{name: value for name, value in values.items() if name not in ("verbose", "quiet")})


def find_choices(config_class: type[Options], words: Sequence[str]) -> dict[str, str]:
    """The given values of the options that decide which others there are: `{"to": "lerobot"}`."""
    parser = Parser("", add_help=False)
    for name in CHOOSING:
        if name in config_class.__dataclass_fields__:
            parser.add_argument(f"--{flag_name(name)}", dest=name, default=argparse.SUPPRESS)
    return vars(parser.parse_known_args(list(words))[0])


def add_config(parser: argparse.ArgumentParser, config_class: type[Options], chosen: Mapping[str, str]) -> None:
    """Adds the flags of a config, of the chosen formats, and of all sources if none is chosen.

    Raises:
      UsageError: a format is unknown.
    """
    add_options(parser, config_class, chosen)
    sources = [] if "from_" in chosen else [g for g in config_class.known_groups() if g.field == "from_options"]
    for group in (*config_class.groups(chosen), *sources):
        same = [other.choice for other in sources if other.options_class is group.options_class] or [group.choice]
        add_options(parser, group.options_class, of=f" ({join_texts(same)})")


def add_options(
    parser: argparse.ArgumentParser, options_class: type[Options], chosen: Mapping[str, str] | None = None, of: str = ""
) -> None:
    """Adds a section for each class that declares options; names that the parser has already are left out."""
    hints = type_hints(options_class)
    fields = {field.name: field for field in dataclasses.fields(options_class)}
    for owner in reversed(options_class.__mro__):
        taken = {action.dest for action in parser._actions}
        own = [fields[name] for name in inspect.get_annotations(owner) if name in fields and name not in taken]
        own = [field for field in own if not field.metadata.get("hidden")]
        if not own:
            continue
        title = (owner.__doc__ or "").split("\n")[0].rstrip(".") + of
        group = parser if owner is options_class and not of else parser.add_argument_group(title)
        needed = vars(owner).get("shown_with")  # the runner, for example
        hidden = needed is not None and (chosen or {}).get(needed[0]) != needed[1]
        for field in own:
            _add_flag(parser if field.metadata.get("positional") else group, field, hints[field.name], hidden)


def _add_flag(group: argparse._ActionsContainer, field: dataclasses.Field[Any], hint: Any, hidden: bool) -> None:
    text = field.metadata.get("help", "").replace("%", "%%")
    if field.metadata.get("positional"):
        nargs = "+" if field.metadata.get("several") else None if field.default is dataclasses.MISSING else "?"
        group.add_argument(field.name, metavar=field.name.upper(), help=text, nargs=nargs, default=argparse.SUPPRESS)
        return
    if field.default not in (None, (), False, ""):
        text += f" (default: {field.default})"
    flags = (*field.metadata.get("short", ()), f"--{flag_name(field.name)}")
    how: dict[str, Any] = {"metavar": field.metadata.get("metavar", _METAVARS.get(hint, "NAME"))}
    if hint is bool:
        how = {"action": "store_true"}
    elif typing.get_origin(hint) is typing.Literal:
        how = {"choices": typing.get_args(hint)}
    elif hint in (int, float):
        how["type"] = hint
    elif field.metadata.get("repeated"):
        how["action"] = "append"
    help_text = argparse.SUPPRESS if hidden else text
    group.add_argument(*flags, dest=field.name, help=help_text, default=argparse.SUPPRESS, **how)
