"""Exports that kill themselves, in forks of this process: `python killed_exports.py DATA ROOT SEED KILLS TO...`

A process with gRPC or TensorFlow must not be forked; this one imports neither Beam nor them, and holds itself to that.
For each format it counts what an undisturbed export asks of the file system after its first commit; then, for random
numbers of these, an export ends by SIGKILL at just that request, and is run again. Prints a line of JSON for each kill.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from exchanging import export
from recorded import bytes_of

_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Requests:
    """Counts the requests that change files in a directory, from its first commit on; and may end the process."""

    def __init__(self, output: Path, last: int | None = None):
        self.count, self._output, self._last = 0, str(output), last
        self._committed = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("open", "os.rename", "os.remove", "os.mkdir", "os.link", "os.rmdir", "os.truncate"):
            return
        if event == "open" and not (arguments[2] or 0) & _CHANGES:
            return
        path = str(arguments[0])
        if not path.startswith(self._output):
            return
        if self._committed:
            if self.count == self._last:
                os.kill(os.getpid(), signal.SIGKILL)
            self.count += 1
        elif event == "os.rename" and "_commits" in str(arguments[1]):
            self._committed = True


def forked(function: Callable[[], int]) -> int:
    """Runs a function in a child: what it returns (below 255), or -9 if it was killed."""
    child = os.fork()
    if child == 0:
        code = 255
        try:
            code = function()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run(data: Path, output: Path, to: str, last: int | None = None) -> int:
    requests = Requests(output, last)
    sys.addaudithook(requests)
    export(data, output, to, shards=3)
    return requests.count


def main(data: Path, root: Path, seed: str, kills: int, formats: list[str]) -> None:
    for to in formats:
        whole = root / f"{to}-whole"
        count = forked(lambda to=to, whole=whole: run(data, whole, to))
        assert 3 < count < 255, count
        for last in sorted(random.Random(f"{seed} {to}").sample(range(count), kills)):
            output = root / f"{to}-{last}"
            ends = [forked(lambda to=to, output=output, last=n: run(data, output, to, last)) for n in (last, None)]
            left = {name for name in bytes_of(output) if name.endswith(".tmp")}
            same = bytes_of(output) == bytes_of(whole)
            print(json.dumps({"to": to, "at": last, "of": count, "ends": ends, "same": same, "left": sorted(left)}))
    named = {"grpc", "tensorflow", "apache_beam"} & {name.partition(".")[0] for name in sys.modules}
    assert not named, named


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5:])
