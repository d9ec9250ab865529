"""A gate before training: which findings of a run fail, and what is expected of a dataset (`--expect`)."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rlds_beam import storage
from rlds_beam.checking.findings import Check, Finding, Findings, Level, list_checks
from rlds_beam.checking.rules import DATASET_RULES
from rlds_beam.episodes.schema import Schema, describe_type
from rlds_beam.errors import UsageError
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import Source
from rlds_beam.terminal.options import GateOptions
from rlds_beam.text import count, did_you_mean

_EXPECTABLE = {
    "episodes": "accepted episodes",
    "steps": "steps of accepted episodes",
    "tasks": "different instructions",
    "fps": "frames per second that the dataset declares",
    "fields": "fields with their types",
}
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_EXPECTED = re.compile(r"\s*(\w+)\s*(>=|<=|=|>|<)\s*(.+?)\s*")


class Expectation(NamedTuple):
    """`steps>=10000`: a name, how to compare, and a number; or `fields`, and the type of each field by path."""

    name: str
    compare: str
    number: float = 0
    fields: Mapping[str, str] = {}


def parse_expect(texts: Iterable[str]) -> list[Expectation]:
    """Parses `--expect`; reads the file of `fields=FILE`: a path and a type in each line.

    Raises:
      UsageError: an expectation is malformed, or the file cannot be read.
    """
    found = []
    for text in texts:
        match, flag = _EXPECTED.fullmatch(text), f"--expect={text}"
        if match is None or match[1] not in _EXPECTABLE:
            hint = did_you_mean(match[1], _EXPECTABLE) if match else ""
            names = ", ".join(_EXPECTABLE)
            raise UsageError(f"{flag}: expected one of {names} with =, >=, <=, > or <: episodes=50,steps>=10000{hint}")
        name, compare, value = match.groups()
        if name == "fields":
            if compare != "=":
                raise UsageError(f"{flag}: expected fields=FILE")
            lines = map(str.strip, storage.read_given(value, f"{flag}: {value} cannot be read").splitlines())
            pairs = (re.split(r"\s+", line, maxsplit=1) for line in lines if line and not line.startswith("#"))
            found.append(Expectation(name, compare, fields={path: "".join(kind) for path, *kind in pairs}))
            continue
        try:
            found.append(Expectation(name, compare, float(value)))
        except ValueError:
            raise UsageError(f"{flag}: expected a number, for example {name}{compare}3") from None
    return found


def find_unmet(
    expectations: Iterable[Expectation], report: Report, tasks: int, source: Source, where: str
) -> list[Finding]:
    """The expectations that a dataset does not meet, each with what was expected, found, and where."""
    found = []
    lost = f" ({report.rejected:,} of {count(report.records, 'record')} rejected)" if report.rejected else ""
    texts = {"episodes": f"{report.episodes:,}{lost}", "steps": f"{report.steps:,}{lost}", "tasks": f"{tasks:,}"}
    numbers = {"episodes": report.episodes, "steps": report.steps, "tasks": tasks, "fps": source.fps}
    for name, compare, expected, fields in expectations:
        number = numbers.get(name)
        if name == "fields":
            found += _find_unmet_fields(fields, source.schema, where)
        elif number is None or not _COMPARE[compare](number, expected):
            said = texts.get(name, "none" if number is None else f"{number:g}")
            detail = f"expected {name}{compare}{expected:.15g}, found {said}, in {where}"
            found.append(Finding(f"expectation/{name}", "error", "", detail))
    return found


def _find_unmet_fields(expected: Mapping[str, str], schema: Schema, where: str) -> list[Finding]:
    fields = {**schema.metadata, **schema.steps}
    plain = {
        path: describe_type(dataclasses.replace(field, names=(), representation=None)) for path, field in fields.items()
    }
    said = {path: plain.get(path, "none") for path in expected}
    wrong = [path for path, kind in expected.items() if said[path] == "none" or kind not in ("", said[path])]
    found = []
    for path in wrong:
        kind = f": {expected[path]}" if expected[path] else ""
        hint = did_you_mean(path, plain) if said[path] == "none" else ""
        detail = f"expected {path}{kind}, found {said[path]}, in {where}{hint}"
        found.append(Finding("expectation/fields", "error", "", detail, path))
    return found


@dataclasses.dataclass(frozen=True)
class Gate:
    """The findings of a run, and which of them fail.

    Attributes:
      dataset: the name of the dataset.
      findings: all findings, with those about shards and the expectations that are not met.
      checks: what was checked, by id.
      unmeasured: the checks that were not possible -> why.
      rejecting: whether rejected episodes fail: there are more than `--max_rejected`.
    """

    dataset: str
    findings: Findings
    checks: Mapping[str, Check]
    unmeasured: Mapping[str, str]
    rejecting: bool

    def fails(self, finding: Finding) -> bool:
        """Whether a finding fails: an unmet expectation, a broken shard, or one of too many rejected episodes."""
        if finding.check.startswith("expectation/"):
            return True
        return finding.level == "error" and (self.rejecting or finding.check.partition("/")[2] in DATASET_RULES)

    @property
    def failing(self) -> list[Finding]:
        """The findings that fail."""
        return [finding for finding in self.findings.listed if self.fails(finding)]

    def lines(self) -> list[str]:
        """The expectations that are not met."""
        return [finding.detail for finding in self.findings.listed if finding.check.startswith("expectation/")]

    def reasons(self) -> list[str]:
        """Why the gate fails, besides rejected episodes and broken shards."""
        return [f"{count(len(lines), 'expectation')} of --expect not met"] if (lines := self.lines()) else []

    def to_json(self) -> dict[str, Any]:
        """The result as JSON."""
        return {"gate": {"failing": [finding._asdict() for finding in self.failing], "reasons": self.reasons()}}


def evaluate(
    options: GateOptions,
    input: str,
    source: Source,
    report: Report,
    listed: Findings,
    kinds: Sequence[str],
    unmeasured: Mapping[str, str] = {},
) -> Gate:
    """The gate of a finished run.

    Args:
      options: the options of the command.
      input: the dataset, as given.
      source: the dataset.
      report: the report on the records read.
      listed: the findings about episodes and the dataset.
      kinds: the kinds of checks that ran: `rule`, `signal`, `dataset`.
      unmeasured: the checks that were not possible -> why.
    """
    more: list[Finding] = []
    counts: dict[str, dict[str, int]] = {}
    for rule in DATASET_RULES:
        if (broken := report.rules.get(rule)) is not None:
            level: Level = "error" if broken.rejected else "note"
            more += [Finding(f"rule/{rule}", level, str(key), detail) for key, detail in broken.samples]
            counts[f"rule/{rule}"] = {level: broken.total}
    expectations = parse_expect(options.expect)
    missed = find_unmet(expectations, report, listed.tasks, source, input)
    checks = {name: check for name, check in list_checks().items() if name.partition("/")[0] in kinds}
    for name in dict.fromkeys(expectation.name for expectation in expectations):
        about = f"the dataset has the expected {_EXPECTABLE[name]}"
        checks[f"expectation/{name}"] = Check(f"expectation/{name}", about, "change --expect, or the data")
        if number := sum(finding.check == f"expectation/{name}" for finding in missed):
            counts[f"expectation/{name}"] = {"error": number}
    findings = listed.add([*more, *missed], counts)
    return Gate(source.dataset, findings, checks, unmeasured, report.exceeds(options.max_rejected))
