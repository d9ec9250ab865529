"""The contract of a job (one module of this package is one command), and code that jobs share.

`run_ranges` is for `convert` and `record`, `run_over` for jobs that only read.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rlds_beam.errors import DiskError, RldsBeamError
from rlds_beam.text import count

if TYPE_CHECKING:
    from rlds_beam.formats.inputs import OpenedInput
    from rlds_beam.jobs.convert import ConvertJob
    from rlds_beam.processing.job import Figures, Stage
    from rlds_beam.processing.report import Report
    from rlds_beam.reading.base import WorkRange


class Job(Protocol):
    """A module of `rlds_beam.pipelines` (or an object like one).

    It also has

    - a config: a frozen dataclass of option groups, which defines the Python API, the flags, and the JSON;
    - a function with the job's name, `convert(config)`, which runs the job and returns an outcome.

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


def _progress(job: ConvertJob) -> str:
    from rlds_beam.output.commits import read_commits

    return f"{len(read_commits(job.directory))} of {len(job.ranges)} ranges are finished"


def run_ranges(config: Any, job: ConvertJob, pending: Sequence[WorkRange]) -> Figures:
    """Runs the unfinished ranges, and commits the dataset.

    Args:
      config: the job's config.
      job: the job.
      pending: the unfinished ranges.

    Returns:
      How the job ran.

    Raises:
      RldsBeamError: the job failed; the message gives its progress.
    """
    from rlds_beam import storage
    from rlds_beam.output.files import COMMITS
    from rlds_beam.runners import run
    from rlds_beam.terminal.job_progress import Progress
    from rlds_beam.worker_status import Done

    finished = len(job.ranges) - len(pending)
    read = job.source.size if job.source.has_files and not finished else None

    def poll() -> Done:
        """The progress if the runner does not report it."""
        commits = storage.listdir(storage.join(job.directory, COMMITS))
        return Done(ranges=max(0, sum(name.endswith(".json") for name in commits) - finished))

    progress = Progress(
        config.command, config.progress, ranges=len(job.ranges), finished=finished, bytes=read, poll=poll
    )
    try:
        job.make_ready()
        if finished and not config.json:
            progress.say(f"resumed: {finished:,} of {count(len(job.ranges), 'range')} were finished")
        stages = job.stages(pending=pending)
        return run(stages, config, job.source.input_bytes, progress, job.target)[1]
    except DiskError as error:
        text = f"{_disk(str(error), job.directory)}; {_progress(job)} and kept"
        raise DiskError(f"{text}. When that is solved, run the same command again.") from error
    except RldsBeamError as error:
        if error.exit_code != RldsBeamError.exit_code:
            raise
        raise type(error)(f"{error} ({_progress(job)})") from error.__cause__


def run_over(command: str, config: Any, opened: Sequence[OpenedInput], stages: Sequence[Stage], parts: str = "") -> Any:
    """Runs a job that reads datasets, and writes no items; returns its result.

    Args:
      command: the command's name, shown in the progress line.
      config: the job's config.
      opened: the datasets.
      stages: the stages of the job.
      parts: the directory of `measured_parts`, if there is one, which the workers share.

    Raises:
      NotVerifiedError: an input file changed during the run.
      RldsBeamError: a dataset cannot be read at all, or the job failed.
    """
    from rlds_beam.runners import run
    from rlds_beam.terminal.job_progress import Progress

    sources = [each.source for each in opened]
    progress = Progress(command, config.progress, bytes=sum(source.size for source in sources))
    result, _ = run(stages, config, sum(source.input_bytes for source in sources), progress, parts or None)
    return result


@contextlib.contextmanager
def measured_parts(output: str | None) -> Iterator[str]:
    """A directory next to the output for what the ranges of a job measure; it is removed at the end."""
    from rlds_beam import storage

    if output is None:
        yield ""
        return
    directory = storage.temporary_name(output)
    try:
        yield directory
    finally:
        storage.rmtree(directory)


def merge_reports(dataset: Report, opened: OpenedInput, records: Report) -> Report:
    """The report on a dataset: that on the whole (`OpenedInput.report`, made before it is read), and on its records.

    Raises:
      NotVerifiedError: the counts do not add up.
    """
    from rlds_beam.processing.report import check_counts

    report = dataset.merge(records, check_counts(opened.source, records.shards, opened.check))
    report.check()
    return report
