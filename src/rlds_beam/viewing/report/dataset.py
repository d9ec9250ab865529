"""One dataset's part of a report: its facts, and what one pass over its episodes gathered."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from rlds_beam.checking.rules import ADVICE, POLICIES, RULES, CheckOptions
from rlds_beam.checking.signals.episodes import Context
from rlds_beam.checking.signals.motions import outline_actions
from rlds_beam.checking.signals.results import (
    DatasetFinding,
    Finding,
    find_in_dataset,
    group_reasons,
    reasons_unmeasured,
)
from rlds_beam.checking.signals.table import make_table
from rlds_beam.checking.validation import find_violations
from rlds_beam.connectors.statistics.episode_statistics import DatasetStatistics
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import Violation
from rlds_beam.jobs.summary import RangeSummary
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import Source, Split
from rlds_beam.reading.reader import read_episode
from rlds_beam.text import printable, shape_text
from rlds_beam.viewing.episode_view import EpisodeViews, Json, Limits, sample_keys, signal_mark
from rlds_beam.viewing.report.signals import collect_signals, count_texts, make_distributions

if TYPE_CHECKING:
    import pyarrow as pa


Facts = list[tuple[str, str]]
"""Names and texts, in order."""

GRID = 24
"""The number of episodes in the grid of moving thumbnails; a third of them may be rejected or have marks."""

MAX_VIEWS = 90
"""Maximum episodes with frames and curves, besides the samples."""

BUDGET = 6_000_000
"""Bytes of all frames and curves of a report, which has at most 10 MB."""

SMALL = Limits(frames=6, height=96, cameras=2, points=160, curves=6)
"""For worst and rejected episodes."""

_LARGE, _LARGE_BYTES = Limits(frames=16, height=160, cameras=4), 400_000
"""For samples, if half of the budget has room for them; the bytes of one, about."""


class Gathered(NamedTuple):
    """The findings of a pass over a dataset.

    Attributes:
      report: the counts of all records read.
      statistics: the statistics of the accepted episodes, after any connectors.
      table: a row for each record read (`checking.signals`); `outline` has 8 numbers of an action.
      findings: what only the whole dataset shows.
    """

    report: Report
    statistics: DatasetStatistics
    table: pa.Table
    findings: tuple[DatasetFinding, ...]

    @classmethod
    def from_summary(cls, summary: RangeSummary) -> Gathered:
        """The results of a pass over all ranges."""
        signals = summary.signals
        assert signals is not None
        rows = signals.rows()
        table, outlines = make_table(rows), outline_actions(rows)
        if outlines is not None:
            import pyarrow as pa

            parts = pa.FixedSizeListArray.from_arrays(pa.array(outlines.ravel()), outlines.shape[1])
            table = table.append_column("outline", parts)
        return cls(summary.report, summary.statistics, table, tuple(find_in_dataset(rows)))


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of one dataset's part.

    Attributes:
      path: the path as given; `format`: the name of its format.
      check: the policies; they decide which violations are marked.
      samples: the number of sample episodes.
      worst: the number of worst episodes of each signal.
      decode: the number of images to decode of each camera and episode, for signals.
      thresholds: signal -> threshold, instead of the default.
      convert, list_command: the beginnings of the commands that convert it, and that list episodes by signals.
      notes: about the dataset, shown with it.
    """

    path: str
    format: str
    check: CheckOptions
    samples: int = 6
    worst: int = 5
    decode: int = 3
    thresholds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    convert: tuple[str, ...] = ("rlds-beam", "convert")
    list_command: tuple[str, ...] = ("rlds-beam", "check")
    notes: tuple[str, ...] = ()


