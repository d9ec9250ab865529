"""Worker processes of a local job: started, watched, ended; one that dies is named with what it was doing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rlds_beam.errors import RldsBeamError
from rlds_beam.runners.threads import NO_MORE_THREADS, no_more_threads
from rlds_beam.worker_status import Done, Note, command, read_notes

GRACE_SECONDS = 30.0
"""How long the job may continue when a worker has ended without an error, as all do at its end."""

_END_SECONDS = 30.0
_NO_THREAD = "thread creation failed"
"""What the libraries below Arrow print; one ends the process then, another waits for ever."""
_PATH_BYTES = 80
"""Of a directory, so that the path of a Unix socket in it stays below the kernel's limit of 107."""


class WorkerProcesses:
    """The worker processes of one job.

    Args:
      home: a directory of the job, which only this user can enter; for notes (`worker_status`), logs and the socket.
    """

    def __init__(self, home: str):
        self.home = home
        # A worker ends when this file does, or this process: Beam leaves workers waiting when a pipeline ends badly.
        self._alive = os.path.join(home, "alive")
        open(self._alive, "x").close()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._end: list[Callable[[], object]] = []
        self._gone_since: float | None = None

    def start(self, name: str, services: str) -> None:
        """Starts the worker `name`, which connects to Beam's services at an address.

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
        """Calls `call` when the workers are to end."""
        self._end.append(call)

    def end(self) -> None:
        """Ends all workers; returns when none is left, so that nothing changes any more after the job."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._alive)
        while self._end:
            self._end.pop()()
        for process in self._processes.values():
            _wait(process)

    def error(self) -> RldsBeamError | None:
        """Why the job cannot continue: a worker has died. None while all is well."""
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
        """Whether a library of a worker could not start its threads: some wait for them for ever."""
        return any(_NO_THREAD in (_last_line(log) or "") for log in Path(self.home).glob("*.log"))

    def done(self) -> Done:
        """How far they are, together."""
        return sum((note.done for note in self.notes()), Done())

    def notes(self) -> list[Note]:
        """What each of them is doing."""
        return read_notes(self.home)

    def _last_words(self, dead: list[subprocess.Popen[bytes]], why: str) -> RldsBeamError:
        """How a worker ended, what it was doing, and the last line that it printed."""
        ids = {process.pid for process in dead}
        notes = [note for note in self.notes() if note.process in ids]
        at = "; ".join(", ".join(note.at) for note in notes if note.at)
        where = f" at {at}" if at else " between two parts" if notes else " at its start"
        said = next(filter(None, (_last_line(Path(self.home, f"{number}.log")) for number in sorted(ids))), None)
        if said is not None and (NO_MORE_THREADS in said or _NO_THREAD in said):
            return no_more_threads()
        why = ": ".join(filter(None, (why, said)))
        return RldsBeamError(f"a worker process died{where} ({why}); what is finished is kept, run again")


@contextlib.contextmanager
def worker_processes() -> Iterator[WorkerProcesses]:
    """Those of a job, gone at the end together with their directory."""
    short = len(os.fsencode(tempfile.gettempdir())) <= _PATH_BYTES
    with tempfile.TemporaryDirectory(
        prefix="rlds-beam-", dir=None if short else "/tmp", ignore_cleanup_errors=True
    ) as home:
        workers = WorkerProcesses(home)
        try:
            yield workers
        finally:
            workers.end()


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_line(log: Path) -> str | None:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return lines[-1] if lines else None


def _cause(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    if code == -signal.SIGKILL:
        return "killed by SIGKILL, as a system that runs out of memory does: fewer --workers take less"
    return f"killed by {signal.Signals(-code).name}"
