"""A worker process of the local runner: Beam's worker, without output on the terminal."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import signal
import sys
import threading
import time

from rlds_beam.lazy import hide_clients_as_the_parent
from rlds_beam.runners.process_setup import keep_freed_memory
from rlds_beam.user_functions import search_as_the_parent
from rlds_beam.worker_status import is_verbose, keep_note

_WATCH_SECONDS = 0.2


def main() -> None:
    """Serves the runner that started this process, while the file `sys.argv[1]` and the runner's process exist."""
    atexit.register(_end_at_once)
    alive = sys.argv.pop(1)
    # Ctrl-C in a terminal reaches all processes, but only the runner handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    home = os.path.dirname(alive)
    try:
        if not is_verbose():
            _be_quiet(os.path.join(home, f"{os.getpid()}.log"))
        threading.Thread(target=_end_with, args=(alive, os.getppid()), daemon=True).start()
        keep_note(home)
    except FileNotFoundError:  # The runner has already ended.
        sys.exit(1)
    search_as_the_parent()
    _end_without_threads()
    hide_clients_as_the_parent()
    keep_freed_memory()
    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)
    _finished.set()


_finished = threading.Event()


def _end_at_once() -> None:
    """Runs after all other exit functions, because it was registered first. Freeing every object takes 0.3 s."""
    if _finished.is_set():
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(0)


def _end_without_threads() -> None:
    """Makes this process exit if a thread cannot be started, because gRPC may then wait forever."""
    start = threading.Thread.start

    def start_or_end(thread: threading.Thread) -> None:
        try:
            start(thread)
        except RuntimeError as error:
            print(error, file=sys.stderr, flush=True)  # the runner recognizes it (`errors.NO_MORE_THREADS`)
            os._exit(1)

    threading.Thread.start = start_or_end  # type: ignore[assignment,method-assign]


def _end_with(alive: str, parent: int) -> None:
    while os.path.exists(alive) and os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    if os.getppid() != parent:  # The runner was killed, so no other process removes the directory.
        shutil.rmtree(os.path.dirname(alive), ignore_errors=True)
    os._exit(1)


def _be_quiet(log: str) -> None:
    """Redirects this process's output to a file; if the process dies, the runner shows the last line."""
    # A handler on the root logger keeps Beam's imports from installing one that prints.
    logging.getLogger().addHandler(logging.NullHandler())
    with open(log, "w") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
        os.dup2(file.fileno(), sys.stdout.fileno())


if __name__ == "__main__":
    main()
