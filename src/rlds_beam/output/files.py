"""The names of the files in an output directory, and their checksums: `xxh3-128:<hex>`.

Checksums detect damaged or mixed-up files, not forged ones. XXH3 is 16 times as fast as SHA-256, which took a quarter
of the time of a conversion to step pairs.
"""

from __future__ import annotations

import re

import xxhash

from rlds_beam import storage

PLAN, MANIFEST, REPORT, COMMITS, REJECTED = "plan.json", "manifest.json", "report.json", "_commits", "rejected"
CHECKSUMS = "checksums.xxh128"
"""For `xxh128sum --check`."""
FITTED = "fitted.json"
"""The results of fitted connectors (`output.directory`)."""
PARTS = "_parts"
"""Unfinished bundles of a user's own pipeline."""
INPUTS = re.compile(r"inputs-[0-9a-f]{16}\.bin")
"""The input of a plan (`output.plans`)."""
APPEND = "_append"
"""What `convert --append` has written so far (`output.append`)."""
JOB = f"{COMMITS}/job"
"""What a job on a cluster hands to its workers, and its result; a directory, removed at the end of the command."""
LOCK = ".rlds-beam.lock"
"""Exists while a command writes into the directory (`output.directory`)."""


def is_rejected_file(name: str) -> bool:
    """Whether a file in `REJECTED` holds a range's rejected records."""
    return re.fullmatch(r"[^/]+-\d{5}-of-\d{5}\.(tfrecord|jsonl)", name) is not None


def inputs_file(digest: str) -> str:
    """The name of the file with the input of a plan, whose digest the plan has."""
    return f"inputs-{digest[:16]}.bin"


CHECKSUM_KIND = "xxh3-128:"
CHECKSUM = rf"^{CHECKSUM_KIND}[0-9a-f]{{32}}\Z"
"""A regular expression for the checksums in commits and manifests."""
_BLOCK = 1 << 20


class Checksum:
    """An incremental checksum; `str` returns it."""

    def __init__(self) -> None:
        self._digest = xxhash.xxh3_128()
        self.update = self._digest.update

    def __str__(self) -> str:
        return f"{CHECKSUM_KIND}{self._digest.hexdigest()}"


def compute_checksum(path: str) -> str:
    """The checksum of a file."""
    checksum = Checksum()
    with storage.open_read(path) as file:
        while block := file.read(_BLOCK):
            checksum.update(block)
    return str(checksum)
