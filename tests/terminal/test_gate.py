"""Findings in each format: any text gives well-formed XML, valid SARIF, and annotations of one line; baselines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_beam.checking.findings import SITE, Check, Finding, Findings, fingerprint, identify, list_checks
from rlds_beam.checking.rules import RULES
from rlds_beam.checking.signals.base import SIGNALS
from rlds_beam.checking.signals.dataset import DATASET_CHECKS
from rlds_beam.errors import UsageError
from rlds_beam.terminal.finding_formats import FORMATS, MAX_EPISODES, github, junit, sarif
from rlds_beam.terminal.gate import Accepted, Gate, format_baseline, parse_expect, read_baseline

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


def make_gate(
    listed: list[Finding], *, baseline: Any = None, more: int = 0, shard: str = "data/x", **other: Any
) -> Gate:
    """A gate with these findings, and `more` of each check that are not listed."""
    counts: dict[str, dict[str, int]] = {}
    for finding in listed:
        levels = counts.setdefault(finding.check, {})
        levels[finding.level] = levels.get(finding.level, 0) + 1
    for levels in counts.values():
        levels[next(iter(levels))] += more
    findings = Findings(tuple(identify(listed)), counts)
    shards = {("train", 0): shard}
    return Gate("check", "toy/1.0.0", "data", findings, list_checks(), {}, True, baseline, "b.txt", shards)


def check_sarif(content: Any) -> None:
    """Checks what SARIF 2.1.0 requires of the objects that we write (sections 3.13, 3.14, 3.19, 3.27 to 3.35)."""
    assert content["version"] == "2.1.0" and set(content) == {"$schema", "version", "runs"}
    (run,) = content["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    for rule in rules:
        assert set(rule) == {"id", "shortDescription", "help", "helpUri"}
        assert re.fullmatch(r"https://[!-~]+", rule["helpUri"]) and rule["help"]["text"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error") and result["message"]["text"]
        (location,) = result["locations"]
        assert re.fullmatch(r"[!-~]+", location["physicalLocation"]["artifactLocation"]["uri"])
        assert location["physicalLocation"]["region"]["startLine"] >= 1
        assert all(isinstance(logical["fullyQualifiedName"], str) for logical in location["logicalLocations"])
        assert all(re.fullmatch("[0-9a-f]{16}", digits) for digits in result["partialFingerprints"].values())
        assert result.get("baselineState", "new") in ("new", "unchanged", "updated", "absent")
        for suppression in result.get("suppressions", ()):
            assert suppression["kind"] in ("inSource", "external")
    for note in run["invocations"][0]["toolExecutionNotifications"]:
        assert note["message"]["text"] and note["level"] == "note"


@settings(max_examples=50)
@given(st.lists(FINDINGS, max_size=6), st.text(min_size=1), st.integers(0, 3))
def test_any_text_is_well_formed_in_every_format(listed, path, more):
    gate = make_gate(listed, more=more, shard=path.replace("\x00", "0"))
    texts = {name: write(gate) for name, write in FORMATS.items()}
    assert all(text.isascii() for name, text in texts.items() if name != "github")
    root = ElementTree.fromstring(texts["junit"])
    assert int(root.get("tests", "")) == len(root.findall(".//testcase")) == len(list_checks())
    assert int(root.get("failures", "")) == len(root.findall(".//failure")) == len({f.check for f in gate.failing})
    check_sarif(json.loads(texts["sarif"]))
    assert json.dumps(json.loads(texts["sarif"]), ensure_ascii=False).encode()  # no lone surrogates
    lines = texts["github"].splitlines()
    assert len(lines) == texts["github"].count("\n") == len(listed)
    for line in lines:
        assert re.fullmatch(r"::(error|warning|notice) file=[^:,]*,title=[^:,]*::.*", line) and line.isprintable()
    assert json.dumps(gate.to_json())
    assert Findings.from_json(json.loads(json.dumps(gate.findings.to_json()))) == gate.findings


@settings(max_examples=50)
@given(st.lists(FINDINGS, max_size=6), TEXTS)
def test_a_baseline_is_read_as_it_was_written_and_accepts_all(listed, reason):
    found = make_gate(listed).findings.listed
    directory = Path(".hypothesis")
    directory.mkdir(exist_ok=True)
    path = directory / "baseline.txt"
    text = format_baseline(found, {})
    path.write_text(text, encoding="utf-8")
    known = read_baseline(str(path))
    assert known.keys() == {(finding.check, finding.fingerprint) for finding in found}
    gate = make_gate(listed, baseline=known)
    assert (gate.failing, gate.reasons(), gate.vanished) == ([], [], [])
    check_sarif(json.loads(sarif(gate)))
    assert not ElementTree.fromstring(junit(gate)).findall(".//failure") and github(gate).count("\n") == sum(
        gate.accepted(finding) is None for finding in found
    )
    assert format_baseline(reversed(found), known) == text  # sorted, and reasons stay


NAN = Finding("rule/non_finite", "error", "toy/1.0.0:train:00000@7", "NaN at step 3", "action", 3)
JUMP = Finding("signal/jump", "warning", "toy/1.0.0:train:00000@9", "21 is above 15 (times)", "action", 5)


def test_a_finding_names_the_file_the_record_and_the_step():
    gate = make_gate([NAN, JUMP])
    (line, other) = github(gate).splitlines()
    assert line == (
        "::error file=data/x,title=rule/non_finite::toy/1.0.0:train:00000@7: action: NaN at step 3. "
        f"{RULES['non_finite']}"
    )
    assert other.startswith("::warning file=data/x,title=signal/jump::") and "(step 5)" in other
    first, second = json.loads(sarif(gate))["runs"][0]["results"]
    assert (first["level"], second["level"]) == ("error", "warning")
    where = first["locations"][0]
    assert where["physicalLocation"]["artifactLocation"] == {"uri": "data/x"}
    assert where["logicalLocations"][0]["fullyQualifiedName"] == "toy/1.0.0:train:00000@7/action/step 3"
    case = ElementTree.fromstring(junit(gate)).find(".//testcase[@name='non_finite']/failure")
    assert case is not None and "NaN at step 3 (data/x)" in (case.text or "")
    output = ElementTree.fromstring(junit(gate)).find(".//testcase[@name='jump']/system-out")
    assert output is not None and "21 is above 15" in (output.text or "")


def test_counts_are_whole_if_the_list_is_cut():
    listed = [NAN._replace(key=f"toy/1.0.0:train:00000@{at}") for at in range(MAX_EPISODES + 5)]
    gate = make_gate(listed, more=20)
    assert "and 25 more episodes" in junit(gate) and f"{MAX_EPISODES + 25:,} findings" in junit(gate)
    notes = json.loads(sarif(gate))["runs"][0]["invocations"][0]["toolExecutionNotifications"]
    assert [note["message"]["text"] for note in notes] == [
        f"rule/non_finite: {MAX_EPISODES + 25:,} findings, of which 25 are not listed"
    ]
    assert github(gate).count("\n") == 10 and f"and {MAX_EPISODES + 15:,} more episodes" in github(gate)
    known = {(f.check, f.fingerprint): Accepted("", "") for f in gate.findings.listed}
    assert make_gate(listed, baseline=known, more=20).reasons() == [
        "20 more of rule/non_finite are too many for a baseline"
    ]


def test_fingerprints_are_of_the_content_not_of_the_place():
    moved = [NAN._replace(key="toy/1.0.0:train:00003@0", detail="NaN at step 3 of all"), JUMP]
    contents = {NAN.key: "00", moved[0].key: "00", JUMP.key: "01"}
    first, second = ({f.fingerprint for f in identify(found, contents)} for found in ([JUMP, NAN], moved))
    assert first == second
    twice = [f.fingerprint for f in identify([NAN, moved[0]], contents)]
    assert twice == [fingerprint(NAN.check, "00"), fingerprint(NAN.check, "00", 1)]


def test_a_baseline_keeps_reasons_and_names_what_vanished(tmp_path):
    path = tmp_path / "b.txt"
    found = make_gate([NAN, JUMP]).findings.listed
    path.write_text(format_baseline(found, {}).replace("21 is above 15 (times)", "the arm was pushed # twice"))
    known = read_baseline(str(path))
    assert known["signal/jump", found[1].fingerprint].reason == "action: the arm was pushed # twice"
    assert "# action: the arm was pushed # twice\n" in format_baseline(found, known)
    gate = make_gate([JUMP], baseline=known)
    assert [check for check, _, _ in gate.vanished] == ["rule/non_finite"] and not gate.failing
    assert any(line.startswith("vanished  rule/non_finite ") for line in gate.lines())
    result = json.loads(sarif(gate))["runs"][0]["results"][0]
    assert result["suppressions"][0]["justification"] == "action: the arm was pushed # twice"
    assert result["baselineState"] == "unchanged"
    new = make_gate([NAN, JUMP], baseline={})
    assert new.reasons() == ["2 findings not in b.txt (--write_baseline accepts what is there now)"]


def test_every_rule_signal_and_check_has_help():
    checks = list_checks()
    assert [*checks] == [
        *(f"rule/{name}" for name in RULES),
        *(f"signal/{name}" for name in SIGNALS),
        *(f"dataset/{name}" for name in DATASET_CHECKS),
    ]
    assert checks["signal/jump"] == Check(
        "signal/jump", SIGNALS["jump"].summary, SIGNALS["jump"].remedy, f"{SITE}reference/signals.html#jump"
    )
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


def test_a_damaged_baseline_is_refused_with_the_line(tmp_path):
    path = tmp_path / "b.txt"
    path.write_text("# fine\n\nsignal/jump 0123456789abcdef toy\nsignal/jump toy\n")
    with pytest.raises(UsageError, match=r"b.txt: line 4 is not a finding: expected 'CHECK"):
        read_baseline(str(path))
