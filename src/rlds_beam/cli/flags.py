"""The command line of a job, from its config dataclass: every option a flag, every group of options a section.

Only argparse: `--help` must answer at once, and a flag has exactly one spelling.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import textwrap
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from rlds_beam import plugins
from rlds_beam.errors import UsageError
from rlds_beam.options import (
    Options,
    belongs_to,
    distinct_groups,
    flag_name,
    nearest_option,
    option_names,
    sections,
    type_hints,
)

Config = TypeVar("Config", bound=Options)

WIDTH = 80
"""Columns of the help, at most."""


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps everything to `WIDTH` columns; indented lines of a description stay as they are."""

    def __init__(self, prog: str, **kwargs: Any):
        super().__init__(prog, width=WIDTH, **kwargs)

    def add_usage(self, usage: str | None, *args: Any, **kwargs: Any) -> None:
        if usage is not None:  # a part in brackets stays on one line
            usage = re.sub(r"\[.*?\]", lambda part: part[0].replace(" ", "\xa0"), usage)
            usage = _wrap(usage, WIDTH - 7, indent=" " * 7).replace("\xa0", " ")
        super().add_usage(usage, *args, **kwargs)

    def start_section(self, heading: str | None) -> None:
        super().start_section(None if heading is None else _wrap(heading, WIDTH - 1))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _wrap(" ".join(text.split()), width).splitlines()

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        del width, indent
        return "\n".join(line if line.startswith(" ") else _wrap(line) for line in text.splitlines())


def fill(text: str, first: str = "", indent: str = "") -> str:
    """A paragraph of at most `WIDTH` columns; `first` begins its first line, `indent` the others."""
    return _wrap(text, WIDTH, first, indent)


def _wrap(text: str, width: int = WIDTH, first: str = "", indent: str = "") -> str:
    """Text in lines of at most `width` columns; a flag or a path is not broken at a hyphen."""
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)


