"""A worker process of the local runner: reads stages and ranges from its parent, and answers with results or errors."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import sys
import threading
import time
import traceback
from typing import Any

import cloudpickle

from rlds_beam import platforms, worker_status
from rlds_beam.errors import RldsBeamError
from rlds_beam.processing.job import Stage
from rlds_beam.runners.errors import plain
from rlds_beam.user_functions import search_as_the_parent

_TELL_SECONDS = 0.5


def main() -> None:
    """Works until an error, or until the parent closes its end of the pipe or is gone."""
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
        _work(requests, answers)
    except BaseException as error:  # also of sys.exit
        answers.send(_pickle_error(error))


def _work(requests: Any, answers: _Answers) -> None:
    """Processes ranges until there are no more requests: (stage, totals), or (place, range) of the last stage."""
    stage, totals = Stage(), dict[str, Any]()
    with contextlib.suppress(EOFError):
        while True:
            first, second = pickle.load(requests)
            if isinstance(first, Stage):
                stage.close()
                stage, totals = first, second
            else:
                partial = stage.process(second, totals)
                answers.send(cloudpickle.dumps(("done", (partial, platforms.peak_memory_kb()))))
    stage.close()


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
