"""The jobs as functions: `rlds_beam.convert("data/point_mass/1.0.0", "pairs", items="pairs")`.

Keyword arguments are the fields of the job's config and of the options of its formats, which check their values:
`rlds-beam convert --help` describes them. An input is a dataset directory, or files, of any format that
`rlds-beam help formats` lists. Functions, sources, outputs, environments, and policies may be given as objects. All
raise `UsageError` if an option, an input, or an output cannot be used, before anything is written; `RldsBeamError` if
the job fails; and `FailedRuleError` if an episode breaks a rule of `fail`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from rlds_beam import plugins
from rlds_beam.errors import UsageError, naming_limits
from rlds_beam.options import Options

if TYPE_CHECKING:
    from rlds_beam.cli.commands.upload import UploadOutcome
    from rlds_beam.jobs.inspect import Survey
    from rlds_beam.pipelines.check import CheckOutcome
    from rlds_beam.pipelines.compare import Comparison
    from rlds_beam.pipelines.convert import ConvertOutcome
    from rlds_beam.pipelines.push import PushOutcome
    from rlds_beam.pipelines.report import ReportOutcome
    from rlds_beam.pipelines.stats import StatsOutcome

Path = str | os.PathLike[str]
Function = TypeVar("Function", bound=Callable[..., Any])
Config = TypeVar("Config", bound=Options)

_OF_THE_COMMAND = ("dry_run", "expect", "json", "keep_serving", "max_rejected")
"""Options without effect here: what a command prints, its exit code, and how long it runs."""


def _job(function: Function) -> Function:
    """Names the limit of the system that a job meets."""
    return naming_limits()(function)


def _config(config_class: type[Config], *paths: Any, **options: Any) -> Config:
    for name in _OF_THE_COMMAND:
        if name in options and name in config_class.__dataclass_fields__:
            raise UsageError(f"{name} is an option of the command only: look at the result of the function instead")
    return config_class.create(*paths, **options)


@_job
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
    from rlds_beam.pipelines.convert import ConvertConfig
    from rlds_beam.pipelines.convert import convert as run

    return run(_config(ConvertConfig, input, output, **options))


@_job
def inspect(input: Path | Sequence[Path], **options: Any) -> Survey:
    """Reads a dataset's metadata and a sample of its episodes, as `rlds-beam inspect` does.

        survey = rlds_beam.inspect("data/point_mass/1.0.0", items="sequences", sequence_length=8)
        print(survey.items, survey.steps)

    Args:
      input: as in `convert`.
      options: the fields of `InspectConfig`: the options of the conversion to predict.
    """
    from rlds_beam.cli.commands.inspect import InspectConfig
    from rlds_beam.cli.commands.inspect import inspect as run

    return run(_config(InspectConfig, input, **options))


@_job
def check(input: Path | Sequence[Path], **options: Any) -> CheckOutcome:
    """Measures quality signals of every episode, as `rlds-beam check` does.

        outcome = rlds_beam.check("data/point_mass/1.0.0")
        print(outcome)
        outcome.table.to_pandas().nlargest(5, "jump")

    Args:
      input: as in `convert`.
      options: the fields of `CheckConfig`. With `output`, the table is also kept as a file.
    """
    from rlds_beam.pipelines.check import CheckConfig
    from rlds_beam.pipelines.check import check as run

    return run(_config(CheckConfig, input, **options), keep_table=True)


@_job
def stats(input: Path | Sequence[Path], **options: Any) -> StatsOutcome:
    """Computes each field's mean, standard deviation, range, and quantiles, as `rlds-beam stats` does.

        outcome = rlds_beam.stats("data/point_mass/1.0.0", by="language_instruction")
        print(outcome.statistics["fields"]["action"]["mean"])

    Args:
      input: as in `convert`.
      options: the fields of `StatsConfig`. With `output`, the statistics are also written to a file.
    """
    from rlds_beam.pipelines.stats import StatsConfig
    from rlds_beam.pipelines.stats import stats as run

    return run(_config(StatsConfig, input, **options))


@_job
def report(input: Path, second: Path | None = None, **options: Any) -> ReportOutcome:
    """Writes an HTML file that shows a dataset, a conversion, or how two datasets differ, as `rlds-beam report` does.

        outcome = rlds_beam.report("data/point_mass/1.0.0", output="report.html")
        print(outcome.path, outcome.bytes)

    Args:
      input: a dataset directory, or a directory that `convert` wrote.
      second: a dataset to compare it with.
      options: the fields of `ReportConfig`.
    """
    from rlds_beam.pipelines.report import ReportConfig
    from rlds_beam.pipelines.report import report as run

    return run(_config(ReportConfig, input, second, **options))


@_job
def compare(input: Path, second: Path, **options: Any) -> Comparison:
    """Shows what changed between two versions of a dataset, as `rlds-beam compare` does.

        comparison = rlds_beam.compare("data/point_mass/1.0.0", "data/point_mass/2.0.0")
        print(comparison.equal, comparison.added)

    Args:
      input: a dataset directory.
      second: the version to compare with it.
      options: the fields of `CompareConfig`.
    """
    from rlds_beam.pipelines.compare import CompareConfig
    from rlds_beam.pipelines.compare import compare as run

    return run(_config(CompareConfig, input, second, **options))


@_job
def push(input: Path | Sequence[Path], **options: Any) -> PushOutcome:
    """Fills Reverb tables with a dataset's items, as `rlds-beam push` does.

    Rejected episodes do not raise: `outcome.report.rejected` counts them. The same call after a failure writes no item
    twice (`writer="stream"`).

    Args:
      input: as in `convert`, or a directory that `convert` wrote.
      options: the fields of `PushConfig`; `reverb` (the servers) and `table` are required.

    Raises:
      NotVerifiedError: the tables' content differs from the prediction.
    """
    from rlds_beam.pipelines.push import PushConfig
    from rlds_beam.pipelines.push import push as run

    return run(_config(PushConfig, input, **options))


if TYPE_CHECKING or find_spec("rlds_beam.recording") is not None:

    @_job
    def record(output: Path, **options: Any) -> ConvertOutcome:
        """Rolls out behavior policies in environments and writes RLDS or another format, as `rlds-beam record` does.

            outcome = rlds_beam.record("cartpole", env="gymnasium:CartPole-v1", policy="random", episodes=100)

        Args:
          output: the directory to write to.
          options: the fields of `RecordConfig`; `env`, `policy`, and either `episodes` or `steps` are required.

        Raises:
          NotVerifiedError: a recorded propensity does not match the stored action.
        """
        from rlds_beam.pipelines.record import RecordConfig
        from rlds_beam.pipelines.record import record as run

        return run(_config(RecordConfig, output, **options))


@_job
def upload(output: Path, destination: str, **options: Any) -> UploadOutcome:
    """Publishes a finished output on the Hugging Face Hub, as `rlds-beam upload` does.

        rlds_beam.upload("pairs", "hf://datasets/USER/NAME", private=True)

    Args:
      output: a directory that `convert` or `record` wrote.
      destination: the repository; it is created if needed.
      options: the fields of `UploadConfig`.

    Raises:
      NotVerifiedError: a file of the output differs from its manifest.
      BucketError: the Hub failed, or refuses this token; the same call resumes.
    """
    from rlds_beam.cli.commands.upload import UploadConfig
    from rlds_beam.cli.commands.upload import upload as run

    return run(_config(UploadConfig, output, destination, **options))


@_job
def example(directory: Path, **options: Any) -> str:
    """Writes a small RLDS dataset to try the other functions on, as `rlds-beam example` does.

        dataset = rlds_beam.example("data", episodes=100)
        print(rlds_beam.inspect(dataset))

    Args:
      directory: the directory to write to.
      options: the fields of `ExampleConfig`.

    Returns:
      The dataset directory: `directory/point_mass/1.0.0`; `point_mass_camera/1.0.0` with `camera=True`,
      `planar_arm/1.0.0` with `robot=True`.
    """
    from rlds_beam.cli.commands.example import ExampleConfig
    from rlds_beam.cli.commands.example import example as run

    return run(_config(ExampleConfig, directory, **options))


def find_function(name: str) -> Callable[..., Any] | None:
    """The function of another package's job: `rlds_beam.replay("data", speed=2.0)`; None if there is no such job."""
    config_class = plugins.find("commands", name)
    if config_class is None:
        return None

    def run(*paths: Path, **options: Any) -> Any:
        return getattr(sys.modules[config_class.__module__], name)(_config(config_class, *paths, **options))

    run.__name__, run.__doc__ = name, config_class.__doc__
    return _job(run)
