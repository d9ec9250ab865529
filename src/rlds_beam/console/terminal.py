"""Plans and findings as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlds_beam.jobs.describing import about, balance_lines, record_lines
from rlds_beam.text import count, format_size

if TYPE_CHECKING:  # of each job a command imports its own alone
    from rlds_beam.jobs.convert import ConvertJob
    from rlds_beam.jobs.push import PushInput

_NOTHING_WRITTEN = "nothing was written (--dry_run)"


def convert_plan(job: ConvertJob) -> str:
    """What a conversion would read and write."""
    return "\n".join(
        [
            f"input     {job.source.describe()}",
            *(balance_lines(job.balance) if job.source.has_files else ()),
            f"output    {job.directory}: {count(job.shards, 'shard')}{about(job.size)}",
            *record_lines(*job.output.describe()),
            _NOTHING_WRITTEN,
        ]
    )


def push_plan(source: PushInput, servers: Sequence[str], tables: Sequence[str]) -> str:
    """What a push would read, and where it would go."""
    return "\n".join(
        [
            f"input     {source.dataset}: {format_size(source.size)}",
            *balance_lines(source.balance),
            f"output    {', '.join(servers)}: {', '.join(tables)}",
            *record_lines(map(str, source.spec.leaves), source.spec.left_out),
            _NOTHING_WRITTEN,
        ]
    )
