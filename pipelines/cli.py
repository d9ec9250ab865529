"""The command `rlds-beam`: one subcommand a job. Imports nothing heavy until a job runs."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import logging
import os
import signal
import sys
import textwrap
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from rlds_beam import __version__, lazy, worker_status
from rlds_beam.checking.rules import POLICIES, RULES
from rlds_beam.errors import NoMoreThreadsError, RldsBeamError, UsageError
from rlds_beam.formats.registry import FORMATS
from rlds_beam.pipelines import flags
from rlds_beam.pipelines.base import Job
from rlds_beam.runners import quiet
from rlds_beam.runners.kernels import choose_kernels

JOBS = {
    "example": ("ExampleConfig", "write a small RLDS dataset to try the other commands on"),
    "record": ("RecordConfig", "roll out behavior policies in environments, and write RLDS or another format"),
    "inspect": ("InspectConfig", "what a dataset holds, and what a plan would make of it"),
    "validate": ("ValidateConfig", "check every episode of a dataset; write nothing"),
    "stats": ("StatsConfig", "means, standard deviations and quantiles of each field, in one pass"),
    "convert": ("ConvertConfig", "check the episodes and write them as trajectory TFRecords"),
    "push": ("PushConfig", "check the episodes, or take what convert wrote, and fill Reverb tables"),
    "serve": ("ServeConfig", "start a Reverb server whose tables fit a dataset"),
    "doctor": ("DoctorConfig", "look for what keeps jobs from running on this machine, and say what to do"),
}
"""Each job's module under `rlds_beam.pipelines`: its config class, and its line in the help."""

_EXIT_CODES = """exit codes:
  0  clean
  1  the pipeline failed
  2  wrong usage, or the input or output cannot be used as it is; nothing was done
  3  more was rejected than --max_rejected allows, or no items were produced; everything else was done
  4  something was written, but is not what was predicted"""


_EXAMPLES = """examples:
  rlds-beam example  data
  rlds-beam inspect  data/point_mass/1.0.0
  rlds-beam validate data/point_mass/1.0.0
  rlds-beam convert  data/point_mass/1.0.0 pairs"""

_RESUMES = "what is finished is kept, run the same command to resume"
_LEFT = {
    "convert": _RESUMES,
    "record": _RESUMES,
    "push": "the tables keep the items that they received, unless their server ended with this command",
    "serve": "the server has ended",
    "doctor": "nothing was changed",
}
"""What is left when a command is interrupted."""

_STORES = ("apache_beam", "boto3", "botocore", "google", "httplib2", "requests", "urllib3")
"""Packages whose errors are about a bucket, or the way to it."""

_MOST_SHOWN = 1500
"""Characters of an error."""

_PIPE_CLOSED = 128 + signal.SIGPIPE
_INTERRUPTED = 128 + signal.SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(arguments, of_this_process=argv is None)
        sys.stdout.flush()
        return code
    except RldsBeamError as error:
        if error.__cause__ is not None and not {"-v", "--verbose"}.isdisjoint(_split(arguments)[0]):
            traceback.print_exception(error.__cause__)
        code = _failed(arguments, type(error).__name__, str(error), error.exit_code)
        if argv is None and isinstance(error, NoMoreThreadsError):
            os._exit(code)  # gRPC waits, when a process ends, for threads that it could not start
        return code
    except KeyboardInterrupt:
        text = f"interrupted; {_after_interruption(arguments)}"
        return _failed(arguments, "KeyboardInterrupt", text, _INTERRUPTED)
    except BrokenPipeError:  # `| head` has read enough
        _discard_stdout()
        return _PIPE_CLOSED
    except Exception as error:
        if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] not in _STORES:
            raise  # a mistake of ours: its place is needed
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return _failed(arguments, type(error).__name__, text, RldsBeamError.exit_code)


def _after_interruption(arguments: list[str]) -> str:
    """What an interrupted command left, and what to do."""
    dry = "--dry_run" in _split(arguments)[0]
    return "nothing was written" if dry else _LEFT.get(arguments[0], "nothing was written")


def _failed(arguments: list[str], kind: str, text: str, code: int) -> int:
    """Prints what was wrong: in one line, and as JSON if the result would be JSON."""
    text = _on_one_screen(text)
    print(f"rlds-beam: {text}", file=sys.stderr)
    if "--json" in _split(arguments)[0]:
        with contextlib.suppress(OSError):
            print(json.dumps({"error": {"type": kind, "message": text, "exit_code": code}}, indent=2))
    _flush_stdout()
    return code