def table(rows: Iterable[Sequence[str]]) -> str:
    """Rows of text, aligned and indented by two spaces; the last column is wrapped to `WIDTH`."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    lines = []
    for *cells, text in rows:
        head = "".join(f"  {cell:<{width}}" for cell, width in zip(cells, widths, strict=True)) + "  "
        lines.append(fill(text, head, " " * len(head)))
    return "\n".join(lines)


def commands(text: str) -> str:
    """Commands, one a line, indented by two spaces; a long one is continued on the next line."""
    lines = []
    for line in textwrap.dedent(text).strip().splitlines():
        parts = textwrap.wrap(line, WIDTH - 4, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        lines.append(" \\\n".join(f"  {part}" for part in parts))
    return "\n".join(lines)


class _Parser(argparse.ArgumentParser):
    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.color = False  # Python 3.14 would write control characters

    def error(self, message: str) -> typing.NoReturn:
        flag, _, what = message.removeprefix("argument ").partition(": ")
        if message.startswith("argument ") and what.startswith(f"{flag}="):
            message = what
        elif message.startswith("argument ") and what.startswith("expected"):
            message = f"{flag}: a value is missing ({flag}=...)"
        elif message.startswith("argument ") and what.startswith("ignored explicit argument"):
            message = f"{flag} takes no value"
        elif message.startswith("the following arguments are required: "):
            message = f"{message.partition(': ')[2].replace(', ', ' and ')} missing: {self.usage or self.prog}"
        raise UsageError(message)


def new_parser(prog: str, description: str, **kwargs: Any) -> argparse.ArgumentParser:
    """An argparse parser that raises UsageError instead of ending the process."""
    return _Parser(prog=prog, description=description, allow_abbrev=False, formatter_class=_HelpFormatter, **kwargs)


def choices(config_class: type[Options], argv: Sequence[str], *, lenient: bool = False) -> dict[str, Any]:
    """The arguments that decide which options exist: `{"to": "lerobot"}`, and the recognized format of the input.

    The input is looked at only if options of some input's format are given, also of another package's, or to list these
    options.

    Args:
      config_class: the options of the command.
      argv: the arguments.
      lenient: look at the input, but ignore it if its format is unknown, as `--help` does.

    Raises:
      UsageError: a value is missing, or the format of the input is unknown.
    """
    parser = new_parser("", "", add_help=False)
    for field in dataclasses.fields(config_class):
        if field.metadata.get("chooses"):
            parser.add_argument(f"--{flag_name(field.name)}", dest=field.name, default=argparse.SUPPRESS)
    chosen = vars(parser.parse_known_args(list(argv))[0])
    reader = new_parser("", "", add_help=False)
    add_config(reader, config_class, chosen)  # with the options of all formats: their values are not inputs
    try:
        parsed, unknown = reader.parse_known_intermixed_args(list(argv))
        values = vars(parsed)
        _check_paths(config_class, values)
    except UsageError:  # the parser with the right options reports it
        return chosen
    foreign = any(word.startswith("--") for word in unknown) and bool(plugins.names("formats"))
    listing = lenient or foreign or bool({"-h", "--help"} & set(argv))
    try:
        given = {name: value for name, value in values.items() if value != reader.get_default(name)}
        return chosen | config_class.imply(given, look=listing)
    except UsageError:
        if listing:
            return chosen
        raise


def add_config(parser: argparse.ArgumentParser, config_class: type[Options], chosen: Mapping[str, Any]) -> None:
    """Adds a flag for each option, in sections: those of `config_class` and those of the chosen formats.

    The help shows the options of an output or runner only if the command line names it; those of all inputs' formats
    are added unless the input's format is known.

    Raises:
      UsageError: a format is unknown, or declares an option that exists already.
    """
    _add_sections(parser, config_class, chosen)
    taken = option_names(config_class)
    choosing = {field.metadata.get("chooses"): field.name for field in dataclasses.fields(config_class)}
    known = {"from_", "recognized"} & chosen.keys()
    for group in distinct_groups(config_class, chosen):
        if group.field == "from_options" and not known:
            continue
        shown = choosing[group.field] in chosen or group.field == "from_options"
        _add_sections(parser, group.options_class, chosen, f" ({group.choice})", taken, shown=shown)
    for group in () if known else config_class.known_groups():
        if group.field == "from_options":
            _add_sections(parser, group.options_class, chosen, f" ({group.choice})", taken)
            taken = [*taken, *option_names(group.options_class)]
    parser.set_defaults(**{name: value for name, value in chosen.items() if name == "recognized"})


def _add_sections(
    parser: argparse.ArgumentParser,
    options_class: type[Options],
    chosen: Mapping[str, Any],
    suffix: str | None = None,
    taken: Sequence[str] = (),
    shown: bool = True,
) -> None:
    """Adds a section for each class that declares options; a format's sections have a `suffix` in their titles."""
    hints = type_hints(options_class)
    for title, owner, fields in sections(options_class):
        own = [field for field in fields if field.name not in taken and not field.metadata.get("hidden")]
        if not own:
            continue
        plain = owner is options_class and suffix is None
        group = parser if plain else parser.add_argument_group(title + (suffix or ""))
        needs: tuple[str, str] | None = vars(owner).get("shown_with")
        for field in own:
            target = parser if field.metadata.get("positional") else group
            hidden = not shown or (needs is not None and chosen.get(needs[0]) != needs[1])
            _add_flag(target, field, hints[field.name], hidden=hidden)


def parse_config(
    parser: argparse.ArgumentParser, config_class: type[Config], argv: Sequence[str], beam_options: tuple[str, ...] = ()
) -> Config:
    """Reads `argv` into a config; `beam_options` are the arguments after `--`.

    Raises:
      UsageError: a flag is unknown (the nearest name is suggested) or of another format, or its value is not allowed.
    """
    if (unknown := _unknown_flag(parser, argv)) is not None:
        raise UsageError(_refusal(unknown, parser, config_class, argv))
    namespace, rest = parser.parse_known_intermixed_args(list(argv))
    if rest:
        raise UsageError(
            f"unexpected argument {rest[0]!r}; see {parser.prog} --help, and quote patterns: '*.tfrecord*'"
        )
    values = {**vars(namespace), "beam_options": beam_options}
    _check_paths(config_class, values)
    own = option_names(config_class)
    if beam_options and "beam_options" not in own:
        raise UsageError(f"{parser.prog} runs nothing on Beam: it takes no flags after --")
    if any(field.name == "output" and field.metadata.get("positional") for field in dataclasses.fields(config_class)):
        _check_last_is_no_input(values)
    own += [name for group in config_class.groups(values) for name in option_names(group.options_class)]
    return config_class.create(**{name: values[name] for name in own if name in values})


