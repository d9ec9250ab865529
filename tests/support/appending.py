"""Appends to an output in this process, or in one that is killed at a change of a file.

python appending.py '{"input": [...], "output": "out", "options": {...}}' 3     is killed at its fourth change
python appending.py '{"input": [...], "output": "out", "options": {...}}' -1    prints the number of changes
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlds_beam import storage
from rlds_beam.jobs.convert import prepare
from rlds_beam.jobs.options import ConvertOptions
from rlds_beam.output.append import finish_interrupted
from rlds_beam.output.directory import lock_output
from rlds_beam.processing.report import Report
from rlds_beam.testing.conversions import _Changes


def append(input: Sequence[Path | str] | Path | str, output: Path | str, options: Mapping[str, Any]) -> Report:
    """What `rlds-beam convert INPUT OUTPUT --append` does, without Beam."""
    if storage.isdir(str(output)):
        with lock_output(str(output)):
            finish_interrupted(str(output))
    paths = str(input) if isinstance(input, Path | str) else ",".join(map(str, input))
    return prepare(ConvertOptions.create(paths, str(output), append=True, **options)).convert_here()


if __name__ == "__main__":
    about, last = json.loads(sys.argv[1]), int(sys.argv[2])
    changes = _Changes(Path(about["output"]), None if last < 0 else last, at_once=True)
    sys.addaudithook(changes)
    append(about["input"], about["output"], about["options"])
    print(changes.count)
    sys.stdout.flush()
    os._exit(0)
