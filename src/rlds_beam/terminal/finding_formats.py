"""The findings of a gate as JUnit XML, SARIF 2.1.0, and annotations of GitHub Actions.

Texts of a dataset are one line without control characters in all of them. A check lists at most `MAX_EPISODES` (10 on
GitHub, which shows no more); all say how many there are, and how many are left out.
"""

from __future__ import annotations

import json
import os
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any
from xml.etree import ElementTree

from rlds_beam import storage
from rlds_beam._version import __version__
from rlds_beam.checking.findings import SITE, Check, Finding
from rlds_beam.terminal.gate import Gate
from rlds_beam.text import count, escape_controls, printable

MAX_EPISODES = 1000
_ANNOTATIONS = 10
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def junit(gate: Gate) -> str:
    """JUnit XML: a test suite for each kind of check, and in it a test case for each check.

    A test case fails if one of its findings does; other findings are in `system-out`. A check that was not possible is
    skipped.
    """
    cases = [(check, gate.of_check(check.id)) for check in gate.checks.values()]
    root = ElementTree.Element("testsuites", name=_clean(f"rlds-beam {gate.command} {gate.dataset}"))
    for kind in dict.fromkeys(check.id.partition("/")[0] for check, _ in cases):
        suite = ElementTree.SubElement(root, "testsuite", name=kind)
        for check, found in cases:
            if check.id.startswith(f"{kind}/"):
                suite.append(_test_case(gate, check, found))
        _count_cases(suite, [*suite])
    _count_cases(root, [case for suite in root for case in suite])
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, "us-ascii", xml_declaration=True)
    return text.decode() + "\n"


def _count_cases(element: ElementTree.Element, cases: list[ElementTree.Element]) -> None:
    element.set("tests", str(len(cases)))
    element.set("errors", "0")
    for tag, name in (("failure", "failures"), ("skipped", "skipped")):
        element.set(name, str(sum(case.find(tag) is not None for case in cases)))


def _test_case(gate: Gate, check: Check, found: list[Finding]) -> ElementTree.Element:
    kind, _, name = check.id.partition("/")
    case = ElementTree.Element("testcase", classname=kind, name=name)
    failing, others = [f for f in found if gate.fails(f)], [f for f in found if not gate.fails(f)]
    if failing:
        message = f"{_total(gate, check)}: {_clean(check.summary)}; {_clean(check.remedy)}"
        failure = ElementTree.SubElement(case, "failure", type=check.id, message=message)
        failure.text = "\n".join(_listed(gate, check, failing))
    elif check.id in gate.unmeasured:
        ElementTree.SubElement(case, "skipped", message=_clean(gate.unmeasured[check.id]))
    if others:
        ElementTree.SubElement(case, "system-out").text = "\n".join(_listed(gate, check, others))
    return case


def _listed(gate: Gate, check: Check, found: list[Finding]) -> Iterator[str]:
    """The lines of findings, and how many are left out."""
    for finding in found[:MAX_EPISODES]:
        accepted = gate.accepted(finding)
        remark = f" [accepted: {_clean(accepted.reason)}]" if accepted else ""
        yield f"{_message(finding)} ({_path(gate, finding)}){remark}"
    more = len(found) - len(found[:MAX_EPISODES]) + gate.unlisted.get(check.id, 0)
    if more:
        yield f"and {count(more, 'more episode')}"


def _total(gate: Gate, check: Check) -> str:
    return count(sum(gate.findings.counts.get(check.id, {}).values()), "finding")


