"""Descriptions of datasets and plans as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rlds_beam.checking.left_out import left_out_lines
from rlds_beam.connectors.cleaning.presets import PRESETS, suggested
from rlds_beam.text import count, format_size

if TYPE_CHECKING:
    from rlds_beam.jobs.balance import Balance
    from rlds_beam.jobs.inspect import Survey


def survey_text(survey: Survey) -> str:
    """The text of `inspect`: the dataset, and the items that a conversion would write."""
    source = survey.source
    lines = [f"{source.dataset} ({source.files.name}, {format_size(source.size)})", "", "step"]
    lines += [f"  {field}" for _, field in sorted(source.schema.steps.items())]
    if source.schema.slow_reason:
        lines.append(f"  ({source.schema.slow_reason}, so TFDS decodes the dataset)")
    if source.schema.metadata:
        lines += ["episode", *(f"  {field}" for _, field in sorted(source.schema.metadata.items()))]
    lines.append("")
    for split in source.splits:
        shards = count(len(split.shards), "shard")
        lines.append(f"{split.name}: {shards}, {count(split.episodes, 'episode')}, {format_size(split.size)}")
    lines += [f"problem: {violation}" for violation in source.violations]
    lines += [
        *balance_lines(survey.balance),
        "",
        "all episodes were read" if survey.complete else "a sample was read; duplicates were not checked",
        survey.sampled.summary(survey.repair),
        "",
        *conversion_lines(survey),
    ]
    return "\n".join(lines)


def conversion_lines(survey: Survey) -> list[str]:
    """The items that a conversion would write, or why it cannot."""
    estimated = "" if survey.complete else "about "
    lines = [
        f"{survey.plan} gives {estimated}{survey.items:,} items of {estimated}{survey.steps:,} steps"
        f"{about(survey.size)}"
    ]
    if survey.output is not None:
        lines += record_lines(*survey.output.describe())
    else:
        lines.append(f"cannot be converted: {survey.error}")
    return lines + [f"--preset={name} fixes it: {PRESETS[name].fault}" for name in suggested(survey.source.dataset)]


def about(size: int | None) -> str:
    """`, about 1.2 MB`; empty if the size is not known."""
    return "" if size is None else f", about {format_size(size)}"


def balance_lines(balance: Balance) -> list[str]:
    """The sizes of a plan's ranges."""
    sizes = format_size(balance.least) + (f" to {format_size(balance.most)}" if balance.most > balance.least else "")
    lines = [f"parts     {balance.ranges:,} of {sizes}"]
    if balance.unsplittable is not None:
        share = balance.most / balance.total
        lines.append(f"  the largest, {share:.0%} of the work, goes to one worker: {balance.unsplittable}")
    return lines


def record_lines(records: Iterable[str], left_out: Mapping[str, str], record: str = "frame") -> list[str]:
    """The fields of a record, and the fields left out."""
    return [record, *(f"  {line}" for line in records), *(f"  left out: {line}" for line in left_out_lines(left_out))]
