"""The contract of a job (one module of this package is one command), and code that jobs share.

`run_ranges` is for `convert` and `record`, `run_checks` for jobs that only read.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rlds_beam.errors import DiskError, RldsBeamError
from rlds_beam.text import count

if TYPE_CHECKING:
    from rlds_beam.formats.inputs import OpenedInput
    from rlds_beam.jobs.convert import ConvertJob
    from rlds_beam.processing.report import Report
    from rlds_beam.reading.plan import WorkRange
    from rlds_beam.runners.base import RunOptions


class Job(Protocol):
    """A module of `rlds_beam.pipelines` (or an object like one).

    It also has

    - a config: a frozen dataclass of option groups, which defines the Python API, the flags, and the JSON;
    - a function with the job's name, `convert(config)`, which runs the job and returns an outcome;
    - if the job is a Beam pipeline, `define_pipeline(root, config)`, which builds it under any root.

    The module itself imports nothing heavy, so `--help` stays fast.

    Attributes:
      USAGE: the positional arguments shown in the help: `INPUT OUTPUT`.
      EXAMPLES: example commands shown at the start of the help, one per line.
    """

    USAGE: str
    EXAMPLES: str

    def main(self, config: Any) -> int:
        """Runs the job, prints the result, and returns the exit code.

        Raises:
          RldsBeamError: with its own exit code.
        """


def _disk(text: str, directory: str) -> str:
    """A disk error's text, naming the output directory instead of a file in it."""
    from rlds_beam import storage

    path = re.escape(storage.join(directory, ""))
    return re.sub(rf"{path}[^ ]*", directory, text)


def run_ranges(
    define: Callable[[Any, Any], object], config: Any, job: ConvertJob, pending: Sequence[WorkRange]
) -> dict[str, Any]:
    """Runs the unfinished ranges.

    Args:
      define: builds the pipeline under a root, for a PCollection of ranges.
      config: the job's config.
      job: the job.
      pending: the unfinished ranges.

    Returns:
      The run's metrics.

    Raises:
      RldsBeamError: the pipeline failed; the message gives its progress.
    """
    import apache_beam as beam

    from rlds_beam.runners import run_pipeline
    from rlds_beam.terminal.job_progress import Progress, Total

    finished = len(job.ranges) - len(pending)
    read = job.source.size if job.source.has_files and not finished else None
    total = Total(config.command, len(job.ranges), finished, read)

    def build(root: Any) -> None:
        job.make_ready(config.overwrite)
        # Only the list of pending ranges is spread over the workers; episodes are never shuffled.
        define(root, root | "Ranges" >> beam.Create(pending, reshuffle=True))

    try:
        with Progress(total, config.progress, job.committed_since(finished)).show() as progress:
            if finished and not config.json:
                progress.say(f"resumed: {finished:,} of {count(len(job.ranges), 'range')} were finished")
            if not config.json and (lack := job.lack_of_room()):
                progress.say(lack)
            return run_pipeline(build, config, job.source.input_bytes, progress)
    except DiskError as error:
        remedy = "Free some space, then run" if error.is_full else "Run"
        text = f"{_disk(str(error), job.directory)}; {job.progress()} and kept. {remedy} the same command again."
        raise DiskError(text) from error
    except RldsBeamError as error:
        if error.exit_code != RldsBeamError.exit_code:
            raise
        raise type(error)(f"{error} ({job.progress()})") from error


@contextlib.contextmanager
def shared_directory(options: RunOptions) -> Iterator[str | None]:
    """A directory for temporary files that all workers share; None if they are on other machines."""
    if options.runner != "local":
        yield None
        return
    from rlds_beam.output.scratch import ScratchDirectory

    with ScratchDirectory() as directory:
        yield directory


def run_over(command: str, config: Any, opened: Sequence[OpenedInput], define: Callable[[Any, str | None], Any]) -> Any:
    """Runs a job that reads datasets, and writes no items.

    Args:
      command: the command's name, shown in the progress line.
      config: the job's config.
      opened: the datasets.
      define: builds the pipeline under a root, given a directory that workers share; returns a PCollection of one
        result.

    Returns:
      The result as JSON.

    Raises:
      NotVerifiedError: an input file changed during the run.
      RldsBeamError: a dataset cannot be read at all, or the pipeline failed.
    """
    from rlds_beam.runners.results import run_for_result
    from rlds_beam.terminal.job_progress import Progress, Total

    sources, snapshots = [each.source for each in opened], [each.snapshot() for each in opened]
    input_bytes = sum(source.input_bytes for source in sources)
    total = Total(command, bytes=sum(source.size for source in sources))
    with Progress(total, config.progress).show() as progress, shared_directory(config) as directory:
        content, _ = run_for_result(lambda root: define(root, directory), config, input_bytes, progress)
    for snapshot in snapshots:
        snapshot.verify_all()
    return content


def run_checks(
    command: str, config: Any, opened: OpenedInput, define: Callable[[Any], Any], key: str | None = None
) -> tuple[Report, Any]:
    """Runs a job that checks a dataset and writes no items.

    Args:
      command: the command's name, shown in the progress line.
      config: the job's config.
      opened: the input.
      define: builds the pipeline under a root; returns a PCollection of one result.
      key: the key of the records' report in the result; None if the result is that report.

    Returns:
      The complete report, and the result as JSON.

    Raises:
      NotVerifiedError: an input file changed during the run, or the counts do not add up.
      RldsBeamError: the dataset cannot be read at all, or the pipeline failed.
    """
    from rlds_beam.processing.dataset import check_counts
    from rlds_beam.processing.report import Report
    from rlds_beam.runners.results import run_for_result
    from rlds_beam.terminal.job_progress import Progress, Total

    report, snapshot = opened.report, opened.snapshot()
    with Progress(Total(command, bytes=opened.source.size), config.progress).show() as progress:
        content, _ = run_for_result(define, config, opened.source.input_bytes, progress)
    snapshot.verify_all()
    of_records = Report.from_json(content if key is None else content[key])
    report = report.merge(of_records, check_counts(opened.source, of_records.shards, opened.check))
    report.check()
    return report, content
