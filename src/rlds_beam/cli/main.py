"""The command `rlds-beam`: one subcommand per job. Imports nothing heavy until a job runs."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import cast

from rlds_beam import interrupts, lazy, plugins, worker_status
from rlds_beam.cli import flags
from rlds_beam.cli.parsers import JOBS, MISSING, command_parser, complete_arguments, job_parser
from rlds_beam.errors import NoMoreThreadsError, RldsBeamError, UsageError, naming_limits, pip_install
from rlds_beam.platforms import keep_freed_memory
from rlds_beam.terminal.options import PrintOptions, begin, print_json
from rlds_beam.text import escaping, without_secrets
from rlds_beam.user_functions import describe_error, is_users

_RESUMES = "finished work is kept, run the same command to resume"
_LEFT = {
    "convert": _RESUMES,
    "record": _RESUMES,
    "push": "the tables keep the items that they received, unless their server ended with this command",
    "serve": "the server has ended",
}
"""What an interrupted command leaves behind."""

_STORES = ("apache_beam", "azure", "boto3", "botocore", "google", "httplib2", "requests", "urllib3")
"""Packages whose errors are about buckets and connections."""

_MAX_ERROR_CHARACTERS = 1500
"""Longest error, in characters."""

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

_PIPE_CLOSED = 128 + signal.SIGPIPE
_INTERRUPTED = 128 + signal.SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    if argv is None and "_ARGCOMPLETE" in os.environ:
        complete_arguments(os.environ["COMP_LINE"].split()[1:])
    if argv is None and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may lack the characters of a dataset's texts
    with contextlib.redirect_stdout(escaping(sys.stdout)), contextlib.redirect_stderr(escaping(sys.stderr)):
        arguments = list(sys.argv[1:] if argv is None else argv)
        begin(arguments)
        return _run_reporting_errors(arguments, argv is None)


def _run_reporting_errors(arguments: list[str], of_this_process: bool) -> int:
    try:
        code = _run(arguments, of_this_process)
        sys.stdout.flush()
        return code
    except RldsBeamError as error:
        if error.__cause__ is not None and _is_verbose(arguments):
            _print_traceback(error.__cause__)
        code = _print_failure(arguments, type(error).__name__, str(error), error.exit_code)
        if of_this_process and isinstance(error, NoMoreThreadsError):
            os._exit(code)  # gRPC waits, when a process ends, for threads that it could not start
        return code
    except KeyboardInterrupt:
        text = f"interrupted; {_after_interruption(arguments)}"
        return _print_failure(arguments, "KeyboardInterrupt", text, _INTERRUPTED)
    except BrokenPipeError:  # `| head` has read enough
        _discard_stdout()
        return _PIPE_CLOSED
    except Exception as error:
        if is_users(error):
            text = f"your code {describe_error(error)}; -v shows the traceback"
            if _is_verbose(arguments):
                _print_traceback(error)
            return _print_failure(arguments, type(error).__name__, text, RldsBeamError.exit_code)
        if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] not in _STORES:
            if not of_this_process:
                raise
            _print_traceback(error)  # an internal error: the traceback is needed
            return RldsBeamError.exit_code
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return _print_failure(arguments, type(error).__name__, text, RldsBeamError.exit_code)


def _is_verbose(arguments: list[str]) -> bool:
    return not {"-v", "--verbose"}.isdisjoint(_split(arguments)[0])


def _print_traceback(error: BaseException) -> None:
    print(without_secrets("".join(traceback.format_exception(error))), end="", file=sys.stderr)


def _after_interruption(arguments: list[str]) -> str:
    """The state after an interrupted command, and what to do."""
    dry = "--dry_run" in _split(arguments)[0]
    return "nothing was written" if dry else _LEFT.get(arguments[0], "nothing was written")


def _print_failure(arguments: list[str], kind: str, text: str, code: int) -> int:
    """Prints an error in one line, and as JSON with `--json`; returns the exit code."""
    text = without_secrets(text)
    text = text if len(text) <= _MAX_ERROR_CHARACTERS else f"{text[:_MAX_ERROR_CHARACTERS]}..."
    print(f"rlds-beam: {text}", file=sys.stderr)
    if not {"--json", "--format=json"}.isdisjoint(_split(arguments)[0]):
        with contextlib.suppress(OSError):
            print_json({"error": {"type": kind, "message": text, "exit_code": code}})
    _flush_stdout()
    return code


def _flush_stdout() -> None:
    """Flushes standard output; if that fails, discards it, so that Python does not try again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard_stdout()


def _discard_stdout() -> None:
    with contextlib.suppress(OSError, ValueError):  # a stream that is not a file has no descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _run(arguments: list[str], of_this_process: bool) -> int:
    command = arguments[0] if arguments else "--help"
    if command in JOBS:
        return _job(command, arguments[1:], of_this_process)
    if command == "help":
        from rlds_beam.cli import help_tables

        named = arguments[1] if len(arguments) > 1 else ""
        if named in JOBS or (named not in help_tables.TABLES and named in plugins.names("commands")):
            return _job(named, [*arguments[2:], "--help"], of_this_process)
        return help_tables.main(arguments[1:])
    if command in MISSING:
        raise UsageError(f"{command} needs rlds_beam.{MISSING[command]}, which is not installed: {pip_install()}")
    if not command.startswith("-"):  # of another package, or unknown
        return _job(command, arguments[1:], of_this_process)
    try:
        command_parser().parse_args(arguments or ["--help"])
    except SystemExit as done:  # --help, --version
        return int(done.code or 0)
    raise UsageError("the command is missing: rlds-beam --help lists the commands")


def _job(name: str, arguments: list[str], of_this_process: bool) -> int:
    if of_this_process:
        keep_freed_memory()
    ours, beam_options = _split(arguments)
    job, config_class, parser = job_parser(name, ours)
    try:
        config = flags.parse_config(parser, config_class, ours, beam_options)
    except SystemExit as done:  # --help
        return int(done.code or 0)
    silent = hasattr(config, "progress") and not {"-q", "--quiet"}.isdisjoint(ours)
    if silent:
        config = dataclasses.replace(cast(PrintOptions, config), progress="none")
    verbose = _is_verbose(ours)
    if of_this_process and not (verbose or beam_options) and getattr(config, "runner", None) == "local":
        lazy.hide_clients()
    discarded = silent and not (getattr(config, "json", False) or getattr(config, "format", None))
    before = interrupts.count()
    with naming_limits(), _logging(verbose), _sigterm_as_ctrl_c(), _stdout(discarded):
        code = job.main(config)
    if _LEFT.get(name) == _RESUMES and interrupts.count() > before:
        raise KeyboardInterrupt  # a library or finalizer dropped it
    return code


@contextlib.contextmanager
def _stdout(discarded: bool) -> Iterator[None]:
    """Standard output as it is, or discarded."""
    if not discarded:
        yield
        return
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
        yield


def _split(arguments: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Splits the arguments into our flags and Beam's, which follow `--`."""
    if "--" not in arguments:
        return arguments, ()
    at = arguments.index("--")
    return arguments[:at], tuple(arguments[at + 1 :])


@contextlib.contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Makes SIGTERM end a job as Ctrl-C does, together with our servers and worker processes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = interrupts.on_interrupt(signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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


if __name__ == "__main__":
    sys.exit(main())
