"""A gate before training: the findings of a run, against those accepted (`--baseline`) and what is expected."""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rlds_beam import storage
from rlds_beam.checking.findings import SITE, Check, Finding, Findings, Level, identify, list_checks
from rlds_beam.checking.rules import DATASET_RULES
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.episodes.schema import Schema, describe_type
from rlds_beam.errors import UsageError
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import Source
from rlds_beam.terminal.options import GateOptions
from rlds_beam.text import count, did_you_mean, list_few, printable

_SHOWN = 10
"""Lines of one kind on a terminal."""

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
_ACCEPTED = re.compile(r"(\S+)\s+([0-9a-f]{16})\s+(\S+)(?:\s+#\s*(.*))?")


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
            lines = _read_lines(value, flag)
            pairs = (re.split(r"\s+", line, maxsplit=1) for _, line in lines)
            found.append(Expectation(name, compare, fields={path: "".join(kind) for path, *kind in pairs}))
            continue
        try:
            found.append(Expectation(name, compare, float(value)))
        except ValueError:
            raise UsageError(f"{flag}: expected a number, for example {name}{compare}3") from None
    return found


def _read_lines(path: str, flag: str) -> list[tuple[int, str]]:
    """The lines of a file with their numbers, without comments and empty lines."""
    text = storage.read_given(path, f"{flag}: {path} cannot be read")
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    return [(number, line) for number, line in lines if line and not line.startswith("#")]


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


class Accepted(NamedTuple):
    """A line of a baseline: the episode as it was then, and the reason."""

    place: str
    reason: str


Baseline = Mapping[tuple[str, str], Accepted]
"""The check and the fingerprint of each accepted finding."""


def read_baseline(path: str) -> Baseline:
    """Reads a baseline: in each line a check, a fingerprint, an episode, and after ` # ` the reason.

    Raises:
      UsageError: the file cannot be read, or a line is malformed.
    """
    found = {}
    for number, line in _read_lines(path, f"--baseline={path}"):
        match = _ACCEPTED.fullmatch(line)
        if match is None:
            raise UsageError(
                f"--baseline={path}: line {number} is not a finding: expected 'CHECK FINGERPRINT EPISODE # REASON', "
                "for example 'signal/jump 00c0ffee00c0ffee toy/1.0.0:train:00000@0 # a reason'"
            )
        found[match[1], match[2]] = Accepted(match[3], match[4] or "")
    return found


def format_baseline(findings: Iterable[Finding], known: Baseline) -> str:
    """A baseline that accepts these findings, sorted; reasons that are known stay, others are what was found."""
    lines = {
        f"{f.check} {f.fingerprint} {printable(f.key).replace(' ', '_') or '-'} "
        f"# {known[f.check, f.fingerprint].reason if (f.check, f.fingerprint) in known else _describe(f)}"
        for f in findings
    }
    head = (
        "# Accepted findings: check, fingerprint of the episode's content, episode, and the reason after the #.\n"
        "# rlds-beam check and validate read this file with --baseline=FILE, and write it with --write_baseline.\n"
    )
    return head + "".join(f"{line}\n" for line in sorted(lines, key=_sort_key))


def _sort_key(line: str) -> tuple[str, str, str]:
    check, digits, rest = line.split(" ", 2)
    return check, rest, digits


def _describe(finding: Finding) -> str:
    """What was found, with the field, on one line."""
    return printable(f"{finding.field}: {finding.detail}" if finding.field else finding.detail, 500)


