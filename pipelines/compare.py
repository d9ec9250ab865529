"""`rlds-beam compare`: what changed between two versions of a dataset, with an exit code for scripts."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.connectors.options import ConnectorOptions
from rlds_beam.errors import UsageError
from rlds_beam.formats.options import SourceOptions
from rlds_beam.options import option
from rlds_beam.pipelines.base import run_over
from rlds_beam.runners.base import RunOptions
from rlds_beam.terminal.options import PrintOptions, print_json
from rlds_beam.text import count, join_lines, list_few

if TYPE_CHECKING:
    from rlds_beam.checking.findings import Findings
    from rlds_beam.formats.inputs import OpenedInput
    from rlds_beam.processing.report import Report
    from rlds_beam.transforms.jobs.reports import Found
    from rlds_beam.viewing.report.report_file import Input

__all__ = ["CompareConfig", "Comparison", "compare", "define_pipeline"]

USAGE = "INPUT SECOND"
EXAMPLES = """
    rlds-beam compare data/point_mass/1.0.0 data/point_mass/2.0.0
    rlds-beam compare data/point_mass/1.0.0 data/point_mass/2.0.0 --json
"""
DIFFERS = 3
_SHOWN, _LISTED = 5, 1000


@dataclasses.dataclass(frozen=True)
class CompareConfig(RunOptions, PrintOptions, ConnectorOptions, CheckOptions, SourceOptions):
    """Show what changed between two versions of a dataset: episodes, fields, statistics, and findings."""

    reads: ClassVar[str] = "input"

    input: str = option(dataclasses.MISSING, "dataset directory", positional=True)
    second: str = option(dataclasses.MISSING, "directory of the version to compare with it", positional=True)
    _: dataclasses.KW_ONLY
    decode: int = option(3, "images to decode of each camera and episode, for signals; 0 for none", least=0)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The differences between two versions of a dataset.

    Attributes:
      content: the differences as JSON: `equal` (whether there are none), `first` and `second` (their counts),
        `episodes` (by content), `fields`, `drift` (the numbers of both versions, the largest drift first), `texts`, and
        `findings` (those of only one version, by fingerprint, among the first 10,000 of each check). Lists have up to
        1,000 entries; the other counts are whole.
    """

    content: dict[str, Any]

    @property
    def equal(self) -> bool:
        """Whether there is no difference."""
        return bool(self.content["equal"])

    def to_json(self) -> dict[str, Any]:
        """The differences as JSON."""
        return self.content

    def __str__(self) -> str:
        """The text that the command prints."""
        content = self.content
        lines = []
        for side in ("first", "second"):
            part = content[side]
            numbers = f"{count(part['episodes'], 'episode')}, {count(part['steps'], 'step')}"
            lines.append(f"{side:10}{part['dataset']}: {numbers}, {count(part['findings'], 'finding')}")
        episodes = content["episodes"]
        kinds = [kind for kind in ("added", "removed", "changed", "moved") if episodes[kind]]
        lines.append(f"episodes  {episodes['equal']:,} equal" + "".join(f", {episodes[k]:,} {k}" for k in kinds))
        for kind in kinds:
            keys = [" -> ".join([key] if isinstance(key, str) else key) for key in episodes["keys"][kind]]
            lines += list_few(kind, keys, _SHOWN, episodes[kind])
        fields = [f"{f['path']}: {f['first'] or 'none'} -> {f['second'] or 'none'}" for f in content["fields"]]
        lines += list_few("field", fields, _SHOWN)
        if not self.equal:
            drift = [
                f"{d['field']} {d['label']}".rstrip() + f": KS {d['ks']:g}, PSI {d['psi']:g}"
                for d in content["drift"]
                if d["ks"] > 0
            ]
            lines += list_few("drift", drift, _SHOWN)
            lines += list_few("texts", [f"{t[0]}: {t[1]:g} ({t[2]})" for t in content["texts"] if t[1]], _SHOWN)
        for kind in ("new", "gone"):
            found = [f"{f['check']} {f['key']} ({f['detail']})" for f in content["findings"][kind]["listed"]]
            lines += list_few(kind, found, _SHOWN, content["findings"][kind]["count"])
        lines.append("equal" if self.equal else f"different (exit code {DIFFERS})")
        return join_lines(lines)


def define_pipeline(
    root: Any,
    config: CompareConfig,
    opened: tuple[tuple[Input, ...], tuple[OpenedInput, ...]] | None = None,
    directory: str | None = None,
) -> Any:
    """Reads and checks both datasets under `root`, and compares them.

    Args:
      root: a Beam pipeline.
      config: the job's config.
      opened: the result of `prepare`, if already known.
      directory: a directory that all workers share, for temporary files; None if there is none.

    Returns:
      PCollection of one `Comparison`.
    """
    import apache_beam as beam

    from rlds_beam.transforms.jobs.checks import log_findings
    from rlds_beam.transforms.jobs.reports import summaries

    inputs, prepared = opened or prepare(config)
    checked = [
        (each.source, dataclasses.replace(each.summarizer(own.connecting, directory), log=log_findings(each.source)))
        for each, own in zip(inputs, prepared, strict=True)
    ]
    start = root | "Start" >> beam.Create([None])
    return start | "Compare" >> beam.Map(_compare, inputs, summaries(root, checked, directory))


