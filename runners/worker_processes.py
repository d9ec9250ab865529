"""Starts, watches, and ends the worker processes of a local job; reports the range of a worker that died."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rlds_beam.errors import NO_MORE_THREADS, RldsBeamError, no_more_threads
from rlds_beam.output.scratch import PREFIX, ScratchDirectory
from rlds_beam.platforms import SOCKET_PATH_BYTES
from rlds_beam.worker_status import Note, command, read_notes

GRACE_SECONDS = 30.0
"""Seconds that the job may continue after a worker ended without an error, as all do at the end."""

_END_SECONDS = 30.0
_STOP_SECONDS = 10.0
"""Seconds that workers have to end when their job ends. They do not if a library holds the interpreter's lock."""

_NO_THREAD = "thread creation failed"
"""Printed by libraries below Arrow; one then ends the process, another waits forever."""
_PATH_BYTES = SOCKET_PATH_BYTES - len(f"/{PREFIX}01234567/services")
"""Maximum bytes of the directory for temporary files, below which the socket is."""


class WorkerProcesses:
    """The worker processes of one job.

    Args:
      home: the job's private directory for notes (`worker_status`), logs, and the socket.
    """

    def __init__(self, home: str):
        self.home = home
        # Workers end with this file or this process, because Beam leaves them waiting after a pipeline fails.
        self._alive = os.path.join(home, "alive")
        open(self._alive, "x").close()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._end: list[Callable[[], object]] = []
        self._gone_since: float | None = None

    def start(self, name: str, services: str) -> None:
        """Starts the worker `name`, which connects to Beam's services at the address `services`.

        Raises:
          RldsBeamError: the system starts no more processes.
        """
        environment = {
            **os.environ,
            "WORKER_ID": name,
            "CONTROL_API_SERVICE_DESCRIPTOR": f'url: "{services}"',
            "LOGGING_API_SERVICE_DESCRIPTOR": f'url: "{services}"',
            "PIPELINE_OPTIONS": "{}",
        }
        try:
            self._processes[name] = subprocess.Popen(
                command("rlds_beam.runners.worker", self._alive), env=environment, stdin=subprocess.DEVNULL
            )
        except OSError as error:
            if isinstance(error, BlockingIOError):
                raise no_more_threads() from error
            raise RldsBeamError(f"a worker process could not be started: {error}") from error

    def stop(self, name: str) -> None:
        """Waits for a worker that was told to end, and kills it if it does not."""
        _wait(self._processes[name])

    def on_end(self, call: Callable[[], object]) -> None:
        """Registers a function to call when the workers end."""
        self._end.append(call)

    def end(self) -> None:
        """Ends all workers and waits for them, so that nothing changes after the job."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._alive)
        while self._end:
            self._end.pop()()
        deadline = time.monotonic() + _STOP_SECONDS
        for process in self._processes.values():
            _wait(process, max(0.0, deadline - time.monotonic()))

    def error(self) -> RldsBeamError | None:
        """The error if a worker has died and the job cannot continue; else None."""
        ended = [process for process in list(self._processes.values()) if process.poll() is not None]
        failed = [process for process in ended if process.returncode]
        if failed:
            return self._last_words(failed, _cause(failed[0].returncode))
        if self._lacks_threads():
            return no_more_threads()
        if ended:
            self._gone_since = self._gone_since or time.monotonic()
            if time.monotonic() - self._gone_since > GRACE_SECONDS:
                return self._last_words(ended, "it ended without an error")
        return None

    def _lacks_threads(self) -> bool:
        """Whether a library in a worker failed to start threads, which may leave it waiting forever."""
        return any(_NO_THREAD in (_last_line(log) or "") for log in Path(self.home).glob("*.log"))

    def notes(self) -> list[Note]:
        """The current task of each worker."""
        return read_notes(self.home)

    def _last_words(self, dead: list[subprocess.Popen[bytes]], why: str) -> RldsBeamError:
        """The error for dead workers: how they ended, what they were doing, and the last line printed."""
        ids = {process.pid for process in dead}
        notes = [note for note in self.notes() if note.process in ids]
        at = "; ".join(", ".join(note.at) for note in notes if note.at)
        where = f" at {at}" if at else " between two ranges" if notes else " at its start"
        said = next(filter(None, (_last_line(Path(self.home, f"{number}.log")) for number in sorted(ids))), None)
        if said is not None and (NO_MORE_THREADS in said or _NO_THREAD in said):
            return no_more_threads()
        why = ": ".join(filter(None, (why, said)))
        return RldsBeamError(
            f"a worker process died{where} ({why}); finished work is kept, run the same command to resume"
        )


@contextlib.contextmanager
def worker_processes() -> Iterator[WorkerProcesses]:
    """The worker processes of a job; ends them and removes their directory afterward."""
    short = len(os.fsencode(tempfile.gettempdir())) <= _PATH_BYTES
    with ScratchDirectory(None if short else "/tmp") as home:
        workers = WorkerProcesses(home)
        try:
            yield workers
        finally:
            workers.end()


def _wait(process: subprocess.Popen[bytes], seconds: float = _END_SECONDS) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_line(log: Path) -> str | None:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return lines[-1] if lines else None


def _cause(code: int) -> str:
    """An exit code as text."""
    if code >= 0:
        return f"exit code {code}"
    if code == -signal.SIGKILL:
        return "killed by SIGKILL, probably because the system ran out of memory: use fewer --workers"
    return f"killed by {signal.Signals(-code).name}"
