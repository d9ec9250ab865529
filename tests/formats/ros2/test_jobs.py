"""Every job on a directory of bags, and on one MCAP file."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("rosbags")
from ros2_bags import MAPPING, MS, T0, robot, write_bag, write_mcap

from rlds_beam.cli.main import main
from rlds_beam.formats.recognizing import recognize
from rlds_beam.formats.registry import FORMATS

STEPS = [6, 5, 7]
OUTPUTS = [name for name, one in FORMATS.items() if one.output]
RUN = {"rlds", "lerobot"}
"""Outputs that are written; the others are tried with `--dry_run`."""
FLAGS = {"keep_ranges": ["--velocity=observation/state"]}
REFUSED = {"scope_rl": "image"}
"""The output that cannot hold these bags, and the reason."""


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
    assert main(["validate", str(tmp_path / "out" / "1.0.0"), "--workers=1"]) == 0


def test_validate_show_stats_check_and_report(bags: Bags, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [str(bags.path), bags.topics]
    assert main(["validate", *given, "--workers=1"]) == 0
    assert main(["show", *given, f"--episode={bags.episodes - 1}"]) == 0
    assert "observation/state" in capsys.readouterr().out
    assert main(["check", *given, "--workers=1"]) in (0, 3)
    assert main(["stats", *given, "--workers=1", f"--output={tmp_path / 'stats.json'}"]) == 0
    assert '"action"' in (tmp_path / "stats.json").read_text()
    assert main(["report", *given, "--workers=1", f"--output={tmp_path / 'report.html'}"]) == 0
    assert "observation/image" in (tmp_path / "report.html").read_text()
    assert "Traceback" not in capsys.readouterr().err


def test_browse(bags: Bags) -> None:
    browsing = pytest.importorskip("browsing")
    with browsing.browsing(bags.path, topics=bags.topics.partition("=")[2]) as browser:
        keys = browser.list_keys()
        assert len(keys) == bags.episodes
        shown = browser.json("/api/episode", key=keys[0])
        assert (shown["steps"], shown["violations"]) == (STEPS[0], [])


def test_push(bags: Bags, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("reverb")
    push = ["push", str(bags.path), bags.topics, "--reverb=embedded", "--table=replay", "--workers=1"]
    assert main([*push, f"--checkpoint={tmp_path / 'state'}"]) == 0
    items = sum(steps - 1 for steps in STEPS[: bags.episodes])
    assert f"{items} items" in capsys.readouterr().out


@pytest.mark.parametrize("to", OUTPUTS)
def test_every_output(bags: Bags, to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out" / "1.0.0")
    flags = [*FLAGS.get(to, []), *([] if to in RUN else ["--dry_run"])]
    code = main(["convert", str(bags.path), out, f"--to={to}", bags.topics, "--workers=1", *flags])
    err = capsys.readouterr().err
    assert "Traceback" not in err
    if to in REFUSED:
        assert code == 2 and REFUSED[to] in err
        return
    assert code == 0, err
    if to in RUN:
        assert main(["validate", out, "--workers=1"]) == 0
