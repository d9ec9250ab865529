"""`check` as a gate: formats, `-o`, and expectations, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import rlds_beam
from rlds_beam.cli.main import main
from rlds_beam.testing import make_episode, write_dataset


def episodes(number: int = 12, bad: tuple[int, ...] = (), jumps: tuple[int, ...] = ()):
    """Episodes of 20 steps; some never end, in some the action jumps."""
    found = []
    for seed in range(number):
        flags = " ".join(["F", *["M"] * 18, "M" if seed in bad else "L"])
        rng = np.random.default_rng(seed)
        action = rng.normal(0, 0.01, (20, 3)).cumsum(axis=0).astype(np.float32)
        action[10:] += 9.0 * (seed in jumps)
        text = np.array([[b"open it", b"close it"][seed % 2]] * 20, object)
        found.append(make_episode(flags, seed=seed, columns={"action": action, "language_instruction": text}))
    return found


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    records = episodes(bad=(2, 5), jumps=(7,))
    return str(write_dataset(tmp_path_factory.mktemp("gate"), records, name="toy", shards=3))


def test_a_format_is_printed_or_written_with_the_text_printed(data, tmp_path, capsys):
    assert main(["check", data, "--format=junit"]) == 3
    printed = capsys.readouterr()
    cases = {case.get("name"): case for case in ElementTree.fromstring(printed.out).iter("testcase")}
    assert cases["missing_is_last"].find("failure").text.count("toy/1.0.0:train:") == 2  # type: ignore[union-attr]
    assert cases["jump"].find("failure") is None and "action" in cases["jump"].find("system-out").text  # type: ignore
    assert cases["frozen_camera"].find("skipped") is not None
    assert "failed with exit code 3" in printed.err
    file = tmp_path / "report.xml"
    assert main(["check", "--rules", data, "--format=junit", "-o", str(file), "--max_rejected=2"]) == 0
    assert "checked   12 episodes" in capsys.readouterr().out
    root = ElementTree.parse(file).getroot()
    assert root.get("failures") == "0"  # as many as --max_rejected allows
    case = root.find(".//testcase[@name='missing_is_last']/system-out")
    assert case is not None and (case.text or "").count("toy/1.0.0:train:") == 2
    assert main(["check", "--rules", data, "--format=json"]) == 3
    assert json.loads(capsys.readouterr().out)["rejected"] == 2
    assert main(["check", data, "--max_rejected=2", f"--report={tmp_path / 'r.json'}"]) == 0
    assert json.loads((tmp_path / "r.json").read_text())["signals"]["jump"]["beyond"] == 1
    rlds_beam.check(data, report=tmp_path / "p.xml", format="junit")
    assert (tmp_path / "p.xml").read_text().count("<failure ") == 1


def test_a_dataset_of_one_episode_is_not_one_of_twelve(data, tmp_path, capsys):
    fields = tmp_path / "fields.txt"
    fields.write_text("# types\naction float32 (3,)\nobservation/camera\nlanguage_instruction  bytes\nreward\n")
    right = f"episodes=10,steps>=200,tasks=2,tasks<3,fields={fields}"
    file = tmp_path / "r.xml"
    assert (
        main(["check", "--rules", data, "--max_rejected=2", f"--expect={right}", "--format=junit", "-o", str(file)])
        == 3
    )
    printed = capsys.readouterr().out
    assert f"expected observation/camera, found none, in {data}" in printed
    assert f"expected language_instruction: bytes, found text, in {data}" in printed
    assert "exit code 3: 2 expectations of --expect not met" in printed
    cases = {case.get("name"): case for case in ElementTree.parse(file).getroot().iter("testcase")}
    assert cases["episodes"].find("failure") is None and cases["fields"].find("failure") is not None
    assert main(["check", data, "--split=train[:1]", "--expect=episodes=12,fps=30,steps>19"]) == 3
    printed = capsys.readouterr().out.splitlines()
    assert f"expected episodes=12, found 1, in {data}" in printed
    assert f"expected fps=30, found none, in {data}" in printed
    assert main(["check", data, "--max_rejected=2", "--expect=episodes=10", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gate"]["failing"] == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--expect=fields=none.txt"], "--expect=fields=none.txt: none.txt cannot be read: No such file"),
        (["-o", "/none/x.xml", "--format=junit"], "--report=/none/x.xml cannot be written to"),
    ],
)
def test_wrong_options_are_refused_before_the_pass(data, flags, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["check", data, *flags]) == 2
    assert said in capsys.readouterr().err
    assert not [*Path().iterdir()]


def test_hostile_metadata_is_one_line(tmp_path, capsys):
    hostile = b"\x1b[2J\n::error::%0A]]>" + bytes(range(256))
    records = [episode.replace(metadata={"\x1b[0m::note": hostile}) for episode in episodes(11)]
    path = str(write_dataset(tmp_path, records, name="toy"))
    assert main(["check", path, "--format=junit"]) == 0
    printed = capsys.readouterr().out
    assert "constant_metadata" in printed and all(c.isprintable() or c == "\n" for c in printed)
    ElementTree.fromstring(printed)
