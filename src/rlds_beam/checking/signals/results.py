"""The results of `check`: the table as a file, the list of episodes to leave out, and a summary of each signal."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlds_beam import storage
from rlds_beam.checking.signals.base import SIGNALS
from rlds_beam.checking.signals.conditions import check_known, mask, matches, parse_conditions
from rlds_beam.checking.signals.context import Context
from rlds_beam.checking.signals.scores import MIN_EPISODES
from rlds_beam.checking.signals.table import EpisodeTable, StoredTable
from rlds_beam.errors import DiskError, RldsBeamError, UsageError
from rlds_beam.text import did_you_mean, printable, shorten

if TYPE_CHECKING:
    import pyarrow as pa

WORST = 15
"""The number of episodes that a summary lists for each signal."""

_MAX_CHARACTERS = 100
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


_CAMERAS, _CLOCKS, _TEXTS = "images", "timestamps", "a text of the task"
_MOTION = "actions or observations in floats"
_NEEDS = {
    **dict.fromkeys(("frozen_camera", "repeated_images", "black_images", "overexposed_images"), (_CAMERAS, "")),
    "blurred_images": (_CAMERAS, "images with details"),
    "video_length": (_CAMERAS, "videos and a declared rate"),
    **dict.fromkeys(("dropped_frames", "jitter", "time_reversals", "rate_mismatch"), (_CLOCKS, "")),
    **dict.fromkeys(("jump", "stuck", "idle_share"), (_MOTION, "")),
    "gripper_chatter": (_MOTION, "a moving gripper"),
    "lag": (_MOTION, "an observation of the action"),
    "outlier_return": ("rewards", "rewards"),
    "scale_mismatch": (_MOTION, "splits"),
    "split_leakage": ("", "splits"),
    "missing_instruction": (_TEXTS, ""),
}
"""Signal -> the fields that it needs, and what else must be true of them."""


def reasons_unmeasured(table: pa.Table, context: Context) -> dict[str, str]:
    """Signal without a value in any episode -> why: `too few: need 10 episodes, there are 5`, `no field: need images`.

    Args:
      table: the result of `EpisodeTable.finish`.
      context: the fields that were measured.
    """
    known = {_CAMERAS: context.cameras, _CLOCKS: context.clocks, _MOTION: context.motion, _TEXTS: context.instructions}
    reasons = {}
    for name, signal in SIGNALS.items():
        if name in table.column_names and table[name].null_count < table.num_rows:
            continue
        fields, more = _NEEDS.get(name, ("", ""))
        if not known.get(fields, True):
            reasons[name] = f"no field: need {fields}"
        elif signal.relative and table.num_rows < MIN_EPISODES:
            reasons[name] = f"too few: need {MIN_EPISODES} episodes, there are {table.num_rows}"
        elif signal.decodes and not context.decoded:
            reasons[name] = "not read: need --decode=1 or more"
        else:
            need = more or (f"usable {fields}" if fields else "episodes that can be read")
            reasons[name] = f"no data: need {need}"
    return reasons


def group_reasons(reasons: Mapping[str, str]) -> list[tuple[str, str]]:
    """The labels and texts of `reasons_unmeasured`, one for each reason: `("no field", "jitter: need timestamps")`."""
    groups: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        groups.setdefault(reason, []).append(name)
    found: dict[str, list[str]] = {}
    for reason, names in groups.items():
        label, _, need = reason.partition(": ")
        found.setdefault(label, []).append(f"{', '.join(names)}: {need}")
    return [(label, "; ".join(texts)) for label, texts in sorted(found.items(), reverse=True)]


def summarize(table: pa.Table, thresholds: Mapping[str, float], context: Context, most: int = WORST) -> dict[str, Any]:
    """A summary of each signal as JSON, in the order of `SIGNALS`.

    Args:
      table: the result of `EpisodeTable.finish`.
      thresholds: the thresholds that differ from the default, by signal.
      context: the fields that were measured.
      most: the number of worst episodes to list.

    Returns:
      Signal -> `threshold`, `measured` (the number of episodes with a value), `unmeasured` (why there are none),
      `beyond` (the number beyond the threshold), `median`, and `worst`: the worst episodes, each with `key`, `value`,
      `field`, `step` and `stop`.
    """
    reasons = reasons_unmeasured(table, context)
    summaries = {name: _summary(table, name, thresholds.get(name, SIGNALS[name].threshold), most) for name in SIGNALS}
    return {name: {**summary, "unmeasured": reasons.get(name)} for name, summary in summaries.items()}


def _summary(table: pa.Table, name: str, threshold: float, most: int) -> dict[str, Any]:
    values = table[name].to_numpy().astype(np.float64) if name in table.column_names else np.empty(0)
    known = np.flatnonzero(~np.isnan(values))
    measured = values[known]
    beyond = measured > threshold
    order = known[np.argsort(-measured, kind="stable")[:most]]
    columns = ["key", "steps", "instruction", name, *(f"{name}@{place}" for place in ("field", "step", "stop"))]
    names = ("key", "steps", "instruction", "value", "field", "step", "stop")
    worst = [
        {key: table[column][row].as_py() for key, column in zip(names, columns, strict=True)} for row in order.tolist()
    ]
    for episode in worst:  # the summary is small, and JSON has no infinity
        episode["value"] = float(np.nan_to_num(episode["value"]))
        episode["instruction"] = (
            None if episode["instruction"] is None else shorten(episode["instruction"], _MAX_CHARACTERS)
        )
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
        stored = measured.store(whole=self.output is not None or self.reject is not None)
        table = stored.table
        chosen = [] if self.reject is None else list(_choose(stored, self.reject))
        if self.output is not None:
            with _naming(f"--output={self.output}"), storage.writing(self.output) as file:
                write_parquet(stored, file)
        if self.exclude is not None:
            with _naming(f"--write_exclude={self.exclude}"):
                storage.write_bytes(self.exclude, "".join([f"# {self.reject}\n", *chosen]).encode())
        return {
            "rows": table.num_rows,
            "chosen": len(chosen),
            "signals": summarize(table, self.thresholds, measured.context),
            "findings": [dataclasses.asdict(finding) for finding in measured.dataset_findings()],
        }


def write_parquet(stored: StoredTable, file: Any) -> None:
    """Writes the table as a Parquet file, one row group after the other."""
    import pyarrow.parquet as pq

    table = stored.table
    with pq.ParquetWriter(file, table.schema, compression="zstd", write_page_checksum=True) as writer:
        for start in range(0, max(table.num_rows, 1), _ROWS):
            writer.write_table(table.slice(start, _ROWS), _ROWS)
            stored.forget()


def _choose(stored: StoredTable, reject: str) -> Iterator[str]:
    """The lines of the list of episodes: the key, and the condition that chose it as a remark."""
    conditions = parse_conditions(reject)
    check_known(conditions, stored.table.column_names)
    names = dict.fromkeys(["key", *(condition.name for condition in conditions)])
    for start in range(0, stored.table.num_rows, _ROWS):
        table = stored.table.select([*names]).slice(start, _ROWS)
        for row in table.filter(mask(table, conditions)).to_pylist():
            condition = matches(row, conditions)
            value = None if condition is None else row[condition.name]
            numeric = condition is not None and isinstance(value, (int, float))
            remark = f"\t{printable(condition.name)} {value:.4g}" if condition is not None and numeric else ""
            yield f"{row['key']}{remark}\n"
    stored.forget()


@contextlib.contextmanager
def _naming(flag: str) -> Iterator[None]:
    try:
        yield
    except DiskError:
        raise
    except OSError as error:
        raise RldsBeamError(f"{flag} cannot be written to: {error}") from error


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
