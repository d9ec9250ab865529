"""What `inspect` predicts and refuses."""

from __future__ import annotations

import json

import pytest

from rlds_beam.cli.main import main
from rlds_beam.testing import make_episode, write_dataset


@pytest.mark.parametrize("flags", [(), ("--accept=duplicate_episode",), ("--items=episodes",), ("--split=train[1:7]",)])
def test_inspect_predicts_what_convert_writes_with_duplicates(tmp_path, capsys, flags):
    """Four episodes occur four times each; the three copies of each give no items."""
    episodes = [make_episode(2, seed=i % 4) for i in range(16)]
    path = str(write_dataset(tmp_path / "twice", episodes, shards=3))
    assert main(["inspect", path, "--json", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    main(["convert", path, str(tmp_path / "out"), *flags])
    capsys.readouterr()
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert found["complete"] and found["items"] == report["items_written"]
    assert found["sampled"]["rules"] == report["rules"]


def test_inspect_predicts_episodes_that_the_output_cannot_hold(tmp_path, capsys):
    episodes = [make_episode(length, seed=length) for length in (3, 4, 9)]
    path, flags = str(write_dataset(tmp_path / "data", episodes)), ["--items=episodes", "--max_sequence_length=5"]
    assert main(["inspect", path, "--json", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["convert", path, str(tmp_path / "out"), *flags]) == 3
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert found["items"] == report["items_written"] == 2
    assert found["sampled"]["rules"] == report["rules"] and report["rules"]["too_long"]["rejected"] == 1
