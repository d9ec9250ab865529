"""Ends a command whose main thread a library no longer returns to.

C code that loops on a damaged file may hold the interpreter's lock: then no thread of this process runs, and no signal
handler. So a process says in shared memory which file a library is reading, and another process watches: the runner
watches its worker processes, and a command has a watchdog, the program `watcher`. Without either, for example in a
user's own program, nothing is written and nothing is ended.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import mmap
import os
import queue
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rlds_beam.watchdog import watcher
from rlds_beam.watchdog.watcher import HANDLED, HEADER, SLOT_BYTES, SLOTS

_NUMBER = struct.Struct("=Q")
_LOOK_SECONDS = 1.0
_memory: mmap.mmap | None = None
_numbers = itertools.count()
_thread = threading.local()
_pipe: int | None = None
_interrupts = 0
_nothing = contextlib.nullcontext()


def keep_marks(file: int) -> None:
    """Starts marking this process's reads in a file, given by its descriptor. Raises OSError if the disk is full."""
    global _memory
    os.pwrite(file, bytes(SLOTS * SLOT_BYTES), 0)
    _memory = mmap.mmap(file, SLOTS * SLOT_BYTES)


def marks_path(directory: str, process: int) -> str:
    """The file of a worker process's marks."""
    return os.path.join(directory, f"{process}.marks")


class _Slot:
    """The mark of a thread. May be entered again inside: each time shows progress."""

    def __init__(self, memory: mmap.mmap):
        self._memory, self._at = memory, next(_numbers) % SLOTS * SLOT_BYTES
        self._number = self._depth = 0
        self._named: tuple[str, str] | None = None

    def name(self, path: str, library: str) -> None:
        if self._depth == 0 and self._named != (path, library):
            self._named = path, library
            text = f"{path}: {library}".encode("utf-8", "replace")[-(SLOT_BYTES - HEADER.size) :]
            end = self._at + HEADER.size + len(text)
            self._memory[self._at : end] = HEADER.pack(self._number, len(text)) + text

    def __enter__(self) -> None:
        self._depth += 1
        self._set((self._number + 1) | 1)

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        self._set((self._number + 1) | 1 if self._depth else (self._number | 1) + 1)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        self._set((self._number | 1) + 1)
        try:
            yield
        finally:
            if self._depth:
                self._set((self._number + 1) | 1)

    def _set(self, number: int) -> None:
        self._number = number
        _NUMBER.pack_into(self._memory, self._at, number)


def reading(path: str, library: str) -> contextlib.AbstractContextManager[None]:
    """Marks that `library` reads the file `path` in the block: one call of C code, not more. Takes a microsecond."""
    if _memory is None:
        return _nothing
    slot: _Slot | None = getattr(_thread, "slot", None)
    if slot is None:
        slot = _thread.slot = _Slot(_memory)
    slot.name(path, library)
    return slot


def waiting() -> contextlib.AbstractContextManager[None]:
    """Marks that the read waits for a store during the block, which has its own deadlines."""
    slot: _Slot | None = getattr(_thread, "slot", None)
    return _nothing if slot is None else slot.pause()


class SignalEvent:
    """An event that a signal handler sets and the main thread waits for.

    `threading.Event` is not for that: `set` would wait for a lock that the interrupted `wait` holds.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        self._queue.put(None)

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the event is set, at most `timeout` seconds; returns whether it is.

        A signal that comes just before the thread begins to wait does not wake it, so it looks again every second.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        while not self._is_set and (left := end - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                self._queue.get(timeout=min(left, _LOOK_SECONDS))
        return self._is_set


def on_interrupt(
    handler: Callable[[int, Any], object], numbers: Sequence[int] = (signal.SIGINT, signal.SIGTERM)
) -> dict[int, Any]:
    """Handles these signals unless they are ignored, and tells the watchdog that they were noticed.

    Returns the old handlers.
    """

    def handle(number: int, frame: Any) -> None:
        global _interrupts
        _interrupts += 1
        if _pipe is not None:
            with contextlib.suppress(OSError):
                os.write(_pipe, bytes([HANDLED]))
        handler(number, frame)

    return {number: signal.signal(number, handle) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}


def interrupts() -> int:
    """The number of signals of `on_interrupt`: a `KeyboardInterrupt` is lost where a library or finalizer drops it."""
    return _interrupts


def start_watchdog(left: str) -> None:
    """Starts a watchdog, which ends with this process.

    Args:
      left: what an interrupted command leaves behind.
    """
    import subprocess
    import tempfile

    global _pipe
    with contextlib.suppress(OSError), tempfile.TemporaryFile() as marks:  # a full disk is no reason to fail
        keep_marks(marks.fileno())
        read, _pipe = os.pipe()
        os.set_blocking(_pipe, False)
        # The watchdog stops with the command's process group (Ctrl-Z), and ignores what interrupts it from its start.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            subprocess.Popen(
                [sys.executable, "-I", "-S", watcher.__file__, str(read), str(marks.fileno()), left],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(read, marks.fileno()),
            ).returncode = 0  # it is never waited for
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.set_wakeup_fd(_pipe, warn_on_full_buffer=False)
