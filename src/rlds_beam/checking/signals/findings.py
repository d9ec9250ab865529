"""What is worth a look in one episode, and where."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from rlds_beam.checking.signals.base import SIGNALS


class Finding(NamedTuple):
    """A signal of an episode that is beyond its threshold.

    Attributes:
      signal: its name.
      field: the field with the worst value, if the signal is about fields.
      value: the worst value.
      step, stop: the steps where it is, [step, stop), if known.
    """

    signal: str
    field: str | None
    value: float
    step: int | None = None
    stop: int | None = None


def findings(row: Mapping[str, Any], thresholds: Mapping[str, float] | None = None) -> list[Finding]:
    """The findings of an episode, in the order of `SIGNALS`.

    Args:
      row: a row of the table (`EpisodeTable.finish().to_pylist()`), or `Measures.row`.
      thresholds: other thresholds than the signals' own, by name.
    """
    found = []
    for name, signal in SIGNALS.items():
        value = row.get(name)
        if value is None or not signal.breaks(float(value), (thresholds or {}).get(name)):
            continue
        step, stop = (_whole(row.get(f"{name}@{place}")) for place in ("step", "stop"))
        if step is not None and stop is None:
            stop = step + 1
        found.append(Finding(name, row.get(f"{name}@field"), float(value), step, stop))
    return found


def _whole(value: Any) -> int | None:
    return None if value is None or (isinstance(value, float) and math.isnan(value)) else int(value)
