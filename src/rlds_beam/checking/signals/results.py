"""The results of `check`: the table as a file, the list of episodes to leave out, and a summary of each signal."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam import storage
from rlds_beam.checking.signals.base import SIGNALS
from rlds_beam.checking.signals.conditions import check_known, mask, matches, parse_conditions
from rlds_beam.checking.signals.table import EpisodeTable
from rlds_beam.errors import DiskError, RldsBeamError, UsageError
from rlds_beam.text import did_you_mean, printable, shortened

if TYPE_CHECKING:
    import pyarrow as pa

WORST = 15
"""The number of episodes that a summary lists for each signal."""

_MOST_TEXT = 100
"""Characters of an instruction in a summary."""

_ROWS = 1 << 16
"""Rows of a row group of the file."""


def check_signal(name: str, option: str) -> None:
    """Raises UsageError if there is no signal of this name."""
    if name not in SIGNALS:
        hint = did_you_mean(name, SIGNALS)
        raise UsageError(f"{option}: there is no signal {name!r}{hint} (rlds-beam help signals)")


def parse_thresholds(texts: Iterable[str]) -> dict[str, float]:
    """Parses `jump=10`.

    Raises:
      UsageError: there is no such signal, or the value is not a number.
    """
    found = {}
    for text in texts:
        name, _, value = (part.strip() for part in text.partition("="))
        check_signal(name, f"--threshold={text}")
        try:
            found[name] = float(value)
        except ValueError:
            raise UsageError(f"--threshold={text}: expected a number, for example {name}=0.5") from None
    return found


def summarize(table: pa.Table, thresholds: Mapping[str, float], most: int = WORST) -> dict[str, Any]:
    """A summary of each signal as JSON, in the order of `SIGNALS`.

    Args:
      table: the result of `EpisodeTable.finish`.
      thresholds: the thresholds that differ from the default, by signal.
      most: the number of worst episodes to list.

    Returns:
      Signal -> `threshold`, `measured` (the number of episodes with a value), `beyond` (the number beyond the
      threshold), `median`, and `worst`: the worst episodes, each with `key`, `value`, `field`, `step` and `stop`.
    """
    return {name: _summary(table, name, thresholds.get(name, SIGNALS[name].threshold), most) for name in SIGNALS}


def _summary(table: pa.Table, name: str, threshold: float, most: int) -> dict[str, Any]:
    signal = SIGNALS[name]
    values = table[name].to_numpy().astype(np.float64) if name in table.column_names else np.empty(0)
    known = np.flatnonzero(~np.isnan(values))
    measured = values[known]
    beyond = measured < threshold if signal.below else measured > threshold
    order = known[np.argsort(measured if signal.below else -measured, kind="stable")[:most]]
    columns = ["key", "steps", "instruction", name, *(f"{name}@{place}" for place in ("field", "step", "stop"))]
    names = ("key", "steps", "instruction", "value", "field", "step", "stop")
    worst = table.select(columns).take(order).rename_columns(names).to_pylist() if len(order) else []
    for one in worst:  # the summary is small, and JSON has no infinity
        one["value"] = float(np.nan_to_num(one["value"]))
        one["instruction"] = None if one["instruction"] is None else shortened(one["instruction"], _MOST_TEXT)
    return {
        "threshold": threshold,
        "measured": len(measured),
        "beyond": int(np.count_nonzero(beyond)),
        "median": float(np.nan_to_num(np.median(measured))) if len(measured) else None,
        "worst": worst,
    }


@dataclasses.dataclass(frozen=True)
class SignalsWriter:
    """Writes the results of `check`. Picklable.

    Attributes:
      output: the file for the table, as Parquet; None to write none.
      reject: conditions that choose episodes; None to choose none.
      exclude: the file for the list of these episodes; None to write none.
      thresholds: the thresholds that differ from the default, by signal.
    """

    output: str | None = None
    reject: str | None = None
    exclude: str | None = None
    thresholds: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def write(self, measured: EpisodeTable) -> dict[str, Any]:
        """Writes the files; equal tables give equal bytes.

        Returns:
          The summary as JSON: `rows`, `chosen` (the number of episodes that `reject` chose), `signals`, and `findings`
          (those about the whole dataset).

        Raises:
          UsageError: the dataset has no such field or metadata as `reject` names.
          RldsBeamError: a file cannot be written.
        """
        table = measured.finish()
        chosen = [] if self.reject is None else list(_chosen(table, self.reject))
        if self.output is not None:
            _write(self.output, "--output", parquet(table))
        if self.exclude is not None:
            _write(self.exclude, "--write_exclude", "".join([f"# {self.reject}\n", *chosen]).encode())
        return {
            "rows": table.num_rows,
            "chosen": len(chosen),
            "signals": summarize(table, self.thresholds),
            "findings": [dataclasses.asdict(one) for one in measured.dataset_findings()],
        }


def parquet(table: pa.Table) -> bytes:
    """The table as a Parquet file."""
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=_ROWS, compression="zstd", write_page_checksum=True)
    return file.getvalue()


def _chosen(table: pa.Table, reject: str) -> Iterator[str]:
    """The lines of the list of episodes: the key, and the condition that chose it as a remark."""
    conditions = parse_conditions(reject)
    check_known(conditions, table.column_names)
    for row in table.filter(mask(table, conditions)).to_pylist():
        condition = matches(row, conditions)
        value = None if condition is None else row[condition.name]
        numeric = condition is not None and isinstance(value, (int, float))
        remark = f"\t{printable(condition.name)} {value:.4g}" if condition is not None and numeric else ""
        yield f"{row['key']}{remark}\n"


def _write(path: str, flag: str, content: bytes) -> None:
    try:
        storage.write_bytes(path, content)
    except DiskError:
        raise
    except OSError as error:
        raise RldsBeamError(f"{flag}={path} cannot be written to: {error}") from error
