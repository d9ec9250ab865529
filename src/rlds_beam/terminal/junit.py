"""The findings of a gate as JUnit XML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

from rlds_beam.checking.findings import Check, Finding
from rlds_beam.terminal.gate import Gate
from rlds_beam.text import count, printable

MAX_EPISODES = 1000
"""Findings that a test case lists."""


def format_junit(gate: Gate) -> str:
    """A test suite for each kind of check, and in it a test case for each check.

    A test case fails if one of its findings does; other findings are in `system-out`. A check that was not possible is
    skipped. Texts of a dataset are one line without control characters.
    """
    root = ElementTree.Element("testsuites", name=_clean(f"rlds-beam check {gate.dataset}"))
    for kind in dict.fromkeys(check.partition("/")[0] for check in gate.checks):
        suite = ElementTree.SubElement(root, "testsuite", name=kind)
        suite.extend(_make_case(gate, check) for name, check in gate.checks.items() if name.startswith(f"{kind}/"))
        _count_cases(suite, [*suite])
    _count_cases(root, [case for suite in root for case in suite])
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, "us-ascii", xml_declaration=True)
    return text.decode() + "\n"


def _count_cases(element: ElementTree.Element, cases: Sequence[ElementTree.Element]) -> None:
    element.set("tests", str(len(cases)))
    element.set("errors", "0")
    for tag, name in (("failure", "failures"), ("skipped", "skipped")):
        element.set(name, str(sum(case.find(tag) is not None for case in cases)))


def _make_case(gate: Gate, check: Check) -> ElementTree.Element:
    kind, _, name = check.id.partition("/")
    case = ElementTree.Element("testcase", classname=kind, name=name)
    found = [finding for finding in gate.findings.listed if finding.check == check.id]
    failing, others = [f for f in found if gate.fails(f)], [f for f in found if not gate.fails(f)]
    left_out = gate.findings.left_out(check.id)
    if failing:
        total = count(sum(gate.findings.counts.get(check.id, {}).values()), "finding")
        message = f"{total}: {_clean(check.summary)}; {_clean(check.remedy)}"
        failure = ElementTree.SubElement(case, "failure", type=check.id, message=message)
        failure.text = "\n".join(_list(failing, left_out))
    elif check.id in gate.unmeasured:
        ElementTree.SubElement(case, "skipped", message=_clean(gate.unmeasured[check.id]))
    if others:
        ElementTree.SubElement(case, "system-out").text = "\n".join(_list(others, left_out))
    return case


def _list(found: Sequence[Finding], left_out: int) -> Iterator[str]:
    """A line for each finding: `toy/1.0.0:train:00000@952: observation/state: NaN at step 17`."""
    for finding in found[:MAX_EPISODES]:
        field = "" if finding.check.startswith("expectation/") else finding.field
        step = f" (step {finding.step})" if finding.step is not None and "step" not in finding.detail else ""
        yield _clean(": ".join(filter(None, [finding.key, field, f"{finding.detail}{step}"]))) or finding.check
    if more := len(found[MAX_EPISODES:]) + left_out:
        yield f"and {count(more, 'more episode')}"


def _clean(text: str) -> str:
    return printable(text, 1000)
