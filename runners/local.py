"""Runs jobs on this machine without Beam: in this process, or in worker processes if the input is worth their start.

A worker process runs `main`: it reads stages and ranges from its parent, and answers with results or errors.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import cloudpickle

from rlds_beam import platforms, worker_status
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.processing.job import Figures, Stage, Totals, process_here, run_stages
from rlds_beam.reading.shard_list import spill_lists
from rlds_beam.runners.errors import WorkerTraceback, plain
from rlds_beam.user_functions import search_as_the_parent

LARGE_INPUT = 64 * 10**6
"""Bytes of input from which worker processes pay: two take a quarter of a second to start."""

_AHEAD = 4  # ranges per worker that may be finished before the one whose result is needed next
_TELL_SECONDS = 0.5
_END_SECONDS = 5.0


def run_here(stages: Sequence[Stage], workers: int = 1) -> tuple[Any, Figures]:
    """Runs the stages of a job, with this many worker processes, or in this process if it is one.

    Returns:
      The result of the last stage, and how the job ran.

    Raises:
      RldsBeamError: a stage failed, or a worker died.
      KeyboardInterrupt: Ctrl-C; nothing is left behind.
    """
    began, before, interrupted = time.monotonic(), worker_status.done(), worker_status.interrupts()
    with Workers(workers) as pool:
        try:
            totals = run_stages(stages, pool.process)
        except RldsBeamError:
            raise
        except Exception as error:
            raise plain(error) from error
        if worker_status.interrupts() > interrupted:
            raise KeyboardInterrupt  # a library or a finalizer dropped it
        done = worker_status.done() - before
        memory = max(platforms.peak_memory_kb(), pool.memory_kb)
        return totals[stages[-1].name], Figures(done.steps, time.monotonic() - (pool.ready or began), memory)


class Workers:
    """The worker processes of a job, which start with the first stage that has work.

    A context manager: no process is left at the end of the block.

    Args:
      count: how many; one means this process.

    Attributes:
      memory_kb: the peak memory of a worker so far.
      ready: when the first worker had started and knew what to do (`time.monotonic`); 0 before.
    """

    def __init__(self, count: int):
        self._count, self._workers = count, list[_Worker]()
        self._lists: tempfile.TemporaryDirectory[str] | None = None
        self.memory_kb, self.ready = 0, 0.0

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for worker in self._workers:
            worker.end(at_once=kind is not None)
        if self._lists is not None:
            self._lists.cleanup()

    def process(self, stage: Stage, totals: Totals) -> Iterator[Any]:
        """Processes the ranges of a stage; yields the partial results in the order of the ranges."""
        ranges = stage.ranges(totals)
        works = ranges if isinstance(ranges, Sequence) else list(ranges)
        if self._count == 1 or not works:
            yield from process_here(stage, totals, works)
            return
        while len(self._workers) < min(self._count, len(works)):
            self._workers.append(_Worker())
        if self._lists is None:
            self._lists = tempfile.TemporaryDirectory(prefix="rlds-beam-", ignore_cleanup_errors=True)
        try:
            with spill_lists(self._lists.name):
                content = cloudpickle.dumps((stage, dict(totals)))
        except Exception as error:  # what objects of users raise
            raise UsageError(f"--workers={self._count}: {error}: move it to a module, or use --workers=1") from error
        pending = collections.deque(range(len(works)))
        answers: queue.SimpleQueue[tuple[str, int, Any]] = queue.SimpleQueue()
        room = threading.Semaphore(_AHEAD * len(self._workers))
        for worker in self._workers:
            arguments = content, works, pending, room, answers
            threading.Thread(target=worker.work, args=arguments, daemon=True).start()
        finished: dict[int, Any] = {}
        try:
            for number in range(len(works)):
                while number not in finished:
                    kind, place, value = answers.get()
                    if kind == "died":
                        raise value.describe_death(stage.describe(works[place]))
                    if kind == "error":
                        raise value[0] from WorkerTraceback(value[1])
                    if kind == "ready":
                        self.ready = self.ready or time.monotonic()
                    elif kind == "counts":
                        worker_status.count(**value)
                    else:
                        finished[place], memory = value
                        self.memory_kb = max(self.memory_kb, memory)
                yield finished.pop(number)
                room.release()
        finally:
            pending.clear()
            room.release(len(self._workers))  # so that no thread waits for it


class _Worker:
    """A worker process, as its parent sees it."""

    def __init__(self) -> None:
        # A worker inherits that Ctrl-C is blocked: in a terminal it reaches all processes, but this one handles it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process: Any = subprocess.Popen(
                worker_status.command("rlds_beam.runners.local", str(os.getpid())),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        except OSError as error:
            raise RldsBeamError(f"a worker process could not be started: {error}; use fewer --workers") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._hello = pickle.dumps((sys.path, logging.getLogger().level))

    def work(self, content: bytes, works: Sequence[Any], pending: Any, room: threading.Semaphore, answers: Any) -> None:
        """Sends it a stage with the first range, and range after range until none is left, an error, or its death."""
        place = 0
        try:
            while room.acquire():
                try:
                    place = pending.popleft()
                except IndexError:  # and the next stage may have begun: send nothing
                    return
                self.process.stdin.write(self._hello + content + cloudpickle.dumps((place, works[place])))
                self.process.stdin.flush()
                self._hello = content = b""
                kind = ""
                while kind not in ("done", "error"):
                    kind, value = pickle.load(self.process.stdout)
                    answers.put((kind, place, value))
                if kind == "error":
                    return
        except (OSError, EOFError, pickle.UnpicklingError):
            answers.put(("died", place, self))
        except Exception as error:  # for example a result of a class that this process cannot import
            answers.put(("error", place, (plain(error), traceback.format_exc())))

    def describe_death(self, at: str) -> RldsBeamError:
        """The error if it has died: what it was doing, and how it ended."""
        code = self.process.wait(_END_SECONDS)
        why = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            why += ", probably because the system ran out of memory: use fewer --workers"
        return RldsBeamError(
            f"a worker process died at {at} ({why}); finished work is kept, run the same command to resume"
        )

    def end(self, at_once: bool) -> None:
        """Ends the process: it closes what it holds, unless it must end at once."""
        if not at_once:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self.process.stdin.close()
                self.process.wait(_END_SECONDS)
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()


def main() -> None:
    """Works, in a worker process, until an error, or until the parent closes its end of the pipe or is gone."""
    requests, answers = os.fdopen(os.dup(0), "rb"), _Answers(os.fdopen(os.dup(1), "wb"))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what a library prints is not an answer
    try:
        threading.Thread(target=answers.tell_counts, args=(int(sys.argv[1]),), daemon=True).start()
        path, level = pickle.load(requests)
        sys.path += [place for place in path if place not in sys.path]  # at the end, so that nothing there shadows
        logging.getLogger().setLevel(level)
        search_as_the_parent()
        platforms.keep_freed_memory()
        stage, totals = Stage(), dict[str, Any]()
        with contextlib.suppress(EOFError):
            while True:
                first, second = pickle.load(requests)  # (stage, totals), or (place, range) of the last stage
                if isinstance(first, Stage):
                    stage.close()
                    stage, totals = first, second
                    answers.send(pickle.dumps(("ready", None)))
                else:
                    partial = stage.process(second, totals)
                    answers.send(cloudpickle.dumps(("done", (partial, platforms.peak_memory_kb()))))
        stage.close()
    except BaseException as error:  # also of sys.exit
        answers.send(_pickle_error(error))


def _pickle_error(error: BaseException) -> bytes:
    """An error for the user, which the parent can unpickle, and its traceback."""
    said, text = plain(error), "".join(traceback.format_exception(error))
    try:
        content = pickle.dumps(("error", (said, text)))
        pickle.loads(content)
    except Exception:  # its class takes more than a message
        content = pickle.dumps(("error", (RldsBeamError(str(said)), text)))
    return content


class _Answers:
    """The pipe to the parent."""

    def __init__(self, file: Any):
        self._file, self._lock, self._told = file, threading.Lock(), worker_status.done()

    def send(self, content: bytes) -> None:
        with self._lock:
            done = worker_status.done()
            counted, self._told = done - self._told, done
            if any(counted):
                pickle.dump(("counts", counted._asdict()), self._file)
            self._file.write(content)
            self._file.flush()

    def tell_counts(self, parent: int) -> None:
        """Sends what this process has counted twice a second, and ends it with its parent."""
        with contextlib.suppress(OSError):
            while os.getppid() == parent:
                time.sleep(_TELL_SECONDS)
                if worker_status.done() != self._told:
                    self.send(b"")
        os._exit(1)


if __name__ == "__main__":
    main()
