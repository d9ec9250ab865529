"""Appends to an output in this process, or in one that copies the output before each change of a file.

python appending.py '{"input": [...], "output": "out", "options": {...}}' COPIES    writes COPIES/0, COPIES/1, ...

A copy is what a process that is killed at this change leaves.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlds_beam.jobs.convert import prepare
from rlds_beam.jobs.options import ConvertOptions
from rlds_beam.output.append import finish_interrupted
from rlds_beam.output.directory import lock_output
from rlds_beam.processing.report import Report
from rlds_beam.testing.conversions import _Changes


def append(input: Sequence[Path | str] | Path | str, output: Path | str, options: Mapping[str, Any]) -> Report:
    """What `rlds-beam convert INPUT OUTPUT --append` does, without Beam."""
    with lock_output(str(output)):
        finish_interrupted(str(output))
    paths = str(input) if isinstance(input, Path | str) else ",".join(map(str, input))
    return prepare(ConvertOptions.create(paths, str(output), append=True, **options)).convert_here()


class _Copies(_Changes):
    def __init__(self, output: Path, copies: Path):
        super().__init__(output, at_once=True)
        self._path, self._copies, self._copying = output, copies, False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._copying:
            return
        before = self.count
        super().__call__(event, arguments)
        if self.count > before:
            self._copying = True
            shutil.copytree(self._path, self._copies / str(before))
            self._copying = False


if __name__ == "__main__":
    about = json.loads(sys.argv[1])
    sys.addaudithook(_Copies(Path(about["output"]), Path(sys.argv[2])))
    append(about["input"], about["output"], about["options"])
    sys.stdout.flush()
    os._exit(0)
