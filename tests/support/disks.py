"""File systems for one test, to fill or make read-only."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import DEADLINE


@contextlib.contextmanager
def small_filesystem(path: Path, size: str) -> Iterator[Path]:
    """Mounts a file system of `size` bytes (`700k`) at `path` during the block."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path]
    mounted = subprocess.run(command, capture_output=True, timeout=DEADLINE)
    if mounted.returncode:
        pytest.skip(f"cannot mount a file system: {mounted.stderr.decode().strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True, timeout=DEADLINE)


def remount(disk: Path, options: str) -> None:
    """Changes a file system: `size=16m`, `ro`."""
    subprocess.run(["mount", "-o", f"remount,{options}", disk], check=True, timeout=DEADLINE)
