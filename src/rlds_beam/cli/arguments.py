"""Dataclass fields become argparse arguments: every option of a config a flag, every group of options a section."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from rlds_beam.errors import UsageError
from rlds_beam.options import Options, flag_name, type_hints, unknown_option
from rlds_beam.text import join_texts

Config = TypeVar("Config", bound=Options)

WIDTH = 80
"""Columns of the help, at most."""

_METAVARS = {int: "N", float: "N", tuple[str, ...]: "NAMES"}


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises UsageError instead of ending the process."""

    def __init__(self, **kwargs: Any):
        formatter = functools.partial(argparse.RawDescriptionHelpFormatter, width=WIDTH)
        super().__init__(allow_abbrev=False, formatter_class=formatter, **kwargs)
        self.color = False  # Python 3.14 would write control characters

    def error(self, message: str) -> typing.NoReturn:
        raise UsageError(message)


def parse(config_class: type[Config], parser: argparse.ArgumentParser, words: Sequence[str]) -> Config:
    """Adds the flags of a config and of the formats that `words` choose to a parser, and reads `words`.

    Raises:
      UsageError: a flag is unknown, or its value is not allowed.
    """
    add_config(parser, config_class, find_choices(config_class, words))
    namespace, rest = parser.parse_known_intermixed_args(list(words))
    for word in rest:
        if word.startswith("-"):
            raise unknown_option(config_class, word.lstrip("-").partition("=")[0])
    if rest:
        raise UsageError(f"unexpected argument {rest[0]!r}")
    values = vars(namespace)
    return config_class.create(**{name: value for name, value in values.items() if name not in ("verbose", "quiet")})


def find_choices(config_class: type[Options], words: Sequence[str]) -> dict[str, str]:
    """The formats that `words` name, which decide what other options there are: `{"to": "lerobot"}`."""
    parser = Parser(add_help=False)
    for name in ("from_", "to"):
        if name in config_class.__dataclass_fields__:
            parser.add_argument(f"--{flag_name(name)}", dest=name, default=argparse.SUPPRESS)
    return vars(parser.parse_known_args(list(words))[0])


def add_config(parser: argparse.ArgumentParser, config_class: type[Options], chosen: Mapping[str, str]) -> None:
    """Adds the flags of a config, of the chosen formats, and of all sources if none is chosen.

    Raises:
      UsageError: a format is unknown.
    """
    add_options(parser, config_class)
    sources = [] if "from_" in chosen else [g for g in config_class.known_groups() if g.field == "from_options"]
    for group in (*config_class.groups(chosen), *sources):
        same = [other.choice for other in sources if other.options_class is group.options_class] or [group.choice]
        add_options(parser, group.options_class, of=f" ({join_texts(same)})")


def add_options(parser: argparse.ArgumentParser, options_class: type[Options], of: str = "") -> None:
    """Adds a section for each class that declares options; names that the parser has already are left out."""
    hints = type_hints(options_class)
    fields = {field.name: field for field in dataclasses.fields(options_class)}
    for owner in reversed(options_class.__mro__):
        taken = {action.dest for action in parser._actions}
        own = [fields[name] for name in inspect.get_annotations(owner) if name in fields and name not in taken]
        own = [field for field in own if "help" in field.metadata]
        if not own:
            continue
        title = (owner.__doc__ or "").split("\n")[0].rstrip(".") + of
        group = parser if owner is options_class and not of else parser.add_argument_group(title)
        for field in own:
            _add_flag(parser if field.metadata.get("positional") else group, field, hints[field.name])


def _add_flag(group: argparse._ActionsContainer, field: dataclasses.Field[Any], hint: Any) -> None:
    how: dict[str, Any] = {"help": field.metadata["help"].replace("%", "%%"), "default": argparse.SUPPRESS}
    if field.metadata.get("positional"):
        nargs = "+" if field.metadata.get("several") else None if field.default is dataclasses.MISSING else "?"
        group.add_argument(field.name, metavar=field.name.upper(), nargs=nargs, **how)
        return
    if field.default not in (None, (), False, ""):
        how["help"] += f" (default: {field.default})"
    if "needs" in field.metadata:
        how["help"] += f" (needs --{field.metadata['needs']})"
    if hint is bool:
        how["action"] = "store_true"
    elif typing.get_origin(hint) is typing.Literal:
        how["choices"] = typing.get_args(hint)
    else:
        how["metavar"] = field.metadata.get("metavar", _METAVARS.get(hint, "NAME"))
        how["type"] = hint if hint in (int, float) else str
        how["action"] = "append" if field.metadata.get("repeated") else "store"
    group.add_argument(*field.metadata.get("short", ()), f"--{flag_name(field.name)}", dest=field.name, **how)
