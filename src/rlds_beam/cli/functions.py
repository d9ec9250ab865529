"""The jobs as functions: `rlds_beam.convert("data/point_mass/1.0.0", "pairs", items="pairs")`.

Keyword arguments are the fields of the job's config and of the options of its formats: `rlds-beam convert --help`
describes them. Functions, sources, outputs, environments, and policies may be given as objects. All raise `UsageError`
if an option, an input, or an output cannot be used, before anything is written; `RldsBeamError` if the job fails; and
`FailedRuleError` if an episode breaks a rule of `fail`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from rlds_beam.errors import UsageError
from rlds_beam.options import Options
from rlds_beam.text import did_you_mean

if TYPE_CHECKING:
    from rlds_beam.cli.commands.upload import UploadOutcome
    from rlds_beam.jobs.inspect import Survey
    from rlds_beam.pipelines.base import Job
    from rlds_beam.pipelines.check import CheckOutcome
    from rlds_beam.pipelines.compare import Comparison
    from rlds_beam.pipelines.convert import ConvertOutcome
    from rlds_beam.pipelines.push import PushOutcome
    from rlds_beam.pipelines.stats import StatsOutcome
    from rlds_beam.viewing.report.report_file import ReportOutcome

Path = str | os.PathLike[str]

JOBS = {
    "example": "write a small dataset to try the other commands on",
    "record": "run policies in environments and record the episodes",
    "inspect": "show what a dataset holds, and predict a conversion",
    "check": "check every episode, and measure quality signals; write nothing",
    "stats": "compute mean, standard deviation and quantiles of each field",
    "show": "show one episode here, or as a picture or a video",
    "report": "write an HTML page that shows a dataset or a conversion",
    "compare": "show what changed between two versions of a dataset",
    "browse": "look at episodes in a web browser on this machine",
    "convert": "check a dataset and write it in another format",
    "index": "build the index of steps that open_dataset reads",
    "upload": "publish what convert or record wrote on the Hugging Face Hub",
    "push": "check a dataset and write it to Reverb tables",
    "serve": "run a Reverb server with tables that fit a dataset",
}
"""The jobs, each with its line in the help."""

_COMMANDS = ("browse", "example", "inspect", "serve", "show", "upload")
"""Those without a pipeline: their modules are in `cli.commands`, the others in `pipelines`."""

_OF_THE_COMMAND = ("dry_run", "expect", "json", "keep_serving", "max_rejected")
"""Options without effect here: what a command prints, its exit code, and how long it runs."""


def find_job(name: str) -> tuple[Job, type[Options]]:
    """A job and its config. Raises UsageError if there is none of that name."""
    if name not in JOBS:
        raise UsageError(f"unknown command {name!r}{did_you_mean(name, JOBS, otherwise='rlds-beam --help lists all')}")
    job = importlib.import_module(f"rlds_beam.{'cli.commands' if name in _COMMANDS else 'pipelines'}.{name}")
    return cast("Job", job), getattr(job, f"{name.capitalize()}Config")


def _run(job_name: str, *paths: Any, **options: Any) -> Any:
    """Runs a job, and returns its outcome."""
    job, config_class = find_job(job_name)
    for name in _OF_THE_COMMAND:
        if name in options and name in config_class.__dataclass_fields__:
            raise UsageError(f"{name} is an option of the command only: look at the result of the function instead")
    return getattr(job, job_name)(config_class.create(*paths, **options))


def convert(input: Path | Sequence[Path], output: Path, **options: Any) -> ConvertOutcome:
    """Checks the episodes of a dataset and writes them as training items, as `rlds-beam convert` does.

        outcome = rlds_beam.convert("data/point_mass/1.0.0", "pairs", repair="missing_is_last")
        print(outcome.report.summary())

    Rejected episodes do not raise: `outcome.report.rejected` counts them, and `output/rejected` has their records.
    The same call resumes a failed job.

    Args:
      input: a dataset directory, or files.
      output: the directory to write to.
      options: the fields of `ConvertConfig` and of the options of the `from_` and `to` formats.

    Raises:
      NotVerifiedError: the output differs from the prediction.
    """
    return cast("ConvertOutcome", _run("convert", input, output, **options))


def inspect(input: Path | Sequence[Path], **options: Any) -> Survey:
    """Reads a dataset's metadata and a sample of its episodes, as `rlds-beam inspect` does.

        survey = rlds_beam.inspect("data/point_mass/1.0.0", items="sequences", sequence_length=8)
        print(survey.items, survey.steps)

    The options are the fields of `InspectConfig`: those of the conversion to predict.
    """
    return cast("Survey", _run("inspect", input, **options))


def check(input: Path | Sequence[Path], **options: Any) -> CheckOutcome:
    """Measures quality signals of every episode, as `rlds-beam check` does.

        outcome = rlds_beam.check("data/point_mass/1.0.0")
        print(outcome)
        outcome.table.to_pandas().nlargest(5, "jump")

    The options are the fields of `CheckConfig`. With `output`, the table is also kept as a file.
    """
    return cast("CheckOutcome", _run("check", input, **options))


def stats(input: Path | Sequence[Path], **options: Any) -> StatsOutcome:
    """Computes each field's mean, standard deviation, range, and quantiles, as `rlds-beam stats` does.

        outcome = rlds_beam.stats("data/point_mass/1.0.0", by="language_instruction")
        print(outcome.statistics["fields"]["action"]["mean"])

    The options are the fields of `StatsConfig`. With `output`, the statistics are also written to a file.
    """
    return cast("StatsOutcome", _run("stats", input, **options))


def report(input: Path, **options: Any) -> ReportOutcome:
    """Writes an HTML file that shows a dataset, or what a conversion did, as `rlds-beam report` does.

        outcome = rlds_beam.report("data/point_mass/1.0.0", output="report.html")
        print(outcome.path, outcome.bytes)

    The input is a dataset, or a directory that `convert` wrote; the options are the fields of `ReportConfig`.
    """
    return cast("ReportOutcome", _run("report", input, **options))


def compare(input: Path, second: Path, **options: Any) -> Comparison:
    """Shows what changed between two versions of a dataset, as `rlds-beam compare` does.

        comparison = rlds_beam.compare("data/point_mass/1.0.0", "data/point_mass/2.0.0")
        print(comparison.equal, comparison.added)

    The options are the fields of `CompareConfig`.
    """
    return cast("Comparison", _run("compare", input, second, **options))


def push(input: Path | Sequence[Path], **options: Any) -> PushOutcome:
    """Fills Reverb tables with a dataset's items, as `rlds-beam push` does.

    Rejected episodes do not raise: `outcome.report.rejected` counts them. The same call after a failure writes no item
    twice (`writer="stream"`).

    The input is a dataset, or a directory that `convert` wrote. The options are the fields of `PushConfig`; `reverb`
    (the servers) and `table` are required.

    Raises:
      NotVerifiedError: the tables' content differs from the prediction.
    """
    return cast("PushOutcome", _run("push", input, **options))


def record(output: Path, **options: Any) -> ConvertOutcome:
    """Rolls out behavior policies in environments and writes RLDS or another format, as `rlds-beam record` does.

        outcome = rlds_beam.record("cartpole", env="gymnasium:CartPole-v1", policy="random", episodes=100)

    The options are the fields of `RecordConfig`; `env`, `policy`, and either `episodes` or `steps` are required.

    Raises:
      NotVerifiedError: a recorded propensity does not match the stored action.
    """
    return cast("ConvertOutcome", _run("record", output, **options))


def upload(output: Path, destination: str, **options: Any) -> UploadOutcome:
    """Publishes a finished output on the Hugging Face Hub, as `rlds-beam upload` does.

        rlds_beam.upload("pairs", "hf://datasets/USER/NAME", private=True)

    The repository is created if needed. The options are the fields of `UploadConfig`.

    Raises:
      NotVerifiedError: a file of the output differs from its manifest.
      BucketError: the Hub failed, or refuses this token; the same call resumes.
    """
    return cast("UploadOutcome", _run("upload", output, destination, **options))


def example(directory: Path, **options: Any) -> str:
    """Writes a small RLDS dataset to try the other functions on, as `rlds-beam example` does.

        dataset = rlds_beam.example("data", episodes=100)
        print(rlds_beam.inspect(dataset))

    The options are the fields of `ExampleConfig`.

    Returns:
      The dataset directory: `directory/point_mass/1.0.0`, or `directory/planar_arm/1.0.0` with `robot=True`.
    """
    return str(_run("example", directory, **options))
