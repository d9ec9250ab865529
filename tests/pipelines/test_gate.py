"""`check` as a gate: `-o`, and expectations, from the command line."""

from __future__ import annotations

import json

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


def test_the_report_is_written_with_the_text_printed(data, tmp_path, capsys):
    file = tmp_path / "report.json"
    assert main(["check", data, "-o", str(file)]) == 3
    printed = capsys.readouterr()
    assert "checked   12 episodes" in printed.out and "failed with exit code 3" in printed.out
    report = json.loads(file.read_text())
    assert (report["rejected"], report["signals"]["jump"]["beyond"]) == (2, 1)
    assert main(["check", "--rules", data, "-o", str(file), "--max_rejected=2"]) == 0
    rlds_beam.check(data, report=file, rules=True)
    assert json.loads(file.read_text())["rules"]["missing_is_last"]["rejected"] == 2


def test_a_dataset_of_one_episode_is_not_one_of_twelve(data, capsys):
    assert main(["check", data, "--split=train[:1]", "--expect=episodes=12,fps=30,steps>19"]) == 3
    printed = capsys.readouterr().out.splitlines()
    assert "exit code 3: 2 expectations of --expect not met" in printed[-1]
    assert f"expected episodes=12, found 1, in {data}" in printed
    assert f"expected fps=30, found none, in {data}" in printed
    assert main(["check", data, "--max_rejected=2", "--expect=episodes=10", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unmet"] == []
