"""Sets up glibc's memory in a process, and hides Beam's logs.

A record of a camera episode takes megabytes. By default, glibc gets memory of that size from the system each time and
gives it back, and the system clears every page: half of the processor time of a job that only checks records.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from rlds_beam.platforms import set_malloc_thresholds

_KEPT = 128 << 20
_MAX = 32 << 20  # glibc accepts no more


def keep_freed_memory(kept: int = _KEPT, largest: int = _MAX) -> None:
    """Makes this process keep up to 128 MB (`kept`) of freed memory, and use it for values of up to 32 MB (`largest`).

    Does nothing if the C library is not glibc, or if the user has set one of its variables (`MALLOC_TRIM_THRESHOLD_`).
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    set_malloc_thresholds(trim=kept, mmap=largest)


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "GRPC_VERBOSITY": "NONE",
    "GLOG_minloglevel": "4",
    "PYTHONWARNINGS": "ignore",
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}
"""Silences TensorFlow, gRPC, EnvLogger, and worker processes, unless the user has set other values.

Also, gRPC does not stop its threads when Python starts a process with `fork`, as it does after `vfork` failed at the
limit of processes: gRPC would wait for threads that wait for the interpreter's lock, which this thread holds.
"""

_PACKAGES = r"(apache_beam|google|grpc|httplib2|tensorflow|tf_agents|tree)(\.|$)"
"""Modules whose warnings concern only their own dependencies."""

_OF_BEAM = f"{os.sep}apache_beam{os.sep}"
_OF_BEAM_IN_A_WORKER = re.compile(r'^log_location: "[^"\n]*[/\\]apache_beam[/\\]', re.MULTILINE)

_lock = threading.Lock()
_running = 0
_restore = contextlib.ExitStack()


def quiet(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Wraps a function in `without_logs_of_beam`."""

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with without_logs_of_beam():
            return function(*args, **kwargs)

    return call


@contextlib.contextmanager
def without_logs_of_beam() -> Iterator[None]:
    """Hides logs of Beam, and warnings of Beam, Google's libraries, and TensorFlow; all others are still shown.

    Beam's logs are shown if the user has set the level of the logger `apache_beam`. Thread-safe.
    """
    global _running
    with _lock:
        if not _running:
            _restore.enter_context(_changed())
        _running += 1
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if not _running:
                _restore.close()


@contextlib.contextmanager
def _changed() -> Iterator[None]:
    root, beam = logging.getLogger(), logging.getLogger("apache_beam")
    new = [name for name in ENVIRONMENT if name not in os.environ]
    os.environ.update({name: ENVIRONMENT[name] for name in new})
    # Beam calls `logging.warning`, which permanently adds a handler to a root logger without one. So add the handler
    # that Python uses by default.
    handler = None if root.handlers else logging.lastResort
    if handler is not None:
        root.addHandler(handler)
    shown = beam.level
    if not shown:
        beam.setLevel(logging.CRITICAL)
        root.addFilter(_is_not_of_beam)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=_PACKAGES)
            yield
    finally:
        for name in new:
            os.environ.pop(name, None)
        if not shown:
            root.removeFilter(_is_not_of_beam)
            beam.setLevel(shown)
        if handler is not None:
            root.removeHandler(handler)


def _is_not_of_beam(record: logging.LogRecord) -> bool:
    """Whether a record of the root logger is not Beam's own; records forwarded from workers count by their origin."""
    if _OF_BEAM not in record.pathname or record.levelno >= logging.CRITICAL:
        return True
    text = record.getMessage()
    return text.startswith("severity: ") and not _OF_BEAM_IN_A_WORKER.search(text)
