"""The jobs as functions: `rlds_beam.convert("data/point_mass/1.0.0", "pairs", items="pairs")`."""

from __future__ import annotations

import dataclasses
import inspect as introspection
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from rlds_beam import plugins
from rlds_beam.errors import UsageError, naming_limits
from rlds_beam.formats.registry import FORMATS, OUTPUTS, SOURCES
from rlds_beam.options import Options, in_python, option_names, sections
from rlds_beam.pipelines.check import CheckConfig
from rlds_beam.pipelines.compare import CompareConfig
from rlds_beam.pipelines.convert import ConvertConfig
from rlds_beam.pipelines.example import ExampleConfig
from rlds_beam.pipelines.inspect import InspectConfig
from rlds_beam.pipelines.push import PushConfig
from rlds_beam.pipelines.report import ReportConfig
from rlds_beam.pipelines.stats import StatsConfig
from rlds_beam.pipelines.upload import UploadConfig
from rlds_beam.pipelines.validate import ValidateConfig
from rlds_beam.runners.process_setup import quiet

if TYPE_CHECKING:
    from rlds_beam import keywords
    from rlds_beam.jobs.inspect import Survey
    from rlds_beam.pipelines.check import CheckOutcome
    from rlds_beam.pipelines.compare import Comparison
    from rlds_beam.pipelines.convert import ConvertOutcome
    from rlds_beam.pipelines.push import PushOutcome
    from rlds_beam.pipelines.report import ReportOutcome
    from rlds_beam.pipelines.stats import StatsOutcome
    from rlds_beam.pipelines.upload import UploadOutcome
    from rlds_beam.processing.report import Report

Path = str | os.PathLike[str]
Function = TypeVar("Function", bound=Callable[..., Any])
Config = TypeVar("Config", bound=Options)

_OF_THE_COMMAND = {
    "dry_run": "use rlds_beam.inspect to see what a job would do",
    "expect": "it sets the command's exit code; compare the numbers of the report",
    "json": "the function's result has the same numbers (`to_json`)",
    "keep_serving": "use rlds_beam.reverb.serving.EmbeddedServer, which runs until you stop it",
    "max_rejected": "it sets the command's exit code; check `rejected` in the report",
}
"""Options of the command that have no effect here, and what to use instead."""


class _Signature(introspection.Signature):
    """All options, for editors and IPython; as text, the paths only: the docstring lists the options in groups."""

    def __str__(self) -> str:
        paths = [p for p in self.parameters.values() if p.kind is not introspection.Parameter.KEYWORD_ONLY]
        options = introspection.Parameter("options", introspection.Parameter.VAR_KEYWORD)
        return str(introspection.Signature([*paths, options], return_annotation=self.return_annotation))

    def format(self, **layout: Any) -> str:
        """The text that `help` prints on Python 3.13 and later."""
        del layout
        return str(self)


