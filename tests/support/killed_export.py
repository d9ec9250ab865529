"""An export that kills itself: `python killed_export.py DATA DIRECTORY TO SEED`

It exports to DIRECTORY/whole and counts the file-system requests after the first commit. Then it exports to
DIRECTORY/out and kills itself (SIGKILL) at one of these requests, chosen by the seed.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

from exchanging import export

_EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.link", "os.rmdir", "os.truncate")
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Requests:
    """An audit hook that counts the requests that change files in a directory, after its first commit.

    Attributes:
      count: the number of requests so far.
    """

    def __init__(self, output: Path, last: int | None = None):
        self.count, self._output, self._last = 0, str(output), last
        self._committed = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _EVENTS or not str(arguments[0]).startswith(self._output):
            return
        if event == "open" and not (arguments[2] or 0) & _CHANGES:
            return
        if self._committed:
            if self.count == self._last:
                os.kill(os.getpid(), signal.SIGKILL)
            self.count += 1
        elif event == "os.rename" and "_commits" in str(arguments[1]):
            self._committed = True


def main(data: str, directory: Path, to: str, seed: str) -> None:
    counting = Requests(directory / "whole")
    sys.addaudithook(counting)
    export(data, directory / "whole", to, shards=3)
    last = random.Random(f"{to} {seed}").randrange(counting.count)
    print(f"{last} of {counting.count}", flush=True)
    sys.addaudithook(Requests(directory / "out", last))
    export(data, directory / "out", to, shards=3)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
