"""The content of a directory."""

from __future__ import annotations

from pathlib import Path


def bytes_of(directory: Path) -> dict[str, bytes]:
    """Reads every file, by its path in the directory."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}