def sarif(gate: Gate) -> str:
    """SARIF 2.1.0: a rule for each check, and a result for each finding, at its file with the record and the step.

    `partialFingerprints` depend on the content of the episode. Accepted findings are suppressed, with the reason. The
    file is binary, so the region is its first line, as GitHub's code scanning requires one.
    """
    place = {check: index for index, check in enumerate(gate.checks)}
    results, notes = [], []
    for check in gate.checks.values():
        found = gate.of_check(check.id)
        results += [_result(gate, finding, place[check.id]) for finding in found[:MAX_EPISODES]]
        if more := len(found) - len(found[:MAX_EPISODES]) + gate.unlisted.get(check.id, 0):
            text = f"{check.id}: {_total(gate, check)}, of which {more:,} are not listed"
            notes.append({"level": "note", "message": {"text": text}})
    failed = bool(gate.failing or gate.reasons())
    invocation = {"executionSuccessful": True, "exitCode": 3 if failed else 0, "toolExecutionNotifications": notes}
    driver = {
        "name": "rlds-beam",
        "version": __version__,
        "informationUri": SITE,
        "rules": [
            {
                "id": check.id,
                "shortDescription": {"text": _clean(check.summary)},
                "help": {"text": _clean(check.remedy)},
                "helpUri": check.help,
            }
            for check in gate.checks.values()
        ],
    }
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": _clean(f"rlds-beam/{gate.command}/{gate.dataset}/")},
        "invocations": [invocation],
        "results": results,
        "properties": {"counts": gate.findings.counts},
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _result(gate: Gate, finding: Finding, index: int) -> dict[str, Any]:
    accepted, level = gate.accepted(finding), finding.level
    if gate.fails(finding):
        level = "error"
    elif level == "error":
        level = "warning"
    key = _clean(finding.key or gate.dataset)
    where = [key, *([_clean(finding.field)] if finding.field else [])]
    where += [f"step {finding.step}"] if finding.step is not None else []
    logical = {"name": key, "fullyQualifiedName": "/".join(where), "kind": "episode" if finding.key else "dataset"}
    physical = {"artifactLocation": {"uri": _uri(gate.place(finding))}, "region": {"startLine": 1}}
    result: dict[str, Any] = {
        "ruleId": finding.check,
        "ruleIndex": index,
        "level": level,
        "message": {"text": _message(finding)},
        "locations": [{"physicalLocation": physical, "logicalLocations": [logical]}],
        "partialFingerprints": {"rldsBeamFinding/v1": finding.fingerprint},
    }
    if gate.baseline is not None and not finding.check.startswith("expectation/"):
        result["baselineState"] = "unchanged" if accepted else "new"
        suppression = {"kind": "external", "status": "accepted"}
        reason = {"justification": _clean(accepted.reason)} if accepted and accepted.reason else {}
        result["suppressions"] = [{**suppression, **reason}] if accepted else []
    return result


def _uri(path: str) -> str:
    """A path as a URI: relative, of a file, or of an object in a bucket."""
    if storage.scheme(path) is not None:
        return urllib.parse.quote(path, safe="/:", errors="replace")
    quoted = urllib.parse.quote(os.fsencode(path), safe="/")
    return f"file://{quoted}" if PurePath(path).is_absolute() else quoted


def github(gate: Gate) -> str:
    """Workflow commands of GitHub Actions: an error for each finding that fails, a warning or notice for others."""
    lines = []
    for check in gate.checks.values():
        found = [finding for finding in gate.of_check(check.id) if gate.accepted(finding) is None]
        found.sort(key=lambda finding: not gate.fails(finding))
        more = len(found) - len(found[:_ANNOTATIONS]) + gate.unlisted.get(check.id, 0)
        for place, finding in enumerate(found[:_ANNOTATIONS]):
            kind = "error" if gate.fails(finding) else "notice" if finding.level == "note" else "warning"
            last = place == len(found[:_ANNOTATIONS]) - 1
            rest = f" (and {count(more, 'more episode')}, {_total(gate, check)} in all)" if more and last else ""
            file = f"file={_escape_property(_path(gate, finding))},title={_escape_property(check.id)}"
            about = "" if check.id.startswith("expectation/") else f". {_clean(check.summary)}"
            lines.append(f"::{kind} {file}::{_escape_data(_message(finding) + about + rest)}\n")
    return "".join(lines)


def _escape_data(text: str) -> str:
    """Text of a workflow command (actions/toolkit, `command.ts`)."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")


def _message(finding: Finding) -> str:
    """What was found, and where: `toy/1.0.0:train:00000@952: observation/state: NaN at step 17`."""
    parts = [finding.key, finding.field if finding.field and not finding.check.startswith("expectation/") else ""]
    step = f" (step {finding.step})" if finding.step is not None and "step" not in finding.detail else ""
    return _clean(": ".join([*filter(None, parts), f"{finding.detail}{step}"])) or finding.check


def _path(gate: Gate, finding: Finding) -> str:
    return escape_controls(gate.place(finding), keep="")


def _clean(text: str) -> str:
    return printable(text, 1000)


FORMATS: dict[str, Callable[[Gate], str]] = {"junit": junit, "sarif": sarif, "github": github}
"""The value of `--format` -> what writes it."""
