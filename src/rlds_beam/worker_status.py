"""Our processes: how to start one, and what each has counted."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

VERBOSE = "RLDS_BEAM_VERBOSE"
"""The environment variable that passes `--verbose` to a command's processes."""

METRICS_NAMESPACE = "rlds_beam"
"""The namespace of this package's Beam metrics."""


def is_verbose() -> bool:
    """Whether this process and its children show their logs."""
    return bool(os.environ.get(VERBOSE))


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs `module` like `python -m`, but never imports from the current directory.

    A user's `logging.py` there must not shadow an installed module.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


class Done(NamedTuple):
    """The progress of a process or of a whole job.

    Attributes:
      scanned: file segments scanned for duplicates.
      ranges: finished ranges.
      records: records read.
      bytes: bytes read, without framing.
      steps: steps of accepted episodes.
      rejected: rejected records.
      framed: bytes of files read for their records' framing or for a checksum.
    """

    scanned: int = 0
    ranges: int = 0
    records: int = 0
    bytes: int = 0
    steps: int = 0
    rejected: int = 0
    framed: int = 0

    def __sub__(self, other: Done) -> Done:
        return Done(*(a - b for a, b in zip(self, other)))  # noqa: B905

    @classmethod
    def of_metrics(cls, metrics: Mapping[str, Any]) -> Done:
        """Makes one from a job's metrics, which have the same names."""
        return cls(**{name: metrics.get(name, 0) for name in cls._fields})


_counts = dict.fromkeys(Done._fields, 0)


def count(**added: int) -> None:
    """Adds to this process's counts, which have the names of the fields of `Done`; takes a microsecond."""
    for name, number in added.items():
        _counts[name] += number


def done() -> Done:
    """This process's counts since it started."""
    return Done(**_counts)
