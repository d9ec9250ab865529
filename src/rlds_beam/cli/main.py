"""The command `rlds-beam`: one subcommand per job. Imports nothing heavy until a job runs."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import io
import logging
import os
import re
import signal
import sys
import textwrap
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO, cast

from rlds_beam import worker_status
from rlds_beam._version import __version__
from rlds_beam.cli import arguments
from rlds_beam.cli.functions import JOBS, find_job
from rlds_beam.errors import OutOfMemoryError, RldsBeamError, UsageError
from rlds_beam.platforms import keep_freed_memory
from rlds_beam.terminal.options import begin, print_json
from rlds_beam.text import EscapingStream, did_you_mean, without_secrets
from rlds_beam.user_functions import describe_error, is_users

HELP = "list the rules, signals, formats, or connectors"

TOPICS = ("rules", "signals", "formats", "connectors")

EXIT_CODES = {
    0: "success",
    1: "the job failed; the same command resumes convert, record, push, and upload",
    2: "wrong usage, or the input or output cannot be used; nothing was written",
    3: "finished, but too much was rejected, there are no items, or versions differ",
    4: "the result is not what was predicted, or the input changed meanwhile",
    130: "interrupted by Ctrl-C, SIGTERM, or SIGHUP (servers then end with 0)",
    141: "the program that reads the output closed it, for example head",
}

_ABOUT = """\
Checks episodic datasets (RLDS, LeRobot, Minari, D4RL and others) and converts
them to training data, with Apache Beam.

examples:
  rlds-beam example data
  rlds-beam inspect data/point_mass/1.0.0
  rlds-beam check data/point_mass/1.0.0
  rlds-beam convert data/point_mass/1.0.0 pairs
"""

_RESUMES = "finished work is kept, run the same command to resume"
_LEFT = {
    "convert": _RESUMES,
    "record": _RESUMES,
    "push": "the tables keep the items that they received, unless their server ended with this command",
}
"""What an interrupted command leaves behind."""

_STORES = ("apache_beam", "azure", "boto3", "botocore", "google", "httplib2", "requests", "urllib3")
"""Packages whose errors are about buckets and connections."""

_MAX_ERROR_CHARACTERS = 1500

_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "GRPC_VERBOSITY": "NONE",
    "GLOG_minloglevel": "4",
    "PYTHONWARNINGS": "ignore",
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}
"""Silences TensorFlow, gRPC, EnvLogger, and our processes, unless the user has set other values.

gRPC's handler of a fork waits for threads that wait for the interpreter's lock, which this thread holds.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    if argv is None and "_ARGCOMPLETE" in os.environ:
        _complete(os.environ["COMP_LINE"].split()[1:])
    if argv is None and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may lack the characters of a dataset's texts
    words = list(sys.argv[1:] if argv is None else argv)
    out, err = cast(TextIO, EscapingStream(sys.stdout)), cast(TextIO, EscapingStream(sys.stderr))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        begin(words, argv is None)
        end = words.index("--") if "--" in words else len(words)  # flags of Beam follow
        return _run_reporting_errors(words[:end], tuple(words[end + 1 :]), argv is None)


def _run_reporting_errors(words: list[str], beam_options: tuple[str, ...], of_this_process: bool) -> int:
    verbose = not {"-v", "--verbose"}.isdisjoint(words)
    try:
        code = _run(words, beam_options, of_this_process)
        sys.stdout.flush()
        return code
    except RldsBeamError as error:
        if error.__cause__ is not None and verbose:
            _print_traceback(error.__cause__)
        return _print_failure(words, type(error).__name__, str(error), error.exit_code)
    except KeyboardInterrupt:
        left = "nothing was written" if "--dry_run" in words else _LEFT.get(words[0], "nothing was written")
        return _print_failure(words, "KeyboardInterrupt", f"interrupted; {left}", 128 + signal.SIGINT)
    except MemoryError as error:
        return _print_failure(
            words, "OutOfMemoryError", str(OutOfMemoryError.from_detail(error)), OutOfMemoryError.exit_code
        )
    except BrokenPipeError:  # `| head` has read enough
        _discard_stdout()
        return 128 + signal.SIGPIPE
    except Exception as error:
        if is_users(error):
            text = f"your code {describe_error(error)}; -v shows the traceback"
            if verbose:
                _print_traceback(error)
        elif isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _STORES:
            text = " ".join(f"{type(error).__name__}: {error}".split())
        elif of_this_process:
            _print_traceback(error)  # an internal error: the traceback is needed
            return RldsBeamError.exit_code
        else:
            raise
        return _print_failure(words, type(error).__name__, text, RldsBeamError.exit_code)


