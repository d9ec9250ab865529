"""The command `rlds-beam`: one subcommand a job. Imports nothing heavy until a job runs."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import cast

from rlds_beam import __version__
from rlds_beam.checking.rules import POLICIES, RULES
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.pipelines import flags
from rlds_beam.pipelines.base import Job

JOBS = {
    "example": ("ExampleConfig", "write a small RLDS dataset to try the other commands on"),
    "inspect": ("InspectConfig", "what a dataset holds, and what a plan would make of it"),
    "validate": ("ValidateConfig", "check every episode of a dataset; write nothing"),
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
  3  more was rejected than --max_rejected allows; everything else was done
  4  something was written, but is not what was predicted"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except RldsBeamError as error:
        print(f"rlds-beam: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("rlds-beam: interrupted; what is finished is kept, run the same command to go on", file=sys.stderr)
        return 130


def _run(arguments: list[str]) -> int:
    parser = flags.new_parser(
        "rlds-beam", "RLDS datasets in, training data out, as Apache Beam pipelines.", epilog=_EXIT_CODES
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
    return _job(arguments[0], arguments[1:])


def _job(name: str, arguments: list[str]) -> int:
    job = cast(Job, importlib.import_module(f"rlds_beam.pipelines.{name}"))
    config_class = getattr(job, JOBS[name][0])
    fields = config_class.__dataclass_fields__
    parser = flags.new_parser(
        f"rlds-beam {name}",
        config_class.__doc__,
        epilog=f"{_rules()}\n\n{_EXIT_CODES}" if "repair" in fields else _EXIT_CODES,
        usage=f"rlds-beam {name} {job.USAGE} [flags]" + (" [-- Beam's own flags]" if "beam_options" in fields else ""),
    )
    flags.add_config(parser, config_class)
    ours, beam_options = _split(arguments)
    try:
        config = flags.parse_config(parser, config_class, ours, beam_options)
    except SystemExit as done:  # --help
        return int(done.code or 0)
    _be_quiet()
    with _sigterm_as_ctrl_c():
        return job.main(config)


def _rules() -> str:
    """The rules, each with what may be done about a breach besides rejecting the episode."""
    lines = ["rules, and what may be done about a breach besides rejecting the episode:"]
    for rule, meaning in RULES.items():
        lines.append(f"  {rule:<22}{', '.join(p for p in POLICIES[rule] if p != 'reject'):<14}{meaning}")
    return "\n".join(lines)


def _split(arguments: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Our flags, and Beam's behind `--`."""
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


def _be_quiet() -> None:
    """No chatter of TensorFlow, gRPC or Beam, here and in worker processes, unless somebody asked for it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    if not os.environ.get("RLDS_BEAM_VERBOSE"):
        warnings.simplefilter("ignore")
        logging.basicConfig(level=logging.CRITICAL)
        logging.getLogger().setLevel(logging.CRITICAL)


if __name__ == "__main__":
    sys.exit(main())
