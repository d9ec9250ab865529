"""Plans and findings as text for a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rlds_beam.connectors.presets import PRESETS, suggested
from rlds_beam.wording import count, format_size

if TYPE_CHECKING:  # of each job a command imports its own alone
    from rlds_beam.jobs.balance import Balance
    from rlds_beam.jobs.convert import ConvertJob
    from rlds_beam.jobs.inspect import Survey
    from rlds_beam.jobs.push import PushInput
    from rlds_beam.recording.job import RecordJob

_NOTHING_WRITTEN = "nothing was written (--dry_run)"


def convert_plan(job: ConvertJob) -> str:
    """What a conversion would read and write."""
    source = job.source
    episodes = _episodes(source.episodes)
    return "\n".join(
        [
            f"input     {source.dataset}: {episodes}, {format_size(source.size)}",
            *balance_lines(job.balance),
            f"output    {job.directory}: {count(job.shards, 'shard')}{_about(job.size)}",
            *_record_lines(*job.output.describe(), job.output.holds),
            _NOTHING_WRITTEN,
        ]
    )


def record_plan(job: RecordJob) -> str:
    """What a recording would roll out and write."""
    dataset, trajectories = job.recorder.dataset, sum(work.count for work in job.ranges)
    fields = [*dataset.schema.steps.values(), *dataset.schema.metadata.values()]
    return "\n".join(
        [
            f"rollout   {count(trajectories, 'rollout')} of {', '.join(job.policies)} in {job.recorder.environment}",
            f"output    {job.directory}: {count(len(job.ranges), 'file')}",
            *_record_lines(map(str, fields), {}, "episode"),
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
            *_record_lines(map(str, source.spec.leaves), source.spec.left_out),
            _NOTHING_WRITTEN,
        ]
    )


def survey_text(survey: Survey, plan: str, repair: Collection[str] = ()) -> str:
    """What a dataset holds, and what a plan (its flags) would make of it."""
    source = survey.source
    about = "" if survey.complete else "about "
    lines = [f"{source.dataset} ({source.files.name}, {format_size(source.size)})", "", "step"]
    lines += [f"  {field}" for _, field in sorted(source.schema.steps.items())]
    if source.schema.slow_reason:
        lines.append(f"  ({source.schema.slow_reason}, so TFDS decodes the dataset)")
    if source.schema.metadata:
        lines += ["episode", *(f"  {field}" for _, field in sorted(source.schema.metadata.items()))]
    lines.append("")
    for split in source.splits:
        shards = count(len(split.shards), "shard")
        lines.append(f"{split.name}: {shards}, {_episodes(split.episodes)}, {format_size(split.size)}")
    lines += [f"problem: {violation}" for violation in source.violations]
    lines += [
        *balance_lines(survey.balance),
        "",
        "all episodes were read" if survey.complete else "a sample was read; duplicates were not looked for",
        survey.sampled.summary(repair),
        "",
        f"{plan} gives {about}{survey.items:,} items of {about}{survey.steps:,} steps{_about(survey.size)}",
    ]
    if survey.output is not None:
        lines += _record_lines(*survey.output.describe(), survey.output.holds)
    else:
        lines.append(f"cannot be converted: {survey.error}")
    lines += [f"--preset={name} mends it: {PRESETS[name].fault}" for name in suggested(source.dataset)]
    return "\n".join(lines)


def _episodes(number: int | None) -> str:
    return "an unknown number of episodes" if number is None else count(number, "episode")


def _about(size: int | None) -> str:
    return "" if size is None else f", about {format_size(size)}"


def balance_lines(balance: Balance) -> list[str]:
    """How even the ranges of a plan are."""
    sizes = format_size(balance.least) + (f" to {format_size(balance.most)}" if balance.most > balance.least else "")
    lines = [f"ranges    {balance.ranges:,} of {sizes}"]
    if balance.uncut is not None:
        share = balance.most / balance.total
        lines.append(f"  the largest, {share:.0%} of the work, goes to one worker: {balance.uncut}")
    return lines


def _record_lines(records: Iterable[str], left_out: Mapping[str, str], holds: str = "frame") -> list[str]:
    return [holds, *(f"  {line}" for line in records), *(f"  left out: {p} ({why})" for p, why in left_out.items())]