def _on_one_screen(text: str) -> str:
    """Without control characters, which a terminal would obey: metadata of others may be quoted; and not too long."""
    text = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text[: _MOST_SHOWN + 1])
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _flush_stdout() -> None:
    """Writes what was printed; what cannot be written is not tried again when the process ends."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard_stdout()


def _discard_stdout() -> None:
    with contextlib.suppress(OSError, ValueError):  # a stream that is no file has no descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _run(arguments: list[str], of_this_process: bool) -> int:
    parser = flags.new_parser(
        "rlds-beam",
        f"RLDS datasets in, training data out, as Apache Beam pipelines.\n\n{_EXAMPLES}",
        epilog=_EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"rlds-beam {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    for name, (_, line) in JOBS.items():
        commands.add_parser(name, help=line, add_help=False)
    if not arguments or arguments[0] not in JOBS:
        # Only the help, the version, and errors are left to argparse.
        try:
            parser.parse_args(arguments or ["--help"])
        except SystemExit as done:
            return int(done.code or 0)
        raise UsageError(f"unknown command {arguments[0]!r}")
    return _job(arguments[0], arguments[1:], of_this_process)


def _job(name: str, arguments: list[str], of_this_process: bool) -> int:
    if of_this_process:
        choose_kernels()
    job = cast(Job, importlib.import_module(f"rlds_beam.pipelines.{name}"))
    config_class = getattr(job, JOBS[name][0])
    fields = {field.name: field for field in dataclasses.fields(config_class)}
    parser = flags.new_parser(
        f"rlds-beam {name}",
        f"{config_class.__doc__}\n\nexamples:\n{textwrap.indent(textwrap.dedent(job.EXAMPLES).strip(), '  ')}",
        epilog="\n\n".join([*_formats(name, fields), *([_rules()] if name == "validate" else []), _EXIT_CODES]),
        usage=f"rlds-beam {name} {job.USAGE} [flags]" + (" [-- Beam's own flags]" if "beam_options" in fields else ""),
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="show what Beam, TensorFlow and workers log")
    if "progress" in fields:
        parser.add_argument("-q", "--quiet", action="store_true", help="print errors only (and the report of --json)")
    ours, beam_options = _split(arguments)
    flags.add_config(parser, config_class, flags.choices(config_class, ours))
    try:
        config = flags.parse_config(parser, config_class, ours, beam_options)
    except SystemExit as done:  # --help
        return int(done.code or 0)
    silent = "progress" in fields and not {"-q", "--quiet"}.isdisjoint(ours)
    if silent:
        config = dataclasses.replace(config, progress="none")
    verbose = not {"-v", "--verbose"}.isdisjoint(ours)
    if of_this_process and not (verbose or beam_options) and getattr(config, "runner", None) == "local":
        lazy.hide_clients()
    with _logging(verbose), _sigterm_as_ctrl_c(), _stdout(silent and not config.json):
        return job.main(config)


@contextlib.contextmanager
def _stdout(discarded: bool) -> Iterator[None]:
    """Standard output as it is, or discarded."""
    if not discarded:
        yield
        return
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
        yield


def _formats(command: str, fields: Mapping[str, Any]) -> list[str]:
    """The formats that a job reads or writes, as a section of its help; none if it takes no --from and no --to."""
    flags = [flag for flag, field in (("from", "from_"), ("to", "to")) if field in fields]
    example = (
        f" (for the options of one: rlds-beam {command} --to={fields['to'].default} --help)" if "to" in flags else ""
    )
    lines = [f"formats{example}:"]
    for name, known in FORMATS.items():
        takes = [flag if kind else " " * len(flag) for flag, kind in known.kinds.items() if flag in flags]
        if any(text.strip() for text in takes):
            lines.append("  ".join([f"  {name:<14}", *takes, known.about]))
    return ["\n".join(lines)] if flags else []


def _rules() -> str:
    """The rules, each with what may be done about a breach besides rejecting the episode."""
    lines = ["rules, and what may be done about a breach besides rejecting the episode:"]
    for rule, meaning in RULES.items():
        lines.append(f"  {rule:<22}{', '.join(p for p in POLICIES[rule] if p != 'reject'):<14}{meaning}")
    return "\n".join(lines)


def _split(arguments: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Our flags, and Beam's after `--`."""
    if "--" not in arguments:
        return arguments, ()
    at = arguments.index("--")
    return arguments[:at], tuple(arguments[at + 1 :])


@contextlib.contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """SIGTERM ends a job as Ctrl-C does: our servers and worker processes end with it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _logging(verbose: bool) -> Iterator[None]:
    """No logs of TensorFlow, gRPC, Beam and Reverb, here and in processes of ours, unless `verbose`."""
    if verbose:
        os.environ[worker_status.VERBOSE] = "1"
        logging.basicConfig(level=logging.INFO)
        try:
            yield
        finally:
            del os.environ[worker_status.VERBOSE]
        return
    os.environ.pop(worker_status.VERBOSE, None)
    for name, value in quiet.ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")
    logging.basicConfig(level=logging.CRITICAL)
    logging.getLogger().setLevel(logging.CRITICAL)
    yield


if __name__ == "__main__":
    sys.exit(main())
