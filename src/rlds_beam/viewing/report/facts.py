"""The facts of a dataset in a report: its schema, splits, counts, origin, and card."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from rlds_beam.checking.rules import ADVICE, POLICIES, RULES
from rlds_beam.episodes.schema import Field
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import Source, Split
from rlds_beam.text import printable, shape_text
from rlds_beam.viewing.report.document import DatasetFacts, FieldRow, SplitRow
from rlds_beam.viewing.report.sections import RejectedSample, RuleSection
from rlds_beam.viewing.report.views import Facts

_MAX_CHARACTERS = 2000
"""Maximum characters of a fact of the card."""

_CARD = ("description", "citation", "releaseNotes", "version")
_PROVENANCE = "provenance.json"


def facts_of(source: Source, path: str, format: str, report: Report) -> DatasetFacts:
    """What a dataset is, and what was read of it.

    Args:
      path: the path as given.
      format: the name of its format.
      report: the counts of the records read, with the faults of the dataset.
    """
    card, provenance = _metadata(source)
    schema = source.schema
    return DatasetFacts(
        name=source.dataset,
        path=path,
        format=format,
        file_format=source.files.name,
        fps=source.fps,
        fields=(
            *(field_row(field, "step") for _, field in sorted(schema.steps.items())),
            *(field_row(field, "episode") for _, field in sorted(schema.metadata.items())),
        ),
        splits=tuple(map(_split, source.splits)),
        records=report.records,
        accepted=report.records - report.rejected,
        repaired=report.repaired,
        rejected=report.rejected,
        episodes=report.episodes,
        steps=report.steps,
        bytes=report.bytes,
        problems=tuple(str(violation) for violation in source.violations),
        provenance=provenance,
        card=card,
    )


def rules_of(
    report: Report, steps: Mapping[tuple[str, str], int | None], command: tuple[str, ...]
) -> tuple[RuleSection, ...]:
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
        samples = tuple(
            RejectedSample(str(key), printable(detail, _MAX_CHARACTERS), steps.get((str(key), rule)))
            for key, detail in counts.samples
        )
        sections.append(
            RuleSection(
                rule,
                meaning,
                ADVICE[rule],
                counts.accepted,
                counts.repaired,
                counts.rejected,
                command=_command(rule, command) if counts.rejected else "",
                samples=samples,
            )
        )
    return tuple(sections)


def _command(rule: str, command: tuple[str, ...]) -> str:
    """The command that repairs or accepts; empty if a rule allows neither."""
    import shlex

    for policy in ("repair", "accept"):
        if policy in POLICIES[rule]:
            return shlex.join([*command, f"--{policy}={rule}"])
    return ""


def field_row(field: Field, level: Literal["step", "episode"]) -> FieldRow:
    """A field of the schema, with its shape and storage as text."""
    stored = f"{field.encoding} {field.feature}" if field.encoding not in ("none", "text") else field.feature
    return FieldRow(field.path, level, field.dtype, shape_text(field.shape), stored)


def _split(split: Split) -> SplitRow:
    stop = "" if split.stop is None else split.stop
    sliced = f"[{split.start}:{stop}]" if split.sliced else ""
    return SplitRow(split.name, split.episodes, len(split.shards), split.size, sliced)


def _metadata(source: Source) -> tuple[Facts, Facts]:
    """The card and the origin, from TFDS's metadata."""
    if source.tfds is None:
        return (), ()
    info = _json(source.tfds.info)
    card = _present(info, _CARD)
    license_ = info.get("redistributionInfo")
    if isinstance(license_, dict):
        card += _present(license_, ("license",))
    location = info.get("location")
    if isinstance(location, dict) and isinstance(location.get("urls"), list):
        card.append(("location", printable(", ".join(map(str, location["urls"])), _MAX_CHARACTERS)))
    origin = _json(source.tfds.files.get(_PROVENANCE, b""))
    made = _present(origin, ("written_by",))
    if isinstance(origin.get("source"), dict):
        made += [(f"source {name}", text) for name, text in _present(origin["source"], ("dataset", "from"))]
    counts = origin.get("counts")
    if isinstance(counts, dict):
        made += [(name, text) for name, text in _present(counts, ("records", "written", "rejected"))]
    return tuple(card), tuple(made)


def _present(content: Mapping[str, Any], names: Iterable[str]) -> list[tuple[str, str]]:
    """The named values that are text or numbers and not empty."""
    values = ((name, content.get(name)) for name in names)
    return [(name, printable(v, _MAX_CHARACTERS)) for name, v in values if isinstance(v, (str, int, float)) and v != ""]


def _json(text: str | bytes | None) -> Mapping[str, Any]:
    """Parsed JSON; nothing if it is not an object."""
    try:
        content = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