def _takes(config_class: type[Options]) -> Callable[[Function], Function]:
    """Puts a job's options into a function's signature and docstring, and silences Beam's logs."""

    def decorate(function: Function) -> Function:
        signature, parameter = introspection.signature(function), introspection.Parameter
        paths = [p for p in signature.parameters.values() if p.kind is not parameter.VAR_KEYWORD]
        listed = _sections(config_class)
        named: dict[str, introspection.Parameter] = {}
        for field in (field for _, fields in listed for field in fields):
            keyword = parameter(field.name, parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
            named.setdefault(field.name, keyword)
        calling = cast(Function, naming_limits()(quiet(function)))
        whole = _Signature([*paths, *named.values()], return_annotation=signature.return_annotation)
        vars(calling)["__signature__"] = whole
        about = introspection.cleandoc(function.__doc__ or "")
        calling.__doc__ = "\n\n".join(
            [about, OPTIONS, *(_list(*group) for group in [*listed, *_formats(config_class)])]
        )
        return calling

    return decorate


OPTIONS = "Options:"
"""Begins the generated part of a docstring."""

_INTERNAL = ("from_options", "recognized", "to_options")


def _sections(config_class: type[Options]) -> list[tuple[str, list[dataclasses.Field[Any]]]]:
    """The options of the job and of the formats, with titles; the most common first."""
    of_job = list(sections(config_class))
    of_job.sort(key=lambda section: (section.owner is not config_class, "shown_with" in vars(section.owner)))
    formats: dict[type[Options], list[str]] = {}
    for group in config_class.known_groups():
        formats.setdefault(group.options_class, []).append(in_python(group.choice))
    found = [("" if section.owner is config_class else in_python(section.title), section.fields) for section in of_job]
    found += [(f"With {' or '.join(choices)}", [*dataclasses.fields(options)]) for options, choices in formats.items()]
    skipped = {*_OF_THE_COMMAND, *_INTERNAL}
    shown = [
        (title, [f for f in fields if f.name not in skipped and not f.metadata.get("positional")])
        for title, fields in found
    ]
    return [(title, fields) for title, fields in shown if fields]


def _formats(config_class: type[Options]) -> Iterable[tuple[str, Sequence[Any]]]:
    """The formats that a job reads and writes."""
    fields = {group.field for group in config_class.known_groups()}
    if "from_options" in fields:
        yield "Formats of the input (from_)", [(name, FORMATS[name].about) for name in SOURCES]
    if "to_options" in fields:
        yield "Formats of the output (to)", [(name, FORMATS[name].about) for name in OUTPUTS]


def _list(title: str, entries: Sequence[Any]) -> str:
    """A title, and options or formats, one per line."""
    lines = [title + ":"] if title else []
    for entry in entries:
        name, about = entry if isinstance(entry, tuple) else (entry.name, _about(entry))
        lines.append(textwrap.fill(f"{name}: {about}", 100, initial_indent="  ", subsequent_indent="      "))
    return "\n".join(lines)


def _about(field: dataclasses.Field[Any]) -> str:
    default = "" if field.default in (None, (), "", False) else f" (default: {field.default!r})"
    return in_python(field.metadata.get("help", "")) + default


def _config(config_class: type[Config], *paths: Any, **options: Any) -> Config:
    """The job's config; raises UsageError for an unknown option."""
    for name in options:
        if name in _OF_THE_COMMAND and name in option_names(config_class):
            raise UsageError(f"{name} is an option of the command only: {_OF_THE_COMMAND[name]}")
    return config_class.create(*paths, **options)


@_takes(ConvertConfig)
def convert(input: Path | Sequence[Path], output: Path, **options: Unpack[keywords.Convert]) -> ConvertOutcome:
    """Checks the episodes of a dataset and writes them as training items, as `rlds-beam convert` does.

        outcome = rlds_beam.convert("data/point_mass/1.0.0", "pairs", repair="missing_is_last")
        print(outcome.report.summary())

    Rejected episodes do not raise: `outcome.report.rejected` counts them, and `output/rejected` has their records.

    Args:
      input: a dataset directory, or files, of any format listed below (`from_`).
      output: the directory to write to.
      options: the fields of `ConvertConfig` and of the options of the `from_` and `to` formats. Pass a function
        (`policy_info_fn`, a source, an output) as an object or as `module:function`. A function defined outside a
        module, for example in a notebook, must be picklable.

    Raises:
      UsageError: an option, the input, or the output cannot be used; nothing was done.
      FailedRuleError: a rule of `fail` was broken.
      NotVerifiedError: the output differs from the prediction.
      RldsBeamError: the pipeline failed; the same call resumes it.
    """
    from rlds_beam.pipelines.convert import convert as run

    return run(_config(ConvertConfig, input, output, **options))


@_takes(ValidateConfig)
def validate(input: Path | Sequence[Path], **options: Unpack[keywords.Validate]) -> Report:
    """Checks every episode of a dataset and writes nothing, as `rlds-beam validate` does.

        report = rlds_beam.validate("data/point_mass/1.0.0")
        print(report.rejected, list(report.rules))

    Args:
      input: as in `convert`.
      options: the fields of `ValidateConfig`.

    Raises:
      UsageError: an option or the input cannot be used.
      FailedRuleError: a rule of `fail` was broken.
      RldsBeamError: the pipeline failed.
    """
    from rlds_beam.pipelines.validate import validate as run

    return run(_config(ValidateConfig, input, **options))


@_takes(InspectConfig)
def inspect(input: Path | Sequence[Path], **options: Unpack[keywords.Inspect]) -> Survey:
    """Reads a dataset's metadata and a sample of its episodes, as `rlds-beam inspect` does.

        survey = rlds_beam.inspect("data/point_mass/1.0.0", items="sequences", sequence_length=8)
        print(survey.items, survey.steps)

    Args:
      input: as in `convert`.
      options: the fields of `InspectConfig`: the options of the conversion to predict.

    Raises:
      UsageError: an option or the input cannot be used.
    """
    from rlds_beam.pipelines.inspect import inspect as run

    return run(_config(InspectConfig, input, **options))


@_takes(CheckConfig)
def check(input: Path | Sequence[Path], **options: Unpack[keywords.Check]) -> CheckOutcome:
    """Measures quality signals of every episode, as `rlds-beam check` does.

        outcome = rlds_beam.check("data/point_mass/1.0.0")
        print(outcome)
        outcome.table.to_pandas().nlargest(5, "jump")

    Args:
      input: as in `convert`.
      options: the fields of `CheckConfig`. With `output`, the table is also kept as a file.

    Raises:
      UsageError: an option or the input cannot be used.
      FailedRuleError: a rule of `fail` was broken.
      RldsBeamError: the pipeline failed, or a file cannot be written.
    """
    from rlds_beam.pipelines.check import check as run

    return run(_config(CheckConfig, input, **options), keep_table=True)


@_takes(StatsConfig)
def stats(input: Path | Sequence[Path], **options: Unpack[keywords.Stats]) -> StatsOutcome:
    """Computes each field's mean, standard deviation, range, and quantiles, as `rlds-beam stats` does.

        outcome = rlds_beam.stats("data/point_mass/1.0.0", by="language_instruction")
        print(outcome)
        print(outcome.statistics["fields"]["action"]["mean"])

    Args:
      input: as in `convert`.
      options: the fields of `StatsConfig`. With `output`, the statistics are also written to a file.

    Raises:
      UsageError: an option or the input cannot be used.
      FailedRuleError: a rule of `fail` was broken.
      RldsBeamError: the pipeline failed, or the output cannot be written.
    """
    from rlds_beam.pipelines.stats import stats as run

    return run(_config(StatsConfig, input, **options))


@_takes(ReportConfig)
def report(input: Path, second: Path | None = None, **options: Unpack[keywords.Report]) -> ReportOutcome:
    """Writes an HTML file that shows a dataset, a conversion, or how two datasets differ, as `rlds-beam report` does.

        outcome = rlds_beam.report("data/point_mass/1.0.0", output="report.html")
        print(outcome.path, outcome.bytes)

    Args:
      input: a dataset directory, or a directory that `convert` wrote.
      second: a dataset to compare it with.
      options: the fields of `ReportConfig`.

    Raises:
      UsageError: an option or an input cannot be used; nothing was written.
      FailedRuleError: a rule of `fail` was broken.
      RldsBeamError: the pipeline failed, or the report cannot be written.
    """
    from rlds_beam.pipelines.report import report as run

    return run(_config(ReportConfig, input, second, **options))


@_takes(CompareConfig)
def compare(input: Path, second: Path, **options: Unpack[keywords.Compare]) -> Comparison:
    """Shows what changed between two versions of a dataset, as `rlds-beam compare` does.

        comparison = rlds_beam.compare("data/point_mass/1.0.0", "data/point_mass/2.0.0")
        print(comparison.equal, comparison.added)

    Args:
      input: a dataset directory.
      second: the version to compare with it.
      options: the fields of `CompareConfig`.

    Raises:
      UsageError: an option or an input cannot be used.
      FailedRuleError: a rule of `fail` was broken.
      RldsBeamError: the pipeline failed.
    """
    from rlds_beam.pipelines.compare import compare as run

    return run(_config(CompareConfig, input, second, **options))


@_takes(PushConfig)
def push(input: Path | Sequence[Path], **options: Unpack[keywords.Push]) -> PushOutcome:
    """Fills Reverb tables with a dataset's items, as `rlds-beam push` does.

    Rejected episodes do not raise: `outcome.report.rejected` counts them.

    Args:
      input: as in `convert`, or a directory that `convert` wrote.
      options: the fields of `PushConfig`; `reverb` (the servers) and `table` are required.

    Raises:
      UsageError: an option, the input, or the tables cannot be used; nothing was written.
      FailedRuleError: a rule of `fail` was broken.
      NotVerifiedError: the tables' content differs from the prediction.
      RldsBeamError: the pipeline failed; the same call writes no item twice (`writer="stream"`).
    """
    from rlds_beam.pipelines.push import push as run

    return run(_config(PushConfig, input, **options))


if TYPE_CHECKING or find_spec("rlds_beam.recording") is not None:
    from rlds_beam.pipelines.record import RecordConfig

    @_takes(RecordConfig)
    def record(output: Path, **options: Unpack[keywords.Record]) -> ConvertOutcome:
        """Rolls out behavior policies in environments and writes RLDS or another format, as `rlds-beam record` does.

            outcome = rlds_beam.record("cartpole", env="gymnasium:CartPole-v1", policy="random", episodes=100)

        Args:
          output: the directory to write to.
          options: the fields of `RecordConfig`; `env`, `policy`, and either `episodes` or `steps` are required. The
            environment and the policies can be passed as objects.

        Raises:
          UsageError: an option, the environment, or a policy cannot be used; nothing was done.
          NotVerifiedError: a recorded propensity does not match the stored action.
          RldsBeamError: the job failed; the same call resumes it.
        """
        from rlds_beam.pipelines.record import record as run

        return run(_config(RecordConfig, output, **options))


@_takes(UploadConfig)
def upload(output: Path, destination: str, **options: Unpack[keywords.Upload]) -> UploadOutcome:
    """Publishes a finished output on the Hugging Face Hub, as `rlds-beam upload` does.

        rlds_beam.upload("pairs", "hf://datasets/USER/NAME", private=True)

    Args:
      output: a directory that `convert` or `record` wrote.
      destination: the repository; it is created if needed.
      options: the fields of `UploadConfig`.

    Raises:
      UsageError: the output or the repository cannot be used; nothing was sent.
      NotVerifiedError: a file of the output differs from its manifest.
      BucketError: the Hub failed, or refuses this token; the same call resumes.
    """
    from rlds_beam.pipelines.upload import upload as run

    return run(_config(UploadConfig, output, destination, **options))


@_takes(ExampleConfig)
def example(directory: Path, **options: Unpack[keywords.Example]) -> str:
    """Writes a small RLDS dataset to try the other functions on, as `rlds-beam example` does.

        dataset = rlds_beam.example("data", episodes=100)
        print(rlds_beam.inspect(dataset))

    Args:
      directory: the directory to write to.
      options: the fields of `ExampleConfig`.

    Returns:
      The dataset directory: `directory/point_mass/1.0.0`; `point_mass_camera/1.0.0` with `camera=True`,
      `planar_arm/1.0.0` with `robot=True`.

    Raises:
      UsageError: the dataset already exists or cannot be written.
    """
    from rlds_beam.pipelines.example import example as run

    return run(_config(ExampleConfig, directory, **options))


def find_function(name: str) -> Callable[..., Any] | None:
    """The function of another package's job: `rlds_beam.replay("data", speed=2.0)`; None if there is no such job."""
    config_class = plugins.find("commands", name)
    if config_class is None:
        return None

    def run(*paths: Path, **options: Any) -> Any:
        return getattr(sys.modules[config_class.__module__], name)(_config(config_class, *paths, **options))

    run.__name__, run.__doc__ = name, config_class.__doc__
    return _takes(config_class)(run)
