"""The command `rlds-beam`: one subcommand per job. Imports nothing heavy until a job runs."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import logging
import os
import signal
import sys
import textwrap
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, TextIO, cast

from rlds_beam import worker_status
from rlds_beam._version import __version__
from rlds_beam.cli import arguments
from rlds_beam.cli.functions import JOBS, find_job
from rlds_beam.errors import OutOfMemoryError, RldsBeamError, UsageError
from rlds_beam.platforms import keep_freed_memory
from rlds_beam.terminal.options import print_json
from rlds_beam.text import EscapingStream, without_secrets
from rlds_beam.user_functions import describe_error, is_users

_ABOUT = """\
Checks episodic datasets (RLDS, LeRobot, Minari, D4RL and others) and converts
them to training data, with Apache Beam.

examples:
  rlds-beam example data
  rlds-beam inspect data/point_mass/1.0.0
  rlds-beam check data/point_mass/1.0.0
  rlds-beam convert data/point_mass/1.0.0 pairs
"""

_RESUMABLE = ("convert", "record")

_MAX_ERROR_CHARACTERS = 1500

_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "GRPC_VERBOSITY": "NONE",
    "GLOG_minloglevel": "4",
    "PYTHONWARNINGS": "ignore",
    "GRPC_ENABLE_FORK_SUPPORT": "0",  # its handler waits for threads that wait for this thread's interpreter lock
}
"""Silences TensorFlow, gRPC, EnvLogger, and our processes, unless the user has set other values."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    if argv is None and "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(_top_parser(os.environ["COMP_LINE"].split()[1:]))
    if argv is None:
        keep_freed_memory()
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal may lack the characters of a dataset's texts
    words = list(sys.argv[1:] if argv is None else argv)
    out, err = cast(TextIO, EscapingStream(sys.stdout)), cast(TextIO, EscapingStream(sys.stderr))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        end = words.index("--") if "--" in words else len(words)  # flags of Beam follow
        return _run_reporting_errors(words[:end], tuple(words[end + 1 :]))


def _top_parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of all commands, with the flags of the one that `words` start with."""
    parser = arguments.Parser(prog="rlds-beam", description=_ABOUT)
    parser.add_argument("--version", action="version", version=f"rlds-beam {__version__}", help="show the version")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, line in JOBS.items():
        command = commands.add_parser(name, help=line)
        if name in words[:1]:
            arguments.add_config(command, find_job(name)[1], words[1:])
    return parser


def _run_reporting_errors(words: list[str], beam_options: tuple[str, ...]) -> int:
    try:
        code = _run(words, beam_options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `| head` has read enough
        _discard_stdout()
        return 128 + signal.SIGPIPE
    except (Exception, KeyboardInterrupt) as error:
        return _print_error(error, words)


def _print_error(error: BaseException, words: list[str]) -> int:
    """Prints an error in one line, and as JSON with `--json`; returns the exit code."""
    if isinstance(error, MemoryError) and not isinstance(error, RldsBeamError):
        error = OutOfMemoryError.from_detail(error)
    cause, code = error.__cause__, RldsBeamError.exit_code
    if isinstance(error, RldsBeamError):
        text, code = str(error), error.exit_code
    elif isinstance(error, KeyboardInterrupt):
        resumes = words[0] in _RESUMABLE and "--dry_run" not in words
        text = "interrupted" + ("; finished work is kept, run the same command to resume" if resumes else "")
        code = 128 + signal.SIGINT
    elif isinstance(error, OSError) and not is_users(error):
        cause, text = error, f"{type(error).__name__}: {error}"
    else:
        cause = error
        text = f"{'your code ' if is_users(error) else ''}{describe_error(error)}; -v shows the traceback"
    if cause is not None and worker_status.is_verbose():
        print(without_secrets("".join(traceback.format_exception(cause))), end="", file=sys.stderr)
    text = without_secrets(text)
    text = text if len(text) <= _MAX_ERROR_CHARACTERS else f"{text[:_MAX_ERROR_CHARACTERS]}..."
    print(f"rlds-beam: {text}", file=sys.stderr)
    try:
        if not {"--json", "--format=json"}.isdisjoint(words):
            print_json({"error": {"type": type(error).__name__, "message": text, "exit_code": code}})
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


def job_parser(name: str) -> argparse.ArgumentParser:
    """The parser of a job, without the flags of its config (`arguments.parse`)."""
    job, config_class = find_job(name)
    examples = textwrap.indent(textwrap.dedent(job.EXAMPLES).strip(), "  ")
    about = textwrap.fill(" ".join((config_class.__doc__ or "").split()), arguments.WIDTH)
    parser = arguments.Parser(
        prog=f"rlds-beam {name}",
        description=f"{about}\n\nexamples:\n{examples}",
        usage=f"rlds-beam {name} {job.USAGE} [options]",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="show what Beam, TensorFlow and workers log")
    return parser


def _run(words: list[str], beam_options: tuple[str, ...]) -> int:
    name, *flags = words or ["--help"]
    if name.startswith("-"):
        with contextlib.suppress(SystemExit):  # after --help
            _top_parser().parse_args(words or ["--help"])
        return 0
    _choose_logs(not {"-v", "--verbose"}.isdisjoint(flags))
    job, config_class = find_job(name)
    if beam_options and "beam_options" not in config_class.__dataclass_fields__:
        raise UsageError(f"{name} runs nothing on Beam: it takes no flags after --")
    try:
        config: Any = arguments.parse(config_class, job_parser(name), flags)
    except SystemExit:
        return 0
    if beam_options:
        config = dataclasses.replace(config, beam_options=beam_options)
    with worker_status.as_ctrl_c():
        return job.main(config)


def _choose_logs(verbose: bool) -> None:
    """Hides the logs of TensorFlow, gRPC, Beam and Reverb, also in our processes, unless `verbose`."""
    os.environ.pop(worker_status.VERBOSE, None)
    if verbose:
        os.environ[worker_status.VERBOSE] = "1"
        logging.basicConfig(level=logging.INFO)
        return
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")
    logging.basicConfig(level=logging.CRITICAL)
    logging.getLogger().setLevel(logging.CRITICAL)
