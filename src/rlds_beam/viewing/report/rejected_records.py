"""The rejected records of a conversion, from `rejected/`: decoded if a source can, with the steps that broke rules."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from rlds_beam import storage
from rlds_beam.encoding.base import Record
from rlds_beam.encoding.tfrecord.file import TFRecordFormat
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import UsageError, Violation
from rlds_beam.output.manifest import load_manifest
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import Segment, Shard, Source
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.viewing.episode_view import Json
from rlds_beam.viewing.report.dataset import BUDGET, SMALL, collect_rules
from rlds_beam.viewing.report.episodes import Shelf

_UNDECODED = "the curves need the input of the conversion: --source=INPUT"


@dataclasses.dataclass(frozen=True)
class RejectedRecord:
    """A record in `rejected/`, as it was read, with what is wrong with it."""

    payload: bytes
    violations: tuple[Violation, ...]


def rejected_records(path: str, keys: Iterable[str]) -> dict[str, RejectedRecord]:
    """Reads the rejected records of an output directory with these keys.

    Raises:
      UsageError: a file in `rejected/` is malformed.
    """
    wanted = set(keys)
    found: dict[str, RejectedRecord] = {}
    for entry in (load_manifest(path) or {}).get("rejected", ()):
        records = storage.join(path, *entry["file"].split("/"))
        lines = storage.read_text(f"{records.removesuffix('.tfrecord')}.jsonl").splitlines()
        about = [_parse(line, records) for line in lines]
        if wanted.isdisjoint(key for key, _ in about):
            continue
        payloads = (record.payload for record in TFRecordFormat().read(records, 0, None))
        found |= {
            key: RejectedRecord(payload, violations)
            for (key, violations), payload in zip(about, payloads, strict=False)
            if key in wanted
        }
    return found


def add_rejected(part: Json, path: str, report: Report, source: Source | None, convert: tuple[str, ...]) -> Json:
    """Adds the broken rules of a conversion to the part about its output.

    Args:
      path: the output directory.
      report: the report of the conversion.
      source: decodes the records; None if it is not known.
      convert: the beginning of the command that converts.
    """
    keys = [sample.key for counts in report.rules.values() if counts.rejected for sample in counts.samples]
    records = rejected_records(path, keys)
    reader = None if source is None else EpisodeReader(source)

    def read(key: EpisodeKey) -> Episode:
        record = records[str(key)]
        if reader is None:
            faults = (Violation("not_an_example", _UNDECODED),)
            return Episode(key, {}, payload=record.payload, faults=faults)
        segment = Segment(Shard(key.shard, path, 0, None))
        return reader.episode(key.split, segment, Record(key.position, record.payload))

    shelf = Shelf(read, lambda episode: records[str(episode.key)].violations, BUDGET // 4)
    for key in keys:
        if key in records:
            shelf.show(key, SMALL)
    rules = collect_rules(report, shelf.steps, convert)
    shown = [view for _, view in sorted(shelf.views.items())]
    # No episode of the output may have these keys: an output in the same format has the same keys as its input.
    for one in (*shown, *(sample for rule in rules for sample in rule["samples"])):
        one["key"] = f"rejected/{one['key']}"
    return {
        **part,
        "rules": [*rules, *part["rules"]],
        "episodes": [*shown, *part["episodes"]],
        "notes": [*part["notes"], *shelf.notes()],
    }


def _parse(line: str, where: str) -> tuple[str, tuple[Violation, ...]]:
    try:
        content = json.loads(line)
        return str(content["key"]), tuple(map(_violation, content["violations"]))
    except (LookupError, RecursionError, TypeError, ValueError) as error:
        raise UsageError(f"{where}: its list of reasons is malformed ({type(error).__name__})") from error


def _violation(content: Mapping[str, Any]) -> Violation:
    field, step = content.get("field"), content.get("step")
    return Violation(
        str(content["rule"]),
        str(content["detail"]),
        None if field is None else str(field),
        step if isinstance(step, int) else None,
    )
