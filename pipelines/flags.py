"""A job's config dataclass as its command line: every field a flag, every group of fields a section.

Only argparse: `--help` has to answer at once, and a flag is spelled in exactly one way.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from rlds_beam.errors import UsageError
from rlds_beam.options import type_hints
from rlds_beam.text import did_you_mean

Config = TypeVar("Config")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        flag, _, what = message.removeprefix("argument ").partition(": ")
        if message.startswith("argument ") and what.startswith(f"{flag}="):
            message = what
        elif message.startswith("argument ") and what.startswith("expected"):
            message = f"{flag}: a value is missing ({flag}=...)"
        elif message.startswith("the following arguments are required: "):
            message = f"{message.partition(': ')[2].replace(', ', ' and ')} missing: {self.usage or self.prog}"
        raise UsageError(message)


def new_parser(prog: str, description: str, **kwargs: Any) -> argparse.ArgumentParser:
    """An argparse parser that raises UsageError where argparse would end the process."""
    return _Parser(
        prog=prog, description=description, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs,
    )  # fmt: skip


def add_config(parser: argparse.ArgumentParser, config_class: type[Any]) -> None:
    """Adds a flag for every field of `config_class`, grouped by the class that declares it."""
    hints, added = type_hints(config_class), set[str]()
    for owner in reversed(config_class.__mro__):
        declared = vars(owner).get("__annotations__", {})
        own = [f for f in _fields(config_class) if f.name in declared and not f.metadata.get("hidden")]
        own = [f for f in own if f.name not in added]  # a default that a subclass overrides stays in its group
        added.update(f.name for f in own)
        if not own:
            continue
        title = (owner.__doc__ or "").split("\n")[0].rstrip(".")
        group = parser if owner is config_class else parser.add_argument_group(title)
        for field in own:
            _add_flag(parser if field.metadata.get("positional") else group, field, hints[field.name])


def parse_config(
    parser: argparse.ArgumentParser, config_class: type[Config], argv: Sequence[str], beam_options: tuple[str, ...] = ()
) -> Config:
    """Reads `argv` into a config; `beam_options` are what followed `--`.

    Raises:
      UsageError: a flag is unknown (the nearest name is suggested), or its value is not allowed.
    """
    namespace, unknown = parser.parse_known_intermixed_args(list(argv))
    if unknown:
        raise UsageError(_unknown(unknown[0], parser))
    values = {**vars(namespace), "beam_options": beam_options}
    names = {field.name for field in _fields(config_class)}
    if beam_options and "beam_options" not in names:
        raise UsageError(f"{parser.prog} runs nothing on Beam: it takes no flags after --")
    if any(field.name == "output" and field.metadata.get("positional") for field in _fields(config_class)):
        _check_last_is_no_input(values)
    return config_class(**{name: values[name] for name in names if name in values})


def _check_last_is_no_input(values: Mapping[str, Any]) -> None:
    """Raises UsageError if the output is a file: a shell expanded a pattern, and no output was named."""
    inputs, output = values.get("input"), values.get("output")
    if isinstance(inputs, list) and isinstance(output, str) and os.path.isfile(output):
        raise UsageError(f"OUTPUT is missing: the last argument, {output}, is a file; name the directory to write to")


def _fields(config_class: type[Any]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(config_class)


def _unknown(argument: str, parser: argparse.ArgumentParser) -> str:
    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}; see {parser.prog} --help, and quote patterns: '*.tfrecord*'"
    flag = argument.split("=")[0]
    hint = did_you_mean(flag, parser._option_string_actions)
    return f"there is no flag {flag}{hint} (Beam's own flags go after --; {parser.prog} --help lists ours)"


def _add_flag(group: argparse._ActionsContainer, field: dataclasses.Field[Any], hint: Any) -> None:
    help_text = field.metadata.get("help", "").replace("%", "%%")
    if field.metadata.get("positional"):
        nargs = "+" if field.metadata.get("several") else None
        group.add_argument(field.name, metavar=field.name.upper(), help=help_text, nargs=nargs)
        return
    if field.default not in (None, (), False):
        help_text += f" (default: {field.default})"
    name = field.name.rstrip("_")  # `from_`, since `from` is a word of Python's
    flag = f"--{name}"
    if hint is bool:
        group.add_argument(flag, dest=field.name, action="store_true", help=help_text)
        return
    if field.metadata.get("repeated"):
        metavar = field.metadata.get("metavar", name.upper())
        group.add_argument(flag, dest=field.name, action="append", default=[], metavar=metavar, help=help_text)
        return
    choices = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else None
    group.add_argument(
        flag, type=_checked(_converter(hint, field), flag), default=field.default,
        dest=field.name,
        metavar=f"{{{','.join(choices)}}}" if choices else field.metadata.get("metavar", name.split("_")[-1].upper()),
        help=help_text,
    )  # fmt: skip


def _checked(convert: Callable[[str], Any], flag: str) -> Callable[[str], Any]:
    """The converter of a flag, whose errors argparse passes on as they are."""

    def checked(text: str) -> Any:
        try:
            return convert(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        except ValueError as error:
            kind = {int: "a whole number", float: "a number"}.get(convert, "another value")  # type: ignore[call-overload]
            raise argparse.ArgumentTypeError(f"{flag}={text}: expected {kind}") from error

    return checked


def _converter(hint: Any, field: dataclasses.Field[Any]) -> Callable[[str], Any]:
    if "parse" in field.metadata:
        parse: Callable[[str], Any] = field.metadata["parse"]
        return parse
    if typing.get_origin(hint) is tuple:
        return lambda text: tuple(part for part in text.split(",") if part)
    convert: Callable[[str], Any] = hint if hint in (int, float) else str
    return convert
