"""Plans as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlds_beam.jobs.describing import about, balance_lines, record_lines
from rlds_beam.output.last_steps import RowsOutput
from rlds_beam.text import count, format_size, join_lines

if TYPE_CHECKING:  # a command imports only its own job
    from rlds_beam.jobs.convert import ConvertJob
    from rlds_beam.jobs.push import PushInput

_NOTHING_WRITTEN = "nothing was written (--dry_run)"


def convert_plan(job: ConvertJob) -> str:
    """The input and the output of a conversion."""
    return join_lines(
        [
            f"input     {job.source.describe()}",
            *(balance_lines(job.balance) if job.source.has_files else ()),
            f"output    {job.directory}: {count(job.shards, 'shard')}{about(job.size)}",
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
            *balance_lines(source.balance),
            f"output    {', '.join(servers)}: {', '.join(tables)}",
            *record_lines(map(str, source.spec.leaves), source.spec.left_out),
            _NOTHING_WRITTEN,
        ]
    )
