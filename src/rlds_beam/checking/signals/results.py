"""The results of `check`: the table as a file, the list of episodes to leave out, and a summary of each signal."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlds_beam import storage
from rlds_beam.checking.signals.base import MIN_EPISODES, SIGNALS
from rlds_beam.checking.signals.conditions import check_known, mask, matches, parse_conditions
from rlds_beam.checking.signals.episodes import Context
from rlds_beam.checking.signals.rows import Rows
from rlds_beam.checking.signals.table import EpisodeTable, make_table
from rlds_beam.episodes.schema import dimension_labels, shown_dimensions
from rlds_beam.errors import UsageError
from rlds_beam.text import count, did_you_mean, printable, shorten

if TYPE_CHECKING:
    import pyarrow as pa

WORST = 15
"""The number of episodes that a summary lists for each signal."""

_MAX_CHARACTERS = 100
"""Characters of an instruction in a summary."""

_ROWS = 1 << 16
"""Rows of a row group of the file."""

_MOTION = "actions or observations in floats"


def check_signal(name: str, option: str) -> None:
    """Raises UsageError if there is no signal of this name."""
    if name not in SIGNALS:
        hint = did_you_mean(name, SIGNALS)
        raise UsageError(f"{option}: there is no signal {name!r}{hint}")


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


def reasons_unmeasured(table: pa.Table, context: Context) -> dict[str, str]:
    """Signal without a value in any episode -> why: `too few: need 10 episodes, there are 5`, `no field: need images`.

    Args:
      table: the result of `EpisodeTable.finish`.
      context: the fields that were measured.
    """
    of_group = {
        "Cameras": ("images", context.cameras),
        "Time": ("timestamps", context.clocks),
        "Motion": (_MOTION, context.motion),
        "Text and metadata": ("a text of the task", context.instructions),
        "Dataset": (_MOTION, context.motion),
    }
    reasons = {}
    for name, signal in SIGNALS.items():
        if name in table.column_names and table[name].null_count < table.num_rows:
            continue
        fields, known = of_group.get(signal.group, ("", True))
        if not known:
            reasons[name] = f"no field: need {fields}"
        elif signal.relative and table.num_rows < MIN_EPISODES:
            reasons[name] = f"too few: need {MIN_EPISODES} episodes, there are {table.num_rows}"
        elif signal.decodes and not context.decoded:
            reasons[name] = "not read: need --decode=1 or more"
        else:
            need = signal.needs or (f"usable {fields}" if fields else "episodes that can be read")
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


def summarize(table: pa.Table, thresholds: Mapping[str, float], context: Context) -> dict[str, Any]:
    """A summary of each signal as JSON, in the order of `SIGNALS`.

    Args:
      table: the result of `EpisodeTable.finish`.
      thresholds: the thresholds that differ from the default, by signal.
      context: the fields that were measured.

    Returns:
      Signal -> `threshold`, `measured` (the number of episodes with a value), `unmeasured` (why there are none),
      `beyond` (the number beyond the threshold), `median`, and `worst`: the worst `WORST` episodes, each with `key`,
      `value`, `field`, `step` and `stop`.
    """
    reasons = reasons_unmeasured(table, context)
    summaries = {name: _summary(table, name, thresholds.get(name, SIGNALS[name].threshold)) for name in SIGNALS}
    return {name: {**summary, "unmeasured": reasons.get(name)} for name, summary in summaries.items()}


def _summary(table: pa.Table, name: str, threshold: float) -> dict[str, Any]:
    values = table[name].to_numpy().astype(np.float64) if name in table.column_names else np.empty(0)
    known = np.flatnonzero(~np.isnan(values))
    measured = values[known]
    beyond = measured > threshold
    order = known[np.argsort(-measured, kind="stable")[:WORST]]
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
          OSError: a file cannot be written.
        """
        import pyarrow.parquet as pq

        rows = measured.rows()
        table = make_table(rows)
        chosen = [] if self.reject is None else list(_choose(table, self.reject))
        if self.output is not None:
            with storage.writing(self.output) as file:
                pq.write_table(table, file, row_group_size=_ROWS, compression="zstd", write_page_checksum=True)
        if self.exclude is not None:
            storage.write_bytes(self.exclude, "".join([f"# {self.reject}\n", *chosen]).encode())
        return {
            "rows": table.num_rows,
            "chosen": len(chosen),
            "signals": summarize(table, self.thresholds, measured.context),
            "findings": [dataclasses.asdict(finding) for finding in find_in_dataset(rows)],
        }


