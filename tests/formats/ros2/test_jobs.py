"""Every job on a directory of bags, and on one MCAP file."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("rosbags")
from ros2_bags import MAPPING, MS, T0, robot, write_bag, write_mcap

from rlds_beam.cli.main import main
from rlds_beam.formats.recognition import recognize

STEPS = [6, 5, 7]


class Bags(NamedTuple):
    """An input, the flag with its mapping, and its number of episodes."""

    path: Path
    topics: str
    episodes: int


@pytest.fixture(scope="module", params=["directory", "file"])
def bags(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bags:
    directory = tmp_path_factory.mktemp("ros2")
    mapping = directory / "topics.yaml"
    mapping.write_text(MAPPING)
    topics = f"--topics={mapping}"
    if request.param == "file":
        return Bags(write_mcap(directory / "one.mcap", robot(STEPS[0])), topics, 1)
    for i, steps in enumerate(STEPS):
        sent = robot(steps, T0 + i * 10_000 * MS, seed=i)
        write_bag(directory / "bags" / f"bag_{i}", sent, "db3" if i == 1 else "mcap")
    return Bags(directory / "bags", topics, len(STEPS))


def test_inspect_proposes_a_mapping_that_works(bags: Bags, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert recognize(bags.path).format == "ros2"
    assert main(["inspect", str(bags.path)]) == 0
    out = capsys.readouterr().out
    for topic in ("/camera/compressed", "/joint_states", "/leader", "/task"):
        assert topic in out
    mapping = tmp_path / "proposed.yaml"
    mapping.write_text(out[out.index("reference:") :])
    assert main(["inspect", str(bags.path), f"--topics={mapping}"]) == 0
    assert "observation/camera" in capsys.readouterr().out
    convert = ["convert", str(bags.path), str(tmp_path / "out" / "1.0.0"), "--to=rlds", f"--topics={mapping}"]
    assert main([*convert, "--workers=1"]) == 0
    assert main(["check", "--rules", str(tmp_path / "out" / "1.0.0"), "--workers=1"]) == 0