def _print_traceback(error: BaseException) -> None:
    print(without_secrets("".join(traceback.format_exception(error))), end="", file=sys.stderr)


def _print_failure(words: list[str], kind: str, text: str, code: int) -> int:
    """Prints an error in one line, and as JSON with `--json`; returns the exit code."""
    text = without_secrets(text)
    text = text if len(text) <= _MAX_ERROR_CHARACTERS else f"{text[:_MAX_ERROR_CHARACTERS]}..."
    print(f"rlds-beam: {text}", file=sys.stderr)
    try:
        if not {"--json", "--format=json"}.isdisjoint(words):
            print_json({"error": {"type": kind, "message": text, "exit_code": code}})
        sys.stdout.flush()
    except OSError:
        _discard_stdout()
    return code


def _discard_stdout() -> None:
    """Discards what is left of standard output, so that Python does not try to write it at exit."""
    with contextlib.suppress(OSError, ValueError):  # a stream that is not a file has no descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _run(words: list[str], beam_options: tuple[str, ...], of_this_process: bool) -> int:
    command, *rest = words or ["--help"]
    if command.startswith("-"):
        codes = _table((str(code), line) for code, line in EXIT_CODES.items())
        epilog = f"commands:\n{_table(commands().items())}\n\nexit codes:\n{codes}"
        parser = arguments.Parser("rlds-beam", _ABOUT, usage="rlds-beam COMMAND ...", epilog=epilog)
        parser.add_argument("--version", action="version", version=f"rlds-beam {__version__}", help="show the version")
        with contextlib.suppress(SystemExit):
            parser.parse_args([command, *rest])
        return 0
    if command == "help" and not (rest and rest[0] in commands()):
        return print_help_table(rest)
    if command == "help":
        command, *rest = [*rest, "--help"]
    return _run_job(command, rest, beam_options, of_this_process)


def commands() -> dict[str, str]:
    """All commands with their lines in the help."""
    return {**JOBS, "help": HELP}


def print_help_table(words: Sequence[str]) -> int:
    """Prints a table. Raises UsageError if there is no such table or connector."""
    from rlds_beam import plugins
    from rlds_beam.checking.rules import POLICIES, RULES
    from rlds_beam.formats.registry import FORMATS, other_names

    topic, *names = words or ["help"]
    if topic in ("-h", "--help", "help"):
        print(f"usage: rlds-beam help {{{','.join(TOPICS)}}}\n       rlds-beam help connectors NAME")
    elif topic == "rules":
        print("A record that breaks a rule is rejected, unless --repair, --accept, or --fail\nnames the rule.\n")
        can = {rule: ", ".join({*POLICIES[rule]} - {"fail", "reject"}) for rule in RULES}
        print(_table((rule, can[rule], RULES[rule]) for rule in RULES))
    elif topic == "signals":
        from rlds_beam.checking.signals.base import SIGNALS

        rows = ((signal.name, f"{signal.threshold:g} {signal.unit}", signal.summary) for signal in SIGNALS.values())
        print("rlds-beam check measures these. --threshold=jump=6 sets a threshold,")
        print(f"--reject='jump > 6' leaves episodes out.\n\n{_table(rows)}")
    elif topic == "formats":
        print(
            "--from=FORMAT reads a format, --to=FORMAT writes it. Your own: --from=module:Class,\n--to=module:Class.\n"
        )
        ours = [
            (name, "from" if known.source else "", "to" if known.output else "", known.about)
            for name, known in FORMATS.items()
        ]
        print(_table([*ours, *((name, "", "", plugins.describe_package("formats", name)) for name in other_names())]))
    elif topic == "connectors":
        _print_connectors(names)
    else:
        raise UsageError(f"there is no help on {topic!r}{did_you_mean(topic, TOPICS)} (rlds-beam help lists all)")
    return 0


