"""The jobs, the parser of each, and their exit codes: for `--help`, argcomplete, and the reference pages."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import NamedTuple, cast, get_args

from rlds_beam import plugins
from rlds_beam._version import __version__
from rlds_beam.checking.rules import POLICIES, RULES
from rlds_beam.cli import flags
from rlds_beam.errors import UsageError
from rlds_beam.formats.registry import FORMATS, other_names
from rlds_beam.options import Options
from rlds_beam.pipelines.base import Job
from rlds_beam.text import did_you_mean

_JOBS = {
    "example": ("ExampleConfig", "write a small dataset to try the other commands on"),
    "record": ("RecordConfig", "run policies in environments and record the episodes"),
    "inspect": ("InspectConfig", "show what a dataset holds, and predict a conversion"),
    "check": ("CheckConfig", "check every episode, and measure quality signals; write nothing"),
    "stats": ("StatsConfig", "compute mean, standard deviation and quantiles of each field"),
    "show": ("ShowConfig", "show one episode here, or as a picture or a video"),
    "report": ("ReportConfig", "write an HTML page that shows a dataset or a conversion"),
    "compare": ("CompareConfig", "show what changed between two versions of a dataset"),
    "browse": ("BrowseConfig", "look at episodes in a web browser on this machine"),
    "convert": ("ConvertConfig", "check a dataset and write it in another format"),
    "index": ("IndexConfig", "build the index of steps that open_dataset reads, with many processes"),
    "upload": ("UploadConfig", "publish what convert or record wrote on the Hugging Face Hub"),
    "push": ("PushConfig", "check a dataset and write it to Reverb tables"),
    "serve": ("ServeConfig", "run a Reverb server with tables that fit a dataset"),
}
"""Each job: its config class, and its line in the help."""

_IN_THIS_PROCESS = ("example", "inspect", "show", "browse", "upload", "serve")
"""The jobs without a pipeline; their modules are in `cli.commands`."""

ROOMS = {
    "record": "recording",
    **dict.fromkeys(("show", "report", "compare", "browse"), "viewing"),
}
"""The package that a job needs, if it is one that an installation may lack."""

MISSING = {job: room for job, room in ROOMS.items() if find_spec(f"rlds_beam.{room}") is None}
"""The jobs whose package this installation lacks."""

JOBS = {name: job for name, job in _JOBS.items() if name not in MISSING}
"""The jobs of this installation."""

HELPERS = {
    "help": "list the rules, signals, formats, or connectors",
}
"""The commands that are not jobs, with their lines in the help."""

COMMANDS = {**{name: line for name, (_, line) in JOBS.items()}, **HELPERS}
"""Our commands with their lines in the help."""

_ABOUT = (
    "Checks episodic datasets (RLDS, LeRobot, Minari, D4RL and others) and converts them to training data, with "
    "Apache Beam. rlds-beam COMMAND --help shows the options of a command."
)

_EXAMPLES = """
    rlds-beam example  data
    rlds-beam inspect  data/point_mass/1.0.0
    rlds-beam check data/point_mass/1.0.0
    rlds-beam convert  data/point_mass/1.0.0 pairs