def _choose(table: pa.Table, reject: str) -> Iterator[str]:
    """The lines of the list of episodes: the key, and the condition that chose it as a remark."""
    conditions = parse_conditions(reject)
    check_known(conditions, table.column_names)
    names = dict.fromkeys(["key", *(condition.name for condition in conditions)])
    for row in table.select([*names]).filter(mask(table, conditions)).to_pylist():
        condition = matches(row, conditions)
        assert condition is not None
        yield f"{row['key']}\t{printable(condition.name)} {row[condition.name]:.4g}\n"


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
      row: a row of the table (`EpisodeTable.finish().to_pylist()`), or the result of `measure`.
      thresholds: other thresholds than the signals' own, by name.
    """
    found = []
    for name, signal in SIGNALS.items():
        value = row.get(name)
        if value is None or not signal.breaks(float(value), (thresholds or {}).get(name)):
            continue
        places = (row.get(f"{name}@{place}") for place in ("step", "stop"))
        step, stop = (None if place is None or math.isnan(place) else int(place) for place in places)
        if step is not None and stop is None:
            stop = step + 1
        found.append(Finding(name, row.get(f"{name}@field"), float(value), step, stop))
    return found


DATASET_CHECKS: dict[str, str] = {
    "constant_dimension": "a dimension never changes, in any step of any episode",
    "constant_metadata": "a field of the episodes has the same value in all of them",
}
"""Check of the whole dataset -> its meaning; the most serious first."""

_REMEDIES = {
    "constant_dimension": "a broken sensor, or a dimension that is not used: leave it out",
    "constant_metadata": "check where the value comes from; the connector DropFields removes the field",
}


@dataclasses.dataclass(frozen=True)
class DatasetFinding:
    """A finding about the whole dataset.

    Attributes:
      check: one of `DATASET_CHECKS`.
      field: the field that it is about.
      detail: what was found.
      remedy: what to do about it.
    """

    check: str
    field: str
    detail: str
    remedy: str


def find_in_dataset(rows: Rows) -> list[DatasetFinding]:
    """What no single episode shows, in the order of `DATASET_CHECKS`; nothing for fewer than 10 episodes.

    Constant metadata may be right, but one field was `building` in all 27.6 million rows (lerobot issue 4402).
    """
    if len(rows) < MIN_EPISODES:
        return []
    found = []
    for path in rows.fields:
        low, high = rows.vector("low", path), rows.vector("high", path)
        known = ~np.isnan(low).any(axis=1)
        if known.sum() < MIN_EPISODES:
            continue
        low, high = low[known].min(axis=0), high[known].max(axis=0)
        constant = np.flatnonzero(low == high)
        if len(constant):
            labels = dimension_labels((len(low),), len(low), rows.context.names.get(path, ()))
            number = shown_dimensions(len(constant))
            shown = ", ".join(f"{labels[d]} (always {low[d]:g})" for d in constant[:number].tolist())
            more = f" and {len(constant) - number} more" if len(constant) > number else ""
            found.append(("constant_dimension", path, f"of {len(low)} dimensions: {shown}{more}"))
    for name in (name for name in rows.values if name.startswith("metadata/")):
        values = [value for value in rows.values[name] if value is not None]
        if len(values) >= MIN_EPISODES and len(set(values)) == 1 and not isinstance(values[0], bool):
            detail = f"{shorten(repr(values[0]), 60)} in all {count(len(values), 'episode')}"
            found.append(("constant_metadata", name.partition("/")[2], detail))
    return [DatasetFinding(check, field, detail, _REMEDIES[check]) for check, field, detail in found]