def _table(rows: Iterable[Sequence[str]]) -> str:
    """Rows of text, aligned and indented by two spaces; the last column is wrapped."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    lines = []
    for *cells, text in rows:
        head = "".join(f"  {cell:<{width}}" for cell, width in zip(cells, widths, strict=True)) + "  "
        lines.append(textwrap.fill(text, arguments.WIDTH, initial_indent=head, subsequent_indent=" " * len(head)))
    return "\n".join(lines)


def _print_connectors(given: Sequence[str]) -> None:
    """Prints a connector's signature and docstring, or all connectors. Raises UsageError if there is none."""
    from rlds_beam import plugins
    from rlds_beam.connectors import CONNECTORS
    from rlds_beam.connectors.configuration import SECTIONS, connector_class, connector_names, names, summary

    for name in given[:1]:
        if name not in connector_names():
            raise UsageError(f"there is no connector {name!r}{did_you_mean(name, connector_names())}")
        signature = re.sub(r": '([^']*)'", r": \1", str(inspect.signature(connector_class(name))))
        print(f"{name}{signature.removesuffix(' -> None')}\n\n{inspect.getdoc(connector_class(name))}")
        return
    groups = {title: [(name, summary(name)) for name in names(modules)] for title, modules in SECTIONS.items()}
    others = [name for name in plugins.names("connectors") if name not in CONNECTORS]
    groups["Of other packages"] = [(name, plugins.describe_package("connectors", name)) for name in others]
    tables = [f"{title}:\n{_table(rows)}" for title, rows in groups.items() if rows]
    print("\n\n".join(["rlds-beam help connectors NAME shows the arguments of one.", *tables]))


def job_parser(name: str) -> argparse.ArgumentParser:
    """The parser of a job, without the flags of its config (`arguments.parse`)."""
    job, config_class = find_job(name)
    examples = textwrap.indent(textwrap.dedent(job.EXAMPLES).strip(), "  ")
    about = textwrap.fill(" ".join((config_class.__doc__ or "").split()), arguments.WIDTH)
    parser = arguments.Parser(
        f"rlds-beam {name}", f"{about}\n\nexamples:\n{examples}", usage=f"rlds-beam {name} {job.USAGE} [options]"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="show what Beam, TensorFlow and workers log")
    if "progress" in config_class.__dataclass_fields__:
        parser.add_argument("-q", "--quiet", action="store_true", help="print errors only (and the report of --json)")
    return parser


def _complete(words: Sequence[str]) -> None:
    """Answers argcomplete, which runs the command in a shell to ask what may follow `words`; ends the process."""
    import argcomplete

    parser = argparse.ArgumentParser("rlds-beam")
    children = parser.add_subparsers()
    for name, line in commands().items():
        child = children.add_parser(name, help=line)
        if name in words[:1] and name != "help":
            config_class = find_job(name)[1]
            arguments.add_config(child, config_class, arguments.find_choices(config_class, words[1:]))
    argcomplete.autocomplete(parser)


def _run_job(name: str, words: list[str], beam_options: tuple[str, ...], of_this_process: bool) -> int:
    if of_this_process:
        keep_freed_memory()
    job, config_class = find_job(name)
    if beam_options and "beam_options" not in config_class.__dataclass_fields__:
        raise UsageError(f"{name} runs nothing on Beam: it takes no flags after --")
    parser = job_parser(name)
    try:
        config: Any = arguments.parse(config_class, parser, words)
    except SystemExit:  # after --help
        return 0
    if beam_options:
        config = dataclasses.replace(config, beam_options=beam_options)
    silent = hasattr(config, "progress") and not {"-q", "--quiet"}.isdisjoint(words)
    if silent:
        config = dataclasses.replace(config, progress="none")
    prints = not silent or getattr(config, "json", False) or getattr(config, "format", None)
    before = worker_status.interrupts()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_logging(not {"-v", "--verbose"}.isdisjoint(words)))
        stack.enter_context(worker_status.as_ctrl_c())
        if not prints:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        code = job.main(config)
    if _LEFT.get(name) == _RESUMES and worker_status.interrupts() > before:
        raise KeyboardInterrupt  # a library or finalizer dropped it
    return code


@contextlib.contextmanager
def _logging(verbose: bool) -> Iterator[None]:
    """Hides the logs of TensorFlow, gRPC, Beam and Reverb, also in our processes, unless `verbose`."""
    if verbose:
        os.environ[worker_status.VERBOSE] = "1"
        logging.basicConfig(level=logging.INFO)
        try:
            yield
        finally:
            del os.environ[worker_status.VERBOSE]
        return
    os.environ.pop(worker_status.VERBOSE, None)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")
    logging.basicConfig(level=logging.CRITICAL)
    logging.getLogger().setLevel(logging.CRITICAL)
    yield