@dataclasses.dataclass(frozen=True)
class Gate:
    """The findings of a run, and which of them fail.

    Attributes:
      command: the command: `check`.
      dataset: the name of the dataset.
      input: the path of the dataset.
      findings: all findings, with those about shards and the expectations that are not met.
      checks: what was checked, by id.
      unmeasured: the checks that were not possible -> why.
      rejecting: whether rejected episodes fail: there are more than `--max_rejected`.
      baseline: the accepted findings; None without `--baseline`.
      path: the file of `--baseline`.
      shards: split and index of each shard -> its path.
    """

    command: str
    dataset: str
    input: str
    findings: Findings
    checks: Mapping[str, Check]
    unmeasured: Mapping[str, str]
    rejecting: bool
    baseline: Baseline | None
    path: str
    shards: Mapping[tuple[str, int], str]

    def fails(self, finding: Finding) -> bool:
        """Whether a finding fails the gate.

        With a baseline, every finding that it does not accept; without one, those of rejected episodes, if there are
        too many, and of shards. An expectation that is not met always does; what an option accepted or repaired never.
        """
        if finding.check.startswith("expectation/"):
            return True
        if finding.level == "note":
            return False
        if self.baseline is not None:
            return (finding.check, finding.fingerprint) not in self.baseline
        return finding.level == "error" and (self.rejecting or finding.check.partition("/")[2] in DATASET_RULES)

    def accepted(self, finding: Finding) -> Accepted | None:
        """The line of the baseline that accepts a finding."""
        return None if self.baseline is None else self.baseline.get((finding.check, finding.fingerprint))

    def place(self, finding: Finding) -> str:
        """The file of a finding, relative to the working directory if it is below; the dataset if it is not known."""
        path = self.input
        if finding.key:
            key = EpisodeKey.parse(finding.key)
            path = self.shards.get((key.split, key.shard), path)
        if storage.scheme(path) is not None:
            return path
        relative = os.path.relpath(path)
        return os.path.abspath(path) if relative.startswith("..") else relative

    def of_check(self, check: str) -> list[Finding]:
        """The listed findings of a check, by id."""
        return self._by_check.get(check, [])

    @functools.cached_property
    def _by_check(self) -> dict[str, list[Finding]]:
        groups: dict[str, list[Finding]] = {}
        for finding in self.findings.listed:
            groups.setdefault(finding.check, []).append(finding)
        return groups

    @property
    def failing(self) -> list[Finding]:
        """The findings that fail."""
        return [finding for finding in self.findings.listed if self.fails(finding)]

    @property
    def unlisted(self) -> dict[str, int]:
        """The number of findings of each check that are counted, but not listed."""
        return {check: left for check in self.findings.counts if (left := self.findings.left_out(check))}

    @property
    def vanished(self) -> list[tuple[str, str, Accepted]]:
        """The accepted findings of the checks that ran that are no longer there."""
        there = {(finding.check, finding.fingerprint) for finding in self.findings.listed}
        lines = [(*key, accepted) for key, accepted in (self.baseline or {}).items() if key not in there]
        return [line for line in lines if line[0] in self.checks and line[0] not in self.unmeasured]

    def reasons(self) -> list[str]:
        """Why the gate fails, besides rejected episodes."""
        kinds = Counter(finding.check.startswith("expectation/") for finding in self.failing)
        reasons = [f"{count(kinds[True], 'expectation')} of --expect not met"] if kinds[True] else []
        if self.baseline is None:
            return reasons
        if kinds[False]:
            what = count(kinds[False], "finding")
            reasons.append(f"{what} not in {self.path} (--write_baseline accepts what is there now)")
        more = {check: left for check, left in self.unlisted.items() if self.findings.counts[check].keys() != {"note"}}
        reasons += [f"{left:,} more of {check} are too many for a baseline" for check, left in more.items()]
        return reasons

    def lines(self) -> list[str]:
        """The lines of the gate on a terminal: expectations that are not met, new findings, and vanished ones."""
        failing = self.failing
        lines = [finding.detail for finding in failing if finding.check.startswith("expectation/")]
        if self.baseline is None:
            return lines
        new = [f for f in failing if not f.check.startswith("expectation/")]
        lines += list_few("new", [f"{f.check} {f.key or self.dataset} ({_describe(f)})" for f in new], _SHOWN)
        gone = [f"{check} {digits} {printable(accepted.place)}" for check, digits, accepted in self.vanished]
        lines += list_few("vanished", [f"{text} is in {self.path}, but no longer found" for text in gone], _SHOWN)
        number = sum(self.accepted(finding) is not None for finding in self.findings.listed)
        return [*lines, f"baseline  {count(number, 'finding')} accepted by {self.path}, {len(new):,} new"]

    def to_json(self) -> dict[str, Any]:
        """The result as JSON."""
        failing = [finding._asdict() for finding in self.failing]
        gone = [[check, digits, accepted.place] for check, digits, accepted in self.vanished]
        return {"gate": {"failing": failing, "vanished": gone, "unlisted": self.unlisted, "reasons": self.reasons()}}


def evaluate(
    command: str,
    options: GateOptions,
    input: str,
    source: Source,
    report: Report,
    listed: Findings,
    kinds: Sequence[str],
    unmeasured: Mapping[str, str] = {},
) -> Gate:
    """The gate of a finished run; writes the file of `--write_baseline`.

    Args:
      command: the command.
      options: its options.
      input: the dataset, as given.
      source: the dataset.
      report: the report on the records read.
      listed: the findings about episodes and the dataset.
      kinds: the kinds of checks that ran: `rule`, `signal`, `dataset`.
      unmeasured: the checks that were not possible -> why.

    Raises:
      RldsBeamError: the baseline cannot be written.
    """
    of_shards: list[Finding] = []
    counts: dict[str, dict[str, int]] = {}
    for rule in DATASET_RULES:
        if (broken := report.rules.get(rule)) is not None:
            level: Level = "error" if broken.rejected else "note"
            of_shards += [Finding(f"rule/{rule}", level, str(key), detail) for key, detail in broken.samples]
            counts[f"rule/{rule}"] = {level: broken.total}
    expectations = parse_expect(options.expect)
    missed = find_unmet(expectations, report, listed.tasks, source, input)
    checks = {name: check for name, check in list_checks().items() if name.partition("/")[0] in kinds}
    for name in dict.fromkeys(expectation.name for expectation in expectations):
        about = f"the dataset has the expected {_EXPECTABLE[name]}"
        help_page = f"{SITE}how_to/gate.html"
        checks[f"expectation/{name}"] = Check(f"expectation/{name}", about, "change --expect, or the data", help_page)
        if number := sum(finding.check == f"expectation/{name}" for finding in missed):
            counts[f"expectation/{name}"] = {"error": number}
    findings = listed.add(identify([*of_shards, *missed]), counts)
    baseline = None
    if options.baseline is not None:
        known = read_baseline(options.baseline) if storage.exists(options.baseline) else {}
        if options.write_baseline:
            accepted = [f for f in findings.listed if f.level != "note" and not f.check.startswith("expectation/")]
            storage.write_given(options.baseline, format_baseline(accepted, known), "--baseline")
        baseline = read_baseline(options.baseline)
    return Gate(
        command,
        source.dataset,
        storage.paths_in(input)[0],
        findings,
        checks,
        unmeasured,
        report.exceeds(options.max_rejected),
        baseline,
        options.baseline or "",
        {(split.name, shard.index): shard.path for split in source.splits for shard in split.shards},
    )
