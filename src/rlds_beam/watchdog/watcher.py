"""Watches a process that reads foreign files, and ends it if a library does not return.

`watchdog` starts this file as a program, so it imports little: the program starts in 10 ms.
"""

from __future__ import annotations

import mmap
import os
import select
import struct
import sys
import time

READ_SECONDS = "RLDS_BEAM_READ_SECONDS"
"""The environment variable with the seconds that a library may take for one read of a file."""

SLOTS = 16
SLOT_BYTES = 1024
HEADER = struct.Struct("=QH")
"""The head of a thread's slot: a number, odd during a read, and the size of the text that follows."""

HANDLED = 0
"""The byte that says that a signal was noticed; the interpreter sends the signals' numbers."""

_READ_SECONDS = 60.0
_READ_BYTES = 4 << 30
"""Memory that a process may take during one read: a chunk of an array may have 4 GiB, most have 1 MB."""

_SIGNAL_SECONDS = 10.0
"""Seconds in which the main thread must notice Ctrl-C or SIGTERM."""

_TICK_SECONDS = 0.5
_INT, _KILL, _ALRM, _TERM = 2, 9, 14, 15
"""The numbers of signals, the same on all systems: the module `signal` takes long to import."""


class Watch:
    """Watches the marks of a process.

    Args:
      file: the descriptor of its marks.
      process: its number.
    """

    def __init__(self, file: int, process: int):
        self._memory = mmap.mmap(file, SLOTS * SLOT_BYTES, prot=mmap.PROT_READ)
        self._process = process
        self._seen: dict[int, tuple[int, float, int]] = {}
        self._looked, self.clock = time.monotonic(), 0.0
        try:
            self._limit = float(os.environ[READ_SECONDS])
        except (KeyError, ValueError):
            self._limit = _READ_SECONDS

    def stuck(self) -> str | None:
        """The fault if a read does not end, or takes much memory.

        Call it every second or so: it counts no time of a stopped process.
        """
        now = time.monotonic()
        self.clock += min(now - self._looked, 2 * _TICK_SECONDS)
        self._looked = now
        for at in range(0, SLOTS * SLOT_BYTES, SLOT_BYTES):
            number, size = HEADER.unpack_from(self._memory, at)
            seen, since, before = self._seen.get(at, (0, 0.0, 0))
            if number != seen:
                self._seen[at] = number, self.clock, self._measure_memory() if number % 2 else 0
            elif number % 2:
                wrong = None
                if self.clock - since > self._limit:
                    wrong = f"has been reading it for {self._limit:g} s"
                elif self._measure_memory() - before > _READ_BYTES:
                    wrong = f"has taken more than {_READ_BYTES >> 30} GiB of memory for one read"
                if wrong is not None:
                    text = self._memory[at + HEADER.size : at + HEADER.size + size].decode("utf-8", "replace")
                    waits = f", or set {READ_SECONDS} to wait longer" if "GiB" not in wrong else ""
                    return f"{text} {wrong}, so it is probably damaged: leave the file out{waits}"
        return None

    def _measure_memory(self) -> int:
        """The process's own memory, in bytes; 0 if this system does not say."""
        try:
            with open(f"/proc/{self._process}/statm") as file:
                _, resident, shared, *_ = map(int, file.read().split())
            return (resident - shared) * mmap.PAGESIZE
        except (OSError, ValueError):
            return 0


def _watch(pipe: int, marks: int, left: str) -> None:
    """Watches the process that started this one, until it ends."""
    command, signaled = os.getppid(), None
    watch = Watch(marks, command)
    while True:
        ready, _, _ = select.select([pipe], [], [], _TICK_SECONDS)
        said = os.read(pipe, 512) if ready else None
        if said == b"":
            return
        for byte in said or b"":
            if byte in (_INT, _TERM) and signaled is None:
                signaled = watch.clock
            elif byte == HANDLED:
                signaled = None
        stuck = watch.stuck()
        if stuck is not None:
            _end(command, f"{stuck}; {left}", _ALRM)
        if signaled is not None and watch.clock - signaled > _SIGNAL_SECONDS:
            _end(command, f"interrupted, and killed because a library did not return; {left}", _KILL)


def _end(command: int, text: str, number: int) -> None:
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    try:  # noqa: SIM105  # contextlib takes long to import
        os.write(2, f"rlds-beam: {text}\n".encode())
    except OSError:  # nobody reads it
        pass
    for last in (number, _KILL):
        if os.getppid() == command:
            os.kill(command, last)
            time.sleep(_TICK_SECONDS)
    sys.exit()


if __name__ == "__main__":
    _watch(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