"""


class JobParser(NamedTuple):
    """A job with its command line.

    Attributes:
      module: the job.
      config_class: its options.
      parser: its flags.
    """

    module: Job
    config_class: type[Options]
    parser: argparse.ArgumentParser


def find_job(name: str) -> tuple[Job, type[Options]] | None:
    """A job and its config, ours or another package's; None if there is none of that name.

    Raises:
      UsageError: it is another package's, and cannot be used.
    """
    if name in JOBS:
        place = "cli.commands" if name in _IN_THIS_PROCESS else "pipelines"
        job = importlib.import_module(f"rlds_beam.{place}.{name}")
        return cast(Job, job), getattr(job, JOBS[name][0])
    config_class = None if name in {*MISSING, *HELPERS} or name[:1] == "-" else plugins.find("commands", name)
    if config_class is None:
        return None
    if not (isinstance(config_class, type) and issubclass(config_class, Options)):
        raise plugins.refuse("commands", name, "is not a dataclass and subclass of rlds_beam.options.Options")
    job = sys.modules[config_class.__module__]
    lacks = [member for member in ("USAGE", "EXAMPLES", "main", name) if not hasattr(job, member)]
    if lacks:
        raise plugins.refuse("commands", name, f"names a module without {', '.join(lacks)}: see pipelines.base.Job")
    return cast(Job, job), config_class


def commands() -> dict[str, str]:
    """All commands with their lines in the help; at the end those of other packages, which are not imported."""
    others = [name for name in plugins.names("commands") if name not in {*COMMANDS, *MISSING}]
    return {**COMMANDS, **{name: describe_package("commands", name) for name in others}}


def describe_package(kind: plugins.Kind, name: str) -> str:
    """The packages that declare a name: its line in lists, which import nothing."""
    return f"of the package {' and '.join(plugins.packages(kind, name))}"


def broken_lines(*kinds: plugins.Kind) -> list[str]:
    """A section for the help about entry points that cannot be used; none if there are none."""
    kinds = kinds or get_args(plugins.Kind)
    lines = dict.fromkeys(line for kind in kinds for line in plugins.broken(kind))
    if not lines:
        return []
    return ["\n".join(["packages whose entry points cannot be used:", *(f"  {line}" for line in lines)])]


def command_parser() -> argparse.ArgumentParser:
    """The parser of `rlds-beam` without a command."""
    parser = flags.new_parser(
        "rlds-beam",
        f"{_ABOUT}\n\nexamples:\n{flags.commands(_EXAMPLES)}\n\ncommands:\n{flags.table(commands().items())}",
        epilog="\n\n".join([exit_code_lines(EXIT_CODES), *broken_lines()]),
        usage="rlds-beam COMMAND ...",
    )
    parser.add_argument("--version", action="version", version=f"rlds-beam {__version__}", help="show the version")
    return parser


def complete_arguments(words: Sequence[str]) -> None:
    """Answers argcomplete, which runs the command in a shell to ask what may follow `words`; ends the process."""
    import argcomplete

    parser = argparse.ArgumentParser("rlds-beam")
    children = parser.add_subparsers()
    for name, line in commands().items():
        own = [job_parser(name, {}).parser] if name in words[:1] and name not in HELPERS else []
        children.add_parser(name, help=line, parents=own, add_help=not own)
    argcomplete.autocomplete(parser)


def job_parser(name: str, chosen: Sequence[str] | Mapping[str, str]) -> JobParser:
    """The command line of a job.

    Args:
      name: the job.
      chosen: the arguments, or the options that decide which others exist: `{"to": "lerobot"}`.

    Raises:
      UsageError: there is no such job; a format is unknown, or declares options that cannot be flags.
    """
    found = find_job(name)
    if found is None:
        raise UsageError(f"unknown command {name!r}{did_you_mean(name, commands())}")
    module, config_class = found
    fields = config_class.__dataclass_fields__
    asks = isinstance(chosen, Mapping) or any(re.match(r"--help$|-\w*h", word) for word in chosen)
    sections = [*_format_lines(name, fields), *_rule_lines(name), exit_code_lines(exit_codes(name))] if asks else []
    usage = ["rlds-beam", name, *module.USAGE.split(), "[flags]"]
    parser = flags.new_parser(
        f"rlds-beam {name}",
        f"{config_class.__doc__}\n\nexamples:\n{flags.commands(module.EXAMPLES)}",
        epilog="\n\n".join(sections),
        usage=" ".join([*usage, *(["[-- Beam's own flags]"] if "beam_options" in fields else [])]),
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="show what Beam, TensorFlow and workers log")
    if "progress" in fields:
        parser.add_argument("-q", "--quiet", action="store_true", help="print errors only (and the report of --json)")
    if not isinstance(chosen, Mapping):
        chosen = flags.choices(config_class, chosen)
    flags.add_config(parser, config_class, chosen)
    return JobParser(module, config_class, parser)


def exit_code_lines(codes: Mapping[int, str]) -> str:
    """Exit codes as a section of a help text."""
    return f"exit codes:\n{flags.table([(str(code), text) for code, text in codes.items()])}"


def format_rows(kinds: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The name, `from` and `to`, and the description of each format that has one of these `kinds`."""
    for name, known in FORMATS.items():
        takes = [kind if known.kinds[kind] else "" for kind in kinds]
        if any(takes):
            yield (name, *takes, known.about)
    for name in other_names():
        yield (name, *("" for _ in kinds), describe_package("formats", name))