def _unknown_flag(parser: argparse.ArgumentParser, argv: Sequence[str]) -> str | None:
    """The first unknown flag. Argparse would take one with a space (`--taks=a b`) for a path or a value."""
    known = parser._option_string_actions
    for argument in argv:
        flag = re.match(r"--?[^\W\d][^\s=]*", argument)
        attached = argument[:2] in known  # -ofile
        if flag and flag[0] not in known and not attached:
            return flag[0]
    return None


def _check_paths(config_class: type[Options], values: Mapping[str, Any]) -> None:
    """Raises UsageError if a path begins with a dash: it is a slip, for example -5 or a lonely -."""
    for field in dataclasses.fields(config_class):
        if field.metadata.get("positional"):
            given = values.get(field.name)
            for path in given if isinstance(given, list) else [given]:
                if isinstance(path, str) and path.startswith("-"):
                    raise UsageError(f"{field.name.upper()} is {path!r}: write a path that begins with - as './{path}'")


def _check_last_is_no_input(values: Mapping[str, Any]) -> None:
    """Raises UsageError if the output is a file: a shell expanded a pattern, and no output was named."""
    inputs, output = values.get("input"), values.get("output")
    if isinstance(inputs, list) and isinstance(output, str) and os.path.isfile(output):
        raise UsageError(f"OUTPUT is missing: the last argument, {output}, is a file; name the directory to write to")


def _refusal(flag: str, parser: argparse.ArgumentParser, config_class: type[Options], argv: Sequence[str]) -> str:
    """The error for an unknown flag: the format that has it, or the flag that it may mean."""
    name = flag.lstrip("-")
    groups = config_class.groups(choices(config_class, argv))
    if (belongs := belongs_to(config_class, name, groups)) is not None:
        return belongs
    nearest, hint = nearest_option(config_class, name, groups, ("verbose", "quiet", "help")), ""
    field = None if nearest is None else config_class.__dataclass_fields__.get(nearest.name)
    if field is not None and field.metadata.get("positional"):
        hint = f"; {field.name.upper()} is given without a flag"
    elif nearest is not None:
        hint = f"; did you mean {nearest}?"
    command = parser.prog.removeprefix("rlds-beam ")
    return f"{command} has no flag {flag}{hint} (Beam's own flags go after --; {parser.prog} --help lists the others)"


def _add_flag(group: argparse._ActionsContainer, field: dataclasses.Field[Any], hint: Any, *, hidden: bool) -> None:
    help_text = field.metadata.get("help", "").replace("%", "%%")
    if field.metadata.get("positional"):
        nargs = "+" if field.metadata.get("several") else None if field.default is dataclasses.MISSING else "?"
        group.add_argument(field.name, metavar=field.name.upper(), help=help_text, nargs=nargs)
        return
    if field.default not in (None, (), False, ""):
        help_text += f" (default: {field.default})"
    given: dict[str, Any] = {"dest": field.name, "help": argparse.SUPPRESS if hidden else help_text}
    flag, short = f"--{flag_name(field.name)}", field.metadata.get("short", ())
    if hint is bool:
        group.add_argument(flag, action="store_true", **given)
    elif field.metadata.get("repeated"):
        group.add_argument(flag, action="append", default=[], metavar=metavar(field, hint), **given)
    else:
        convert = _check(_converter(hint, field), flag)
        group.add_argument(*short, flag, type=convert, default=field.default, metavar=metavar(field, hint), **given)


def metavar(field: dataclasses.Field[Any], hint: Any) -> str:
    """The name of a flag's value in the help: N for a number, the choices if there are any, or a kind of name."""
    if typing.get_origin(hint) is typing.Literal:
        return f"{{{','.join(map(str, typing.get_args(hint)))}}}"
    kind = {int: "N", float: "N", tuple[str, ...]: "NAMES"}.get(hint, "NAME")
    return str(field.metadata.get("metavar", "N" if "parse" in field.metadata else kind))


def _check(convert: Callable[[str], Any], flag: str) -> Callable[[str], Any]:
    """The converter of a flag; argparse reports its errors unchanged."""

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