def make_section(source: Source, gathered: Gathered, settings: Settings) -> Json:
    """The part of a report about one dataset; reads the episodes that it shows.

    Returns:
      `facts`; `grid`, some episodes as moving thumbnails; `samples`, the keys of episodes chosen at random;
      `distributions`; `texts`, instructions and metadata; `signals` by group; `findings`, what only the whole dataset
      shows; broken `rules`; `episodes`, the frames and curves of those that the others name; `notes`, what was left
      out; the signals that are `unmeasured`; and the `numbers` of episodes in the dataset's order, by key.
    """
    import pyarrow.compute as pc

    summary = make_summary(source, gathered, settings)
    signals = summary["signals"]
    rejected = [s.key for counts in gathered.report.rules.values() if counts.rejected for s in counts.samples]
    views = EpisodeViews(
        lambda key: read_episode(source, key),
        lambda episode: _broken(episode, settings.check, source.schema.names),
        BUDGET,
        _make_marks(signals),
        source.schema.names,
        source.fps,
    )
    beyond = [[episode["key"] for episode in signal["worst"][: signal["beyond"]]] for signal in signals]
    worst = [key for rank in itertools.zip_longest(*beyond) for key in rank if key is not None]  # of each signal first
    others = list(dict.fromkeys([*rejected, *worst]))[:MAX_VIEWS]
    accepted = gathered.table["key"].filter(pc.is_null(gathered.table["rule"])).to_pylist()
    keys = sample_keys(accepted, GRID + settings.samples + len(others))
    samples = [key for key in keys if key not in others][: settings.samples]
    large = settings.samples * _LARGE_BYTES <= BUDGET // 2
    for key in samples:
        views.show(key, _LARGE if large else Limits())
    grid = views.grid([*others[: GRID // 3], *keys], GRID)
    for key in others:
        views.show(key, SMALL)
    shown = {*views.views, *(cell["key"] for cell in grid)}
    return {
        **summary,
        "grid": grid,
        "samples": samples,
        "rules": collect_rules(gathered.report, views.steps, settings.convert),
        "episodes": [view for _, view in sorted(views.views.items())],
        "notes": [*settings.notes, *views.notes()],
        "numbers": {**summary["numbers"], **_numbers(gathered.table, shown)},
    }


def make_summary(source: Source, gathered: Gathered, settings: Settings) -> Json:
    """What `make_section` says of the dataset as a whole; reads no episode."""
    signals = collect_signals(gathered.table, settings.worst, settings.thresholds, settings.list_command)
    rules = collect_rules(gathered.report, {}, settings.convert)
    context = Context.from_schema(source.schema, fps=source.fps, decoded=settings.decode)
    unmeasured = reasons_unmeasured(gathered.table, context)
    named = {one["key"] for section in signals for one in section["worst"]}
    named.update(sample["key"] for rule in rules for sample in rule["samples"])
    return {
        "facts": collect_facts(source, settings.path, settings.format, gathered.report),
        "distributions": make_distributions(gathered.statistics.whole, source.schema.names),
        "texts": count_texts(gathered.table),
        "signals": signals,
        "findings": [dataclasses.asdict(finding) for finding in gathered.findings],
        "rules": rules,
        "notes": list(settings.notes),
        "unmeasured": [f"{label}: {text}" for label, text in group_reasons(unmeasured)],
        "numbers": _numbers(gathered.table, named),
    }


def _numbers(table: pa.Table, keys: Iterable[str]) -> dict[str, int]:
    """The row of each key: the table has the records in the dataset's order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pa.array(sorted(keys), pa.string())
    rows = pc.index_in(wanted, value_set=table["key"].combine_chunks().cast(pa.string())).to_pylist()
    return {key: row for key, row in zip(wanted.to_pylist(), rows, strict=True) if row is not None}


def _broken(episode: Episode, check: CheckOptions, names: Mapping[str, tuple[str, ...]]) -> list[Violation]:
    """The rules that an episode breaks; a rule that needs the whole dataset is not among them."""
    return [
        violation
        for violation in find_violations(episode, check, names=names)
        if check.policy(violation.rule) != "accept"
    ]


def _make_marks(signals: Iterable[Json]) -> dict[str, list[Json]]:
    """key -> a mark for each signal; only for its worst episodes beyond the threshold."""
    marks: dict[str, list[Json]] = {}
    for signal in signals:
        for worst in signal["worst"][: signal["beyond"]]:
            value = math.inf if worst["value"] is None else worst["value"]
            finding = Finding(signal["name"], worst["field"], value, worst["step"], worst["stop"])
            marks.setdefault(worst["key"], []).append(signal_mark(finding))
    return marks


_MAX_CHARACTERS = 2000
"""Maximum characters of a fact of the card."""

_CARD = ("description", "citation", "releaseNotes", "version")
_PROVENANCE = "provenance.json"


def collect_facts(source: Source, path: str, format: str, report: Report) -> Json:
    """The facts about a dataset, and the extent of the reading.

    Args:
      path: the path as given.
      format: the name of its format.
      report: the counts of the records read, with the faults of the dataset.
    """
    card, provenance = _metadata(source)
    fields = [("step", field) for _, field in sorted(source.schema.steps.items())]
    fields += [("episode", field) for _, field in sorted(source.schema.metadata.items())]
    return {
        "name": source.dataset,
        "path": path,
        "format": format,
        "file_format": source.files.name,
        "fps": source.fps,
        "fields": [field_row(field, level) for level, field in fields],
        "splits": [_split(split) for split in source.splits],
        "records": report.records,
        "repaired": report.repaired,
        "rejected": report.rejected,
        "episodes": report.episodes,
        "steps": report.steps,
        "bytes": report.bytes,
        "problems": [str(violation) for violation in source.details.violations],
        "provenance": provenance,
        "card": card,
    }


def collect_rules(report: Report, steps: Mapping[tuple[str, str], int | None], command: tuple[str, ...]) -> list[Json]:
    """The broken rules.

    Args:
      steps: (key, rule) -> the step that broke the rule, for samples that were read again.
      command: the command that repairs, without `--repair`.
    """
    sections = []
    for rule, meaning in RULES.items():
        if rule not in report.rules:
            continue
        counts = report.rules[rule]
        samples = [
            {
                "key": sample.key,
                "detail": printable(sample.detail, _MAX_CHARACTERS),
                "step": steps.get((sample.key, rule)),
            }
            for sample in counts.samples
        ]
        sections.append(
            {
                "rule": rule,
                "meaning": meaning,
                "advice": ADVICE[rule],
                "accepted": counts.accepted,
                "repaired": counts.repaired,
                "rejected": counts.rejected,
                "command": _command(rule, command) if counts.rejected else "",
                "samples": samples,
            }
        )
    return sections


def _command(rule: str, command: tuple[str, ...]) -> str:
    """The command that repairs or accepts; empty if a rule allows neither."""
    import shlex

    for policy in ("repair", "accept"):
        if policy in POLICIES[rule]:
            return shlex.join([*command, f"--{policy}={rule}"])
    return ""


def field_row(field: Field, level: str) -> Json:
    """A field of the schema, with its shape, storage, and representation as text."""
    stored = f"{field.encoding} {field.feature}" if field.encoding not in ("none", "text") else field.feature
    represented = f"; {field.representation}" if field.representation else ""
    return {
        "path": field.path,
        "level": level,
        "dtype": field.dtype,
        "shape": shape_text(field.shape),
        "stored": stored + represented,
    }


def _split(split: Split) -> Json:
    stop = "" if split.stop is None else split.stop
    return {
        "name": split.name,
        "episodes": split.episodes,
        "shards": len(split.shards),
        "bytes": split.size,
        "slice": f"[{split.start}:{stop}]" if split.sliced else "",
    }


def _metadata(source: Source) -> tuple[Facts, Facts]:
    """The card and the origin, from TFDS's metadata."""
    tfds = source.details.tfds
    if tfds is None:
        return [], []
    info = tfds.info
    card = _present(info, _CARD)
    license_ = info.get("redistributionInfo")
    if isinstance(license_, dict):
        card += _present(license_, ("license",))
    location = info.get("location")
    if isinstance(location, dict) and isinstance(location.get("urls"), list):
        card.append(("location", printable(", ".join(map(str, location["urls"])), _MAX_CHARACTERS)))
    origin = _json(tfds.files.get(_PROVENANCE, b""))
    made = _present(origin, ("written_by",))
    if isinstance(origin.get("source"), dict):
        made += [(f"source {name}", text) for name, text in _present(origin["source"], ("dataset", "from"))]
    counts = origin.get("counts")
    if isinstance(counts, dict):
        made += [(name, text) for name, text in _present(counts, ("records", "written", "rejected"))]
    return card, made


def _present(content: Mapping[str, Any], names: Iterable[str]) -> list[tuple[str, str]]:
    """The named values that are text or numbers and not empty."""
    values = ((name, content.get(name)) for name in names)
    return [(name, printable(v, _MAX_CHARACTERS)) for name, v in values if isinstance(v, (str, int, float)) and v != ""]


def _json(text: bytes) -> Mapping[str, Any]:
    """Parsed JSON; nothing if it is not an object."""
    try:
        content = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
