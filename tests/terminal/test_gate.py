"""Findings as JUnit XML: any text is well-formed; expectations."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_beam.checking.findings import Check, Finding, Findings, list_checks
from rlds_beam.checking.rules import RULES
from rlds_beam.checking.signals.base import SIGNALS
from rlds_beam.checking.signals.dataset import DATASET_CHECKS
from rlds_beam.errors import UsageError
from rlds_beam.terminal.gate import Gate, parse_expect
from rlds_beam.terminal.junit import MAX_EPISODES, format_junit

TEXTS = st.text(st.characters(categories=None), max_size=30) | st.sampled_from(
    ["::error::x\n::error::y", "%0A::stop", "]]></failure>&\x00\x1b[2J", "\ud800", "￾", "# 0 #"]
)
NAMES = TEXTS.map(lambda text: re.sub("[:]", "", text) or "x")
KEYS = st.builds(lambda name, at: f"{name}/1.0.0:train:00000@{at}", NAMES, st.integers(0, 99)) | st.just("")
FINDINGS = st.builds(
    Finding,
    st.sampled_from([*list_checks()]),
    st.sampled_from(["error", "warning", "note"]),
    KEYS,
    TEXTS,
    st.none() | TEXTS,
    st.none() | st.integers(0, 10**9),
)


def make_gate(listed: list[Finding], more: int = 0) -> Gate:
    """A gate with these findings, and `more` of each check that are not listed."""
    counts: dict[str, dict[str, int]] = {}
    for finding in listed:
        levels = counts.setdefault(finding.check, {})
        levels[finding.level] = levels.get(finding.level, 0) + 1
    for levels in counts.values():
        levels[next(iter(levels))] += more
    return Gate("toy/1.0.0", Findings(tuple(listed), counts), list_checks(), {}, True)


@settings(max_examples=50)
@given(st.lists(FINDINGS, max_size=6), st.integers(0, 3))
def test_any_text_is_well_formed(listed, more):
    gate = make_gate(listed, more)
    text = format_junit(gate)
    assert text.isascii()
    root = ElementTree.fromstring(text)
    assert int(root.get("tests", "")) == len(root.findall(".//testcase")) == len(list_checks())
    assert int(root.get("failures", "")) == len(root.findall(".//failure")) == len({f.check for f in gate.failing})
    assert json.dumps(gate.to_json())
    assert Findings.from_json(json.loads(json.dumps(gate.findings.to_json()))) == gate.findings


NAN = Finding("rule/non_finite", "error", "toy/1.0.0:train:00000@7", "NaN at step 3", "action", 3)
JUMP = Finding("signal/jump", "warning", "toy/1.0.0:train:00000@9", "21 is above 15 (times)", "action", 5)


def test_a_finding_names_the_record_and_the_step():
    root = ElementTree.fromstring(format_junit(make_gate([NAN, JUMP])))
    case = root.find(".//testcase[@name='non_finite']/failure")
    assert case is not None and case.text == "toy/1.0.0:train:00000@7: action: NaN at step 3"
    output = root.find(".//testcase[@name='jump']/system-out")
    assert output is not None and output.text == "toy/1.0.0:train:00000@9: action: 21 is above 15 (times) (step 5)"


def test_counts_are_whole_if_the_list_is_cut():
    listed = [NAN._replace(key=f"toy/1.0.0:train:00000@{at}") for at in range(MAX_EPISODES + 5)]
    text = format_junit(make_gate(listed, more=20))
    assert "and 25 more episodes" in text and f"{MAX_EPISODES + 25:,} findings" in text


def test_every_rule_signal_and_check_has_a_remedy():
    checks = list_checks()
    assert [*checks] == [
        *(f"rule/{name}" for name in RULES),
        *(f"signal/{name}" for name in SIGNALS),
        *(f"dataset/{name}" for name in DATASET_CHECKS),
    ]
    assert checks["signal/jump"] == Check("signal/jump", SIGNALS["jump"].summary, SIGNALS["jump"].remedy)
    assert all(check.remedy for check in checks.values())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("episods=5", "expected one of episodes, steps, tasks, fps, fields with .*; did you mean episodes"),
        ("episodes", "episodes=50,steps>=10000"),
        ("episodes=many", "expected a number, for example episodes=3"),
        ("fields>none.txt", "expected fields=FILE"),
        ("fields=/none.txt", "/none.txt cannot be read: No such file"),
    ],
)
def test_wrong_expectations_are_refused(text, said):
    with pytest.raises(UsageError, match=said):
        parse_expect([text])