def prepare(config: CompareConfig) -> tuple[tuple[Input, ...], tuple[OpenedInput, ...]]:
    """Opens the datasets. Reads only metadata.

    Raises:
      UsageError: a dataset cannot be opened or read as episodes, or an option cannot be used.
    """
    from rlds_beam.pipelines import report

    names = {field.name for field in dataclasses.fields(report.ReportConfig) if field.name != "_"}
    shared = {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.name in names}
    writer, opened = report.prepare(report.ReportConfig(**shared))
    if len(opened) != 2:
        raise UsageError(f"{config.input} does not hold episodes that can be compared")
    return writer.inputs, opened


def _compare(start: None, inputs: Sequence[Input], found: Sequence[Found]) -> Comparison:
    """Compares what a pass over each dataset found."""
    del start
    from rlds_beam.checking.content_changes import compare_contents
    from rlds_beam.transforms.jobs.checks import find_all
    from rlds_beam.viewing.report.comparison import compare as compare_statistics

    summaries = [each.summary.value for each in sorted(found, key=lambda each: each.place)]
    logs = [summary.log for summary in summaries if summary.log is not None]
    changes = compare_contents(*([*log.contents()] for log in logs))
    tables = [summary.signals.store() for summary in summaries if summary.signals is not None]
    first, second = inputs
    section = compare_statistics(
        (first.source.dataset, second.source.dataset),
        (first.source.schema, second.source.schema),
        (summaries[0].statistics.whole, summaries[1].statistics.whole),
        (tables[0].table, tables[1].table),
    )
    findings = [find_all(summary, table) for summary, table in zip(summaries, tables, strict=True)]
    new, gone = _difference(findings[1], findings[0]), _difference(*findings)
    kinds = {kind: getattr(changes, kind) for kind in ("added", "removed", "changed", "moved")}
    fields = [dataclasses.asdict(difference) for difference in section.schema]
    rates = ["" if each.source.fps is None else f"{each.source.fps:g}" for each in inputs]
    if rates[0] != rates[1]:
        fields.append({"path": "fps", "level": "dataset", "first": rates[0], "second": rates[1]})
    drift = [{name: getattr(each, name) for name in ("field", "label", "ks", "psi")} for each in section.drifts]
    return Comparison(
        {
            "equal": not (changes.number or fields or new["count"] or gone["count"]),
            "first": _counts(first, summaries[0].report, findings[0]),
            "second": _counts(second, summaries[1].report, findings[1]),
            "episodes": {
                "equal": changes.equal,
                **{kind: len(keys) for kind, keys in kinds.items()},
                "keys": {kind: keys[:_LISTED] for kind, keys in kinds.items()},
            },
            "fields": fields,
            "drift": drift,
            "texts": [list(text) for text in section.texts],
            "findings": {"new": new, "gone": gone},
        }
    )


def _counts(dataset: Input, report: Report, findings: Findings) -> dict[str, Any]:
    number = sum(sum(levels.values()) for levels in findings.counts.values())
    counts = {"records": report.records, "episodes": report.episodes, "steps": report.steps, "findings": number}
    return {"dataset": dataset.source.dataset, **counts}


def _difference(first: Findings, second: Findings) -> dict[str, Any]:
    """The findings of the first version that the second lacks, by fingerprint."""
    known = Counter((finding.check, finding.fingerprint) for finding in second.listed)
    lost = [finding for finding in first.listed if not known[finding.check, finding.fingerprint]]
    return {"count": len(lost), "listed": [finding._asdict() for finding in lost[:_LISTED]]}


def compare(config: CompareConfig) -> Comparison:
    """Runs the job.

    Raises:
      NotVerifiedError: an input file changed during the run.
      RldsBeamError: a dataset cannot be read at all, or the pipeline failed.
    """
    from rlds_beam.runners import check

    check(config)
    opened = prepare(config)
    return Comparison(
        run_over("compare", config, opened[1], lambda root, shared: define_pipeline(root, config, opened, shared))
    )


def main(config: CompareConfig) -> int:
    """Runs the command: prints the differences; returns 0 if there are none, otherwise 3."""
    began = time.monotonic()
    done = compare(config)
    seconds = time.monotonic() - began
    if config.json:
        print_json({**done.to_json(), "seconds": round(seconds, 3)})
    else:
        print(done)
    return 0 if done.equal else DIFFERS
