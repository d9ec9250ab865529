"""The names of the files in an output directory."""

from __future__ import annotations

import json
from typing import Any

from rlds_beam import naming, storage

PLAN, MANIFEST, REPORT, COMMITS, REJECTED = "plan.json", "manifest.json", "report.json", "_commits", "rejected"
CHECKSUMS = "checksums.xxh128"
"""For `xxh128sum --check`."""
FITTED = "fitted.json"
"""The results of fitted connectors (`output.fitted`)."""
PARTS = "_parts"
"""Unfinished bundles of a user's own pipeline."""
REJECTED_LIST = "rejected.json"
"""The files in `REJECTED` that `WriteRejected` wrote."""
LOCK = ".rlds-beam.lock"
"""Exists while a command writes into the directory (`output.lock`)."""


def is_rejected_file(name: str) -> bool:
    """Whether a file in `REJECTED` holds a range's rejected records."""
    stem, _, ending = name.rpartition(".")
    return ending in ("tfrecord", "jsonl") and naming.is_range(stem)


def listdir(path: str) -> list[str]:
    """The names in a directory; empty if it does not exist."""
    return storage.listdir(path) if storage.isdir(path) else []


def to_json(content: Any) -> str:
    """Encodes the small JSON files."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
