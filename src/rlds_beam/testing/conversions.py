"""Conversions in this process, without Beam, for the conformance tests.

    python -m rlds_beam.testing.conversions '{"input": "data", "directory": "made", "to": "npz", "shards": 3}' 1

converts to `directory/whole`, counts the changes of files after the first commit, converts to `directory/out`, and
kills itself (SIGKILL) at one of these changes, chosen by the number.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import RldsBeamError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.jobs.convert import ConvertJob, prepare
from rlds_beam.jobs.options import ConvertOptions
from rlds_beam.processing.report import Report

_DEADLINE = 300.0
"""Seconds that a conversion in another process may take."""
_MAX_ERROR = 600
"""Longest error, in characters."""
_EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.link", "os.rmdir", "os.truncate")
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def prepare_conversion(input: str | Path, output: str | Path, options: Mapping[str, Any]) -> ConvertJob:
    """The conversion that `rlds_beam.convert(input, output, **options)` runs."""
    return prepare(ConvertOptions.create(str(input), str(output), **options))


def convert_here(input: str | Path, output: str | Path, options: Mapping[str, Any]) -> Report:
    """Converts range by range and returns the report."""
    return prepare_conversion(input, output, options).convert_here()


def files_in(directory: Path) -> dict[str, bytes]:
    """The content of every file, by its path in the directory."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def check_report(report: Report) -> None:
    """Asserts that the counts of a conversion add up."""
    assert report.records == report.valid + report.repaired + report.rejected, report
    assert report.records == sum(report.shards.values()), report
    assert report.items_written == report.items_predicted, report


def check_error(error: RldsBeamError, file: Path | None = None) -> None:
    """Asserts that an error is one line, and names the file or its directory."""
    said = str(error)
    assert said and "\n" not in said, repr(said)
    assert len(said) <= _MAX_ERROR, said
    if file is not None:
        assert file.name in said or str(file.parent) in said, f"{said!r} does not name {file}"


def episode_content(episode: Episode) -> dict[str, Any]:
    """An episode's key, fields and faults as values that `==` compares; NaN equals NaN."""
    values = {**episode.steps, **{f"metadata/{path}": value for path, value in episode.metadata.items()}}
    fields = {path: plain(value) for path, value in values.items()}
    return {"key": str(episode.key), "faults": [str(fault) for fault in episode.faults], **fields}


def plain(values: Any) -> Any:
    """A column as a value that `==` compares."""
    if isinstance(values, EncodedImages):
        return [bytes(image) for image in values]
    array = np.asarray(values)
    return array.tolist() if array.dtype == object else (array.dtype.str, array.shape, array.tobytes())


def check_killed_and_resumed(input: str | Path, directory: Path, options: Mapping[str, Any], seed: int) -> None:
    """Asserts that a conversion that is killed, and then run again, ends with the bytes of an undisturbed one."""
    named = {name: _importable(value) for name, value in options.items()}
    about = json.dumps({"input": str(input), "directory": str(directory), **named})
    command = [sys.executable, "-m", __name__, about, str(seed)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE, check=False, env=environment)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [*(directory / "out" / "_commits").glob("*.json")], done.stdout
    check_report(convert_here(input, directory / "out", options))
    assert files_in(directory / "out") == files_in(directory / "whole"), f"killed at the change {done.stdout}"


def _importable(value: Any) -> Any:
    return f"{value.__module__}:{value.__qualname__}" if isinstance(value, type) else value


class _Changes:
    """An audit hook that counts the changes of files in a directory, and kills the process at one of them.

    Args:
      output: the directory.
      last: the change at which to end; None only counts.
      at_once: count from the beginning, not after the first commit.

    Attributes:
      count: the number of changes so far.
    """

    def __init__(self, output: Path, last: int | None = None, *, at_once: bool = False):
        self.count, self._output, self._last = 0, str(output), last
        self._committed = at_once

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


def _convert_and_die(about: dict[str, Any], seed: str) -> None:
    data, directory = about.pop("input"), Path(about.pop("directory"))
    changes = _Changes(directory / "whole")
    sys.addaudithook(changes)
    convert_here(data, directory / "whole", about)
    last = random.Random(f"{about} {seed}").randrange(changes.count)
    print(f"{last} of {changes.count}", flush=True)
    sys.addaudithook(_Changes(directory / "out", last))
    convert_here(data, directory / "out", about)


if __name__ == "__main__":
    _convert_and_die(json.loads(sys.argv[1]), sys.argv[2])
