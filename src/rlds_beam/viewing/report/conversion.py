"""The report on a conversion, from its output directory; with its input also the changes.

The rows of an output may be items or columns, which no source reads as episodes: `items_part` shows those.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlds_beam import storage
from rlds_beam.connectors.counts import Connected
from rlds_beam.datasets.dataset import Dataset
from rlds_beam.datasets.opening import open_dataset
from rlds_beam.encoding.metadata import decode
from rlds_beam.errors import UsageError
from rlds_beam.output.directory import Holding
from rlds_beam.output.files import REPORT
from rlds_beam.output.manifest import load_manifest, read_manifest
from rlds_beam.output.plans import read_plan
from rlds_beam.processing.report import Report, left_out_lines
from rlds_beam.text import printable
from rlds_beam.trajectories.items import REASONS
from rlds_beam.viewing.report.dataset import field_row
from rlds_beam.viewing.report.document import (
    ConnectorEffect,
    ConversionSection,
    DatasetFacts,
    DatasetPart,
    DroppedRow,
    ItemUse,
    SplitRow,
    UnusedRow,
)
from rlds_beam.viewing.report.sections import Change, Facts

_MAX_CHARACTERS = 300
_NOT_OPTIONS = (
    "format",
    "from",
    "to",
    "dataset",
    "features_sha256",
    "splits",
    "ranges",
    "content",
    "functions",
    "connectors",
    "episodes",
)
"""Parts of a plan that are not options, or are shown elsewhere."""

WITHOUT_SOURCE = "name the input with --source=INPUT to show frames and values before and after the connectors"
WITHOUT_CONNECTORS = "no connectors ran: accepted episodes are written as they were read"


def read_report(path: str) -> Report:
    """report.json of an output directory.

    Raises:
      UsageError: the conversion is not finished, or the file is malformed.
    """
    file = storage.join(path, REPORT)
    if not storage.exists(file):
        raise UsageError(f"{path} has no {REPORT}: the conversion is not finished; run the same command again")
    return decode(file, Report)


def describe_conversion(path: str, held: Holding, report: Report) -> ConversionSection:
    """The description of a finished conversion.

    Args:
      path: its output directory.
      held: `output.directory.holding` of it.
      report: `read_report` of it.
    """
    plan, manifest = read_plan(path), load_manifest(path) or {}
    content = {} if plan is None else plan.content
    dropped = sum(counts.records for counts in report.dropped.values())
    return ConversionSection(
        command=held.command,
        to=held.to,
        source=held.dataset,
        version=_version(manifest),
        options=_options(content),
        read=report.records,
        written=report.records - report.rejected - dropped,
        rejected=report.rejected,
        repaired=report.repaired,
        dropped=tuple(DroppedRow(name, counts.records, counts.episodes) for name, counts in report.dropped.items()),
        connectors=tuple(map(_effect, report.connectors)),
        items=_items(held, report, content),
        unused=tuple(
            UnusedRow(why, *REASONS[why], counts.episodes, counts.steps) for why, counts in report.unused.items()
        ),
        left_out=tuple(printable(line, _MAX_CHARACTERS) for line in left_out_lines(report.left_out)),
        note=WITHOUT_SOURCE if report.connectors else WITHOUT_CONNECTORS,
    )


def with_examples(section: ConversionSection, examples: Sequence[Change]) -> ConversionSection:
    """Adds examples of what the connectors changed."""
    note = "" if examples else "the connectors changed none of the episodes tried"
    return dataclasses.replace(section, examples=tuple(examples), note=note)


def _effect(counts: Connected) -> ConnectorEffect:
    return ConnectorEffect(
        counts.name,
        counts.arguments,
        counts.episodes_in,
        counts.episodes_out,
        counts.steps_in,
        counts.steps_out,
        counts.dropped,
        counts.changed,
        counts.fields,
        counts.columns,
    )


def _version(manifest: Mapping[str, Any]) -> str:
    version = manifest.get("written_by", "")
    return version if isinstance(version, str) else ""


def _options(plan: Mapping[str, Any]) -> Facts:
    """The options of a plan that differ from nothing: empty lists, null, and false are left out."""
    facts = []
    for name, value in plan.items():
        if name in _NOT_OPTIONS:
            continue
        for option, given in value.items() if isinstance(value, dict) else [("", value)]:
            if given not in (None, False, "", [], {}):
                text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
                facts.append((option or name, printable(text, _MAX_CHARACTERS)))
    return tuple(facts)


def _items(held: Holding, report: Report, plan: Mapping[str, Any]) -> ItemUse:
    """The use of steps by items; frames are known if all items have the same length."""
    options = plan.get("items")
    options = options if isinstance(options, dict) else {}
    length = {"pairs": 2, "frames": 1, "sequences": options.get("sequence_length")}.get(str(options.get("items")))
    steps = report.connectors[-1].steps_out if report.connectors else report.steps
    frames = report.items_written * length if isinstance(length, int) else None
    padding = options.get("pad_end_of_episodes") is True
    return ItemUse(
        held.kind,
        report.items_written,
        report.items_predicted,
        steps,
        frames,
        repeated=round(frames / steps, 4) if frames is not None and steps else None,
        padded=0 if frames is not None and not padding else None,
    )


def items_part(path: str, held: Holding) -> DatasetPart:
    """The items or rows of an output: their fields and splits."""
    manifest = read_manifest(path)
    modules = list(manifest.get("modules", ()))
    dataset = open_dataset(path, module=modules[0] if modules else None, images="encoded")
    notes = [f"the rows are {held.kind}, so signals and rules of episodes do not apply"]
    notes += [f"columns of {modules[0]}; the other modules are {', '.join(modules[1:])}"] if modules[1:] else []
    return DatasetPart(facts=_facts(path, held, dataset, manifest), notes=tuple(notes))


def _facts(path: str, held: Holding, dataset: Dataset, manifest: Mapping[str, Any]) -> DatasetFacts:
    shards = manifest["shards"]
    splits = [
        SplitRow(
            split,
            sum(shard["records"] for shard in shards if shard["split"] == split),
            sum(shard["split"] == split for shard in shards),
            sum(shard["bytes"] for shard in shards if shard["split"] == split),
        )
        for split in sorted({shard["split"] for shard in shards})
    ]
    fields = (field_row(dataclasses.replace(field, path=name), "step") for name, field in dataset.fields.items())
    return DatasetFacts(
        name=f"{held.dataset} as {held.kind}",
        path=path,
        format=held.to,
        file_format=str(manifest.get("format", "tfrecord")),
        fps=None,
        fields=tuple(fields),
        splits=tuple(splits),
        records=len(dataset),
        accepted=len(dataset),
        repaired=0,
        rejected=0,
        episodes=0,
        steps=len(dataset),
        bytes=sum(split.bytes for split in splits),
    )