def _format_lines(command: str, fields: Mapping[str, dataclasses.Field[object]]) -> list[str]:
    """The formats that a job reads or writes; none if it has neither --from nor --to."""
    kinds = [kind for kind, field in (("from", "from_"), ("to", "to")) if field in fields]
    if not kinds:
        return []
    title = "formats"
    if "to" in kinds:
        title += f" (options of one: rlds-beam {command} --to={fields['to'].default} --help)"
    return [f"{title}:\n{flags.table(format_rows(kinds))}"]


def _rule_lines(command: str) -> list[str]:
    """The rules, for the help of `check`."""
    if command != "check":
        return []
    return [f"rules, and what can be done besides rejecting the episode (rlds-beam help rules):\n{rule_table(RULES)}"]


def rule_table(rules: Sequence[str] | Mapping[str, str]) -> str:
    """The rules, each with the policies that it allows besides `fail` and `reject`, and its meaning."""
    return flags.table(
        [(rule, ", ".join(p for p in POLICIES[rule] if p not in ("fail", "reject")), RULES[rule]) for rule in rules]
    )


EXIT_CODES = {
    0: "success",
    1: "the job failed; nothing or only part of the output was written",
    2: "wrong usage, or the input or output cannot be used; nothing was written",
    3: "finished, but too much was rejected (--max_rejected), or there are no items",
    4: "the result is not what was predicted, or the input changed meanwhile",
}
"""Exit code -> what it means for most commands. A line of the help has room for 75 characters."""

SIGNALS = {
    130: "interrupted by Ctrl-C or SIGTERM",
    141: "the program that reads the output closed it, for example head",
}
"""Exit codes of a command that was stopped. `serve` and `browse` end with 0 when they are interrupted."""

_CHECKS = {
    1: "the job failed",
    3: "finished, but too much was rejected (--max_rejected)",
    4: "the input changed meanwhile, or the counts do not add up",
}
_GATES = {**_CHECKS, 3: "too much was rejected, or is not as in --expect"}
_RESUMES = {1: "the job failed; the same command resumes it"}

_OWN: dict[str, dict[int, str]] = {
    "example": {1: "the dataset could not be written"},
    "inspect": {1: "the dataset could not be read"},
    "check": _GATES,
    "compare": {0: "the versions are equal", 1: "the job failed", 3: "they differ", 4: _CHECKS[4]},
    "report": {1: "the job failed, or the report could not be written"},
    "stats": {**_CHECKS, 3: "finished, but too much was rejected, or no episode was accepted"},
    "convert": _RESUMES,
    "record": _RESUMES,
    "upload": {
        1: "the upload failed; the same command resumes it",
        2: "wrong usage, or the output or the repository cannot be used",
        4: "a file of the output differs from its manifest",
    },
    "push": {1: "the job failed; with --writer=stream, the same command resumes it"},
    "index": {
        3: "finished, but too much was rejected (--max_rejected), or there are no steps",
    },
    "serve": {
        0: "stopped by Ctrl-C or SIGTERM",
        1: "the server failed",
    },
    "show": {1: "the dataset could not be read, or the file could not be written"},
    "browse": {
        0: "stopped by Ctrl-C or SIGTERM",
        1: "the server failed",
        2: "wrong usage, or a dataset cannot be opened",
    },
}
"""Command -> what its exit codes mean, if it is not what they mean for the others."""

_CODES = {
    "example": (0, 1, 2),
    "inspect": (0, 1, 2),
    "show": (0, 1, 2),
    "report": (0, 1, 2, 4),
    "serve": (0, 1, 2, 4),
    "upload": (0, 1, 2, 4),
    "browse": (0, 1, 2),
}
"""Command -> the codes that it can end with, if not all."""


def exit_codes(command: str) -> dict[int, str]:
    """The exit codes that a command can end with, and what each means."""
    meanings = EXIT_CODES | _OWN.get(command, {})
    return {code: meanings[code] for code in _CODES.get(command, EXIT_CODES)}
