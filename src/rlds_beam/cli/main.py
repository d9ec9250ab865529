"""The command `rlds-beam`: one subcommand per job. Imports nothing heavy until a job runs."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import io
import logging
import os
import signal
import sys
import textwrap
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, cast

from rlds_beam import interrupts, plugins, worker_status
from rlds_beam._version import __version__
from rlds_beam.cli import arguments
from rlds_beam.errors import NoMoreThreadsError, RldsBeamError, UsageError, naming_limits, pip_install
from rlds_beam.options import Options
from rlds_beam.pipelines.base import Job
from rlds_beam.platforms import keep_freed_memory
from rlds_beam.terminal.options import PrintOptions, begin, print_json
from rlds_beam.text import did_you_mean, escaping, without_secrets
from rlds_beam.user_functions import describe_error, is_users

_JOBS = {
    "example": "write a small dataset to try the other commands on",
    "record": "run policies in environments and record the episodes",
    "inspect": "show what a dataset holds, and predict a conversion",
    "check": "check every episode, and measure quality signals; write nothing",
    "stats": "compute mean, standard deviation and quantiles of each field",
    "show": "show one episode here, or as a picture or a video",
    "report": "write an HTML page that shows a dataset or a conversion",
    "compare": "show what changed between two versions of a dataset",
    "browse": "look at episodes in a web browser on this machine",
    "convert": "check a dataset and write it in another format",
    "index": "build the index of steps that open_dataset reads, with many processes",
    "upload": "publish what convert or record wrote on the Hugging Face Hub",
    "push": "check a dataset and write it to Reverb tables",
    "serve": "run a Reverb server with tables that fit a dataset",
}

_COMMANDS = ("browse", "example", "inspect", "serve", "show", "upload")
"""Those without a pipeline: their modules are in `cli.commands`, the others in `pipelines`."""

_ROOMS = {"record": "recording", **dict.fromkeys(("show", "report", "compare", "browse"), "viewing")}
"""The package that a job needs, if it is one that an installation may lack."""

JOBS = {name: line for name, line in _JOBS.items() if name not in _ROOMS or find_spec(f"rlds_beam.{_ROOMS[name]}")}
"""The jobs of this installation, each with its line in the help."""

HELP = "list the rules, signals, formats, or connectors"

EXIT_CODES = {
    0: "success",
    1: "the job failed; the same command resumes convert, record, push, and upload",
    2: "wrong usage, or the input or output cannot be used; nothing was written",
    3: "finished, but too much was rejected, there are no items, or versions differ",
    4: "the result is not what was predicted, or the input changed meanwhile",
    130: "interrupted by Ctrl-C or SIGTERM (servers then end with 0)",
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
        _complete(os.environ["COMP_LINE"].split()[1:])
    if argv is None and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may lack the characters of a dataset's texts
    with contextlib.redirect_stdout(escaping(sys.stdout)), contextlib.redirect_stderr(escaping(sys.stderr)):
        arguments = list(sys.argv[1:] if argv is None else argv)
        begin(arguments, argv is None)
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


def _run(words: list[str], of_this_process: bool) -> int:
    command = words[0] if words else "--help"
    if command.startswith("-"):
        parser = arguments.Parser("rlds-beam", _ABOUT, usage="rlds-beam COMMAND ...", epilog=_overview())
        parser.add_argument("--version", action="version", version=f"rlds-beam {__version__}", help="show the version")
        return _until_exit(lambda: parser.parse_args(words or ["--help"])) or 0
    if command == "help" and not (words[1:] and words[1] in commands()):
        from rlds_beam.cli import help_tables

        return help_tables.main(words[1:])
    if command == "help":
        command, words = words[1], [*words[1:], "--help"]
    return _job(command, words[1:], of_this_process)


def commands() -> dict[str, str]:
    """All commands with their lines in the help; at the end those of other packages, which are not imported."""
    others = [name for name in plugins.names("commands") if name not in _JOBS]
    return {**JOBS, "help": HELP, **{name: plugins.describe_package("commands", name) for name in others}}


def _overview() -> str:
    lines = [f"  {name:<8} {line}" for name, line in commands().items()]
    codes = [f"  {code:<8} {line}" for code, line in EXIT_CODES.items()]
    return "\n".join(["commands:", *lines, "", "exit codes:", *codes])


def find_job(name: str) -> tuple[Job, type[Options]]:
    """A job and its config, ours or another package's.

    Raises:
      UsageError: there is none of that name, or it cannot be used.
    """
    if name in JOBS:
        job = importlib.import_module(f"rlds_beam.{'cli.commands' if name in _COMMANDS else 'pipelines'}.{name}")
        return cast(Job, job), getattr(job, f"{name.capitalize()}Config")
    if name in _JOBS:
        raise UsageError(f"{name} needs rlds_beam.{_ROOMS[name]}, which is not installed: {pip_install()}")
    config_class = plugins.find("commands", name)
    if config_class is None:
        raise UsageError(f"unknown command {name!r}{did_you_mean(name, commands())}")
    job = sys.modules[getattr(config_class, "__module__", __name__)]
    if not (isinstance(config_class, type) and issubclass(config_class, Options) and hasattr(job, name)):
        raise UsageError(f"{name}: its entry point is not the config of a job: see rlds_beam.pipelines.base.Job")
    return cast(Job, job), config_class


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


def _until_exit(parse: Callable[[], Any]) -> Any:
    """What `parse` returns; None if argparse ends the process, after --help or --version."""
    try:
        return parse()
    except SystemExit:
        return None


def _job(name: str, words: list[str], of_this_process: bool) -> int:
    if of_this_process:
        keep_freed_memory()
    ours, beam_options = _split(words)
    job, config_class = find_job(name)
    if beam_options and "beam_options" not in config_class.__dataclass_fields__:
        raise UsageError(f"{name} runs nothing on Beam: it takes no flags after --")
    config: Any = _until_exit(lambda: arguments.parse(config_class, job_parser(name), ours))
    if config is None:
        return 0
    if beam_options:
        config = dataclasses.replace(config, beam_options=beam_options)
    silent = hasattr(config, "progress") and not {"-q", "--quiet"}.isdisjoint(ours)
    if silent:
        config = dataclasses.replace(cast(PrintOptions, config), progress="none")
    verbose = _is_verbose(ours)
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
