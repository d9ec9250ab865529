"""Checksums of the files of an output: `xxh3-128:<hex>`.

They detect damaged or mixed-up files, not forged ones. XXH3 is 16 times as fast as SHA-256, which took a quarter of
the time of a conversion to step pairs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import xxhash

from rlds_beam import storage

_PREFIX = "xxh3-128:"
_BLOCK = 1 << 20


class Checksum:
    """An incremental checksum; `str` returns it."""

    def __init__(self) -> None:
        self._digest = xxhash.xxh3_128()
        self.update = self._digest.update

    def __str__(self) -> str:
        return f"{_PREFIX}{self._digest.hexdigest()}"


def checksum_of(path: str) -> str:
    """The checksum of a file."""
    checksum = Checksum()
    with storage.open_read(path) as file:
        while block := file.read(_BLOCK):
            checksum.update(block)
    return str(checksum)


def is_checksum(value: Any) -> bool:
    """Whether a value in a commit or manifest is a checksum."""
    return isinstance(value, str) and re.fullmatch(f"{_PREFIX}[0-9a-f]{{32}}", value) is not None


def checksum_lines(entries: Iterable[Mapping[str, Any]]) -> str:
    """The lines that `xxh128sum --check` reads.

    Args:
      entries: a manifest's entries, with `file`, `records`, and `checksum`. Files without records are left out,
        because those of an empty split are removed.
    """
    digests = [(entry["checksum"].removeprefix(_PREFIX), entry["file"]) for entry in entries if entry["records"]]
    return "".join(f"{digest}  {file}\n" for digest, file in digests)
