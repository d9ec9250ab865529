"""Dataclass fields become argparse arguments: every option of a config a flag, every group of options a section."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
import typing
from collections.abc import Sequence
from typing import Any

from rlds_beam.errors import UsageError
from rlds_beam.options import Options, flag_name, type_hints, unknown_option

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


def parse(config_class: type[Options], parser: argparse.ArgumentParser, words: Sequence[str]) -> Any:
    """The config that `words` describe, read with a parser that gets the flags for it.

    Raises:
      UsageError: a flag is unknown, or its value is not allowed.
    """
    add_config(parser, config_class, words)
    namespace, rest = parser.parse_known_intermixed_args(list(words))
    for word in rest:
        if word.startswith("-"):
            raise unknown_option(config_class, word.lstrip("-").partition("=")[0])
    if rest:
        raise UsageError(f"unexpected argument {rest[0]!r}")
    values = vars(namespace)
    values.pop("verbose", None)
    return config_class.create(**values)


def add_config(parser: argparse.ArgumentParser, config_class: type[Options], words: Sequence[str]) -> None:
    """Adds the flags of a config, of the formats that `words` name, and of all sources if they name none.

    Raises:
      UsageError: a format is unknown.
    """
    from rlds_beam.formats.registry import SOURCES, TRAJECTORIES, output_options, source_options

    add_options(parser, config_class)
    choosing = Parser(add_help=False)
    choosing.add_argument("--from", dest="from_")
    choosing.add_argument("--to")
    chosen, _ = choosing.parse_known_args(list(words))
    fields: dict[str, Any] = config_class.__dataclass_fields__
    if "to" in fields:
        add_options(parser, output_options(chosen.to or fields["to"].default or TRAJECTORIES), section=True)
    if "from_" in fields:
        for name in SOURCES if chosen.from_ is None else [chosen.from_]:
            add_options(parser, source_options(name), section=True)


def add_options(parser: argparse.ArgumentParser, options_class: type[Options], section: bool = False) -> None:
    """Adds a section for each class that declares options; names that the parser has already are left out.

    The options of `options_class` itself are in a section only if that is wanted.
    """
    hints = type_hints(options_class)
    fields = {field.name: field for field in dataclasses.fields(options_class)}
    for owner in reversed(options_class.__mro__):
        taken = {action.dest for action in parser._actions}
        own = [fields[name] for name in inspect.get_annotations(owner) if name in fields and name not in taken]
        own = [field for field in own if "help" in field.metadata]
        if not own:
            continue
        title = (owner.__doc__ or "").split("\n")[0].rstrip(".")
        group = parser if owner is options_class and not section else parser.add_argument_group(title)
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
