"""Plans as text, with the images that a job need not read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.output.last_steps import RowsOutput
from rlds_beam.processing.report import left_out_lines
from rlds_beam.reading.base import Source
from rlds_beam.terminal.tables import table_lines
from rlds_beam.text import count, format_size, join_lines

if TYPE_CHECKING:
    from rlds_beam.jobs.convert import ConvertJob
    from rlds_beam.jobs.push import PushInput

_NOTHING_WRITTEN = "nothing was written (--dry_run)"


def record_lines(records: Iterable[str], left_out: Mapping[str, str], record: str = "frame") -> list[str]:
    """The fields of a record, and the fields left out."""
    return [record, *_align(list(records)), *(f"  left out: {line}" for line in left_out_lines(left_out))]


def _align(fields: Sequence[str]) -> list[str]:
    """Fields, `action: float32(2)`, in two columns."""
    if not all(": " in field for field in fields):
        return [f"  {field}" for field in fields]
    return [f"  {line}" for line in table_lines(("", ""), [field.split(": ", 1) for field in fields])[1:]]


def convert_plan(job: ConvertJob) -> str:
    """The input and the output of a conversion."""
    return join_lines(
        [
            f"input     {job.source.describe()}",
            f"ranges    {len(job.ranges):,}",
            f"output    {job.target}: {count(job.shards, 'shard')}",
            *([lack] if (lack := job.lack_of_room()) else ()),
            *record_lines(*job.output.describe()),
            *(job.output.notes({}) if isinstance(job.output, RowsOutput) else ()),
            _NOTHING_WRITTEN,
        ]
    )


def push_plan(source: PushInput, servers: Sequence[str], tables: Sequence[str]) -> str:
    """The input and the tables of a push."""
    return join_lines(
        [
            f"input     {source.dataset}: {format_size(source.size)}",
            f"ranges    {len(source.ranges):,}",
            f"output    {', '.join(servers)}: {', '.join(tables)}",
            *record_lines(map(str, source.spec.leaves), source.spec.left_out),
            _NOTHING_WRITTEN,
        ]
    )


_WHY = "not needed, so not read; --check_unused checks it"


def without_images(
    source: Source, options: CheckOptions, connectors: Iterable[object], wanted: Collection[str] = ()
) -> Source:
    """The dataset without its images, for a job that does not need them; the dataset itself if something does.

    Args:
      source: the dataset.
      options: the rules; some of them, if asked for, need images.
      connectors: the connectors; only classes that set `reads_images` to False themselves need no images (a subclass
        may do more than its base).
      wanted: the fields to keep.
    """
    if options.needs_images or any(vars(type(connector)).get("reads_images", True) for connector in connectors):
        return source
    images = [path for path, field in source.schema.steps.items() if field.holds_image_files and path not in wanted]
    return source.without(images, _WHY) if images else source
