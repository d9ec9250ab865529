"""The names of the files in an output directory, and how the small ones are read and written."""

from __future__ import annotations

import json
from typing import Any

from rlds_beam import storage

PLAN, MANIFEST, REPORT, COMMITS, REJECTED = "plan.json", "manifest.json", "report.json", "_commits", "rejected"


def load_json(path: str) -> dict[str, Any] | None:
    """The object in a JSON file; None where a power failure (or another program) left something else."""
    try:
        content = json.loads(storage.read_text(path))
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def listdir(path: str) -> list[str]:
    return storage.listdir(path) if storage.isdir(path) else []


def to_json(content: Any) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
