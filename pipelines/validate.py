"""`rlds-beam validate`: checks every episode of a dataset and writes nothing."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.connectors.options import ConnectorOptions
from rlds_beam.formats.options import InputOptions
from rlds_beam.runners.base import RunOptions
from rlds_beam.terminal.options import GateOptions

if TYPE_CHECKING:
    from rlds_beam.formats.inputs import OpenedInput
    from rlds_beam.processing.report import Report
    from rlds_beam.terminal.gate import Gate

__all__ = ["ValidateConfig", "define_pipeline", "validate"]

USAGE = "INPUT..."
EXAMPLES = """
    rlds-beam validate data/point_mass/1.0.0
    rlds-beam validate data/point_mass/1.0.0 --split='train[:10%]' --report=report.json
    rlds-beam validate data/point_mass/1.0.0 --repair=missing_is_last --connectors=clean.yaml --max_rejected=1%
"""


@dataclasses.dataclass(frozen=True)
class ValidateConfig(RunOptions, GateOptions, ConnectorOptions, CheckOptions, InputOptions):
    """Check every episode of a dataset against the rules, and run connectors on the accepted ones."""


def define_pipeline(root: Any, config: ValidateConfig, opened: OpenedInput | None = None) -> Any:
    """Reads and checks the dataset under `root`.

    Args:
      root: a Beam pipeline.
      config: the job's config.
      opened: the input, if already open.

    Returns:
      PCollection of one `Report`, written to `config.report` if that is set; or of one `CheckedSignals`, if the config
      needs the list of findings.
    """
    import apache_beam as beam

    from rlds_beam.formats.inputs import prepare_input
    from rlds_beam.processing.range_summary import RangeSummarizer, make_report
    from rlds_beam.reading.reader import EpisodeReader
    from rlds_beam.transforms import WriteReport
    from rlds_beam.transforms.jobs.checks import CheckDataset, list_findings, log_findings

    opened = opened or prepare_input(config)
    log = log_findings(opened.source) if config.lists_findings else None
    summarizer = RangeSummarizer(EpisodeReader(opened.source), opened.check, opened.connecting, log=log)
    summary = root | CheckDataset(opened.source, summarizer)
    if log is not None:
        return summary | "Findings" >> beam.Map(list_findings)
    report = summary | "Report" >> beam.Map(make_report)
    return report if config.report is None else report | WriteReport(config.report)


def validate(config: ValidateConfig) -> Report:
    """Runs the job.

    Raises:
      NotVerifiedError: an input file changed during the run.
      RldsBeamError: the dataset cannot be read at all, the pipeline failed, or the report cannot be written.
    """
    return _run(config)[0]


def _run(config: ValidateConfig) -> tuple[Report, Gate | None]:
    """Runs the job; returns the report, and the gate if the config has one."""
    from rlds_beam.checking.findings import Findings
    from rlds_beam.formats.inputs import prepare_input
    from rlds_beam.pipelines.base import run_checks
    from rlds_beam.runners import check
    from rlds_beam.terminal import gate as gates
    from rlds_beam.terminal import outcome

    check(config)
    outcome.check_gate(config, config.input)
    opened = prepare_input(config)
    job = dataclasses.replace(config, report=None)  # workers would write a partial one; this process writes it
    report, content = run_checks(
        "validate",
        config,
        opened,
        lambda root: define_pipeline(root, job, opened),
        "report" if config.lists_findings else None,
    )
    gate = None
    if config.lists_findings:
        listed = Findings.from_json(content["listed"])
        gate = gates.evaluate(config, config.input, opened.source, report, listed, ["rule"])
    outcome.write_gate(gate, report, config)
    return report, gate


def main(config: ValidateConfig) -> int:
    """Runs the command: prints the report and returns the exit code."""
    from rlds_beam.terminal import outcome
    from rlds_beam.terminal.outcome import repair_lines

    began = time.monotonic()
    report, gate = _run(config)
    seconds = time.monotonic() - began
    lines = [f"took      {seconds:.1f} s with start-up", *repair_lines("validate", config, report)]
    outcome.print_report(report, config, {"seconds": round(seconds, 3)}, lines, gate=gate)
    return outcome.exit_code(report, config, gate)
