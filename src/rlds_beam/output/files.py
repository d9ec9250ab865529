"""The names of the files in an output directory."""

from __future__ import annotations

import json
from typing import Any

from rlds_beam import naming, storage

PLAN, MANIFEST, REPORT, COMMITS, REJECTED = "plan.json", "manifest.json", "report.json", "_commits", "rejected"
CHECKSUMS = "checksums.xxh128"
"""For `xxh128sum --check`."""
FITTED = "fitted.json"
"""What connectors were fitted to (`output.fitted`)."""
PARTS = "_parts"
"""Of bundles that are not finished, in a pipeline of one's own."""
REJECTED_LIST = "rejected.json"
"""In `REJECTED`: the files that `WriteRejected` wrote."""
LOCK = ".rlds-beam.lock"
"""Exists while a command writes into the directory (`output.lock`)."""


def is_rejected_file(name: str) -> bool:
    """Whether a file in `REJECTED` holds the rejected records of a range."""
    stem, _, ending = name.rpartition(".")
    return ending in ("tfrecord", "jsonl") and naming.is_range(stem)


def listdir(path: str) -> list[str]:
    """The names in a directory; none if it is not there."""
    return storage.listdir(path) if storage.isdir(path) else []


def to_json(content: Any) -> str:
    """The text of the small files."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
