"""The jobs as functions (`rlds_beam.convert` and the others): arguments, errors, and results."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import DEADLINE

import rlds_beam
from rlds_beam import UsageError
from rlds_beam.testing import make_episode, read_items, write_dataset
from rlds_beam.user_functions import qualified_name, resolve


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Two of ten episodes never end."""
    episodes = [make_episode(6, seed=i, breaks=["missing_is_last"] if i < 2 else []) for i in range(10)]
    return write_dataset(tmp_path / "data", episodes, name="toy", shards=2)


def test_the_jobs_take_paths_and_plain_options(dataset: Path, tmp_path: Path) -> None:
    report = rlds_beam.check(dataset, workers=1, rules=True).report
    assert (report.records, report.rejected) == (10, 2)
    survey = rlds_beam.inspect(dataset, repair="missing_is_last")
    outcome = rlds_beam.convert(dataset, tmp_path / "pairs", repair="missing_is_last", shards=1)
    assert outcome.report.items_written == survey.items == 50
    assert len(read_items(tmp_path / "pairs")) == 50


def test_files_may_be_a_list_of_paths(dataset: Path) -> None:
    files = sorted(dataset.glob("*.tfrecord*"))
    assert rlds_beam.inspect(files[:1]).sampled.records == 5
    assert rlds_beam.check(files, rules=True).report.records == 10


def test_stats_and_example_are_functions_like_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = rlds_beam.example(tmp_path / "data", episodes=6, broken=1)
    assert directory == str(tmp_path / "data" / "point_mass" / "1.0.0")
    outcome = rlds_beam.stats(directory, repair="missing_is_last", output=tmp_path / "stats.json", workers=1)
    assert (outcome.report.records, outcome.report.rejected, outcome.statistics["episodes"]) == (6, 0, 6)
    assert json.loads((tmp_path / "stats.json").read_text()) == outcome.statistics
    assert repr(outcome) == f"<StatsOutcome: {outcome.report.line()}>"
    print(outcome)
    table = capsys.readouterr().out
    assert table.startswith("read      6 records") and "\nepisodes  6, " in table and "\naction[0] " in table
    with pytest.raises(UsageError, match="already exists"):
        rlds_beam.example(tmp_path / "data")
    with pytest.raises(UsageError, match="unknown option --episode; did you mean --episodes"):
        rlds_beam.example(tmp_path, episode=3)
    with pytest.raises(UsageError, match="max_rejected is an option of the command only"):
        rlds_beam.stats(directory, max_rejected=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"items": "frame"}, "--items=frame: expected one of pairs, .*; did you mean frames"),
        ({"sequence_length": "8"}, "--sequence_length='8': expected int"),
        ({"observation_fields": 3}, "--observation_fields=3: expected text, not int"),
        ({"policy_info_fn": functools.partial(min, 1)}, "give a function or a class, or module:function"),
        ({"itmes": "pairs"}, "unknown option --itmes; did you mean --items"),
        ({"dry_run": True}, "dry_run is an option of the command only"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str, dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        rlds_beam.convert(dataset, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_function_by_value_is_named_by_what_it_does() -> None:
    def scale(factor: float) -> Any:
        return lambda current, following: current["reward"] * factor

    first, same, other = qualified_name(scale(2.0)), qualified_name(scale(2.0)), qualified_name(scale(3.0))
    assert first == same != other
    assert resolve(first)({"reward": 2.0}, {}) == 4.0
    assert resolve(other)({"reward": 2.0}, {}) == 6.0


SCRIPT = """
import sys, rlds_beam
FACTOR = float(sys.argv[3])

def policy_info(current, following):
    return {"scaled": current["reward"] * FACTOR}

if __name__ == "__main__":
    outcome = rlds_beam.convert(sys.argv[1], sys.argv[2], policy_info_fn=policy_info, workers=2, shards=2,
                                repair="missing_is_last")
    print(outcome.report.items_written, outcome.run is not None)
"""


def test_a_function_of_a_script_reaches_the_workers(dataset: Path, tmp_path: Path) -> None:
    """Workers do not run the script, so the function itself is sent to them; another factor makes another plan."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def run(factor: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, script, dataset, tmp_path / "out", factor]
        return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=DEADLINE, check=False)

    done = run("2")
    assert (done.returncode, done.stdout) == (0, "50 True\n"), done.stderr
    for item in read_items(tmp_path / "out"):
        np.testing.assert_allclose(item["policy_info/scaled"][:1], 2 * item["reward"][:1])
    assert run("2").stdout == "50 False\n"
    changed = run("3")
    assert changed.returncode == 1 and "UsageError" in changed.stderr


def test_a_function_next_to_a_script_reaches_the_workers(dataset: Path, tmp_path: Path) -> None:
    """Workers import the module from the script's directory, as Python does, whatever the current directory."""
    place, elsewhere = tmp_path / "place", tmp_path / "elsewhere"
    place.mkdir(), elsewhere.mkdir()
    (place / "policies_of_a_script.py").write_text(
        "def info(current, following):\n    return {'scaled': current['reward'] * 2}\n"
    )
    (place / "script.py").write_text(
        "import sys, rlds_beam\nfrom policies_of_a_script import info\n"
        "if __name__ == '__main__':\n"
        "    rlds_beam.convert(sys.argv[1], sys.argv[2], policy_info_fn=info, workers=2, shards=2,\n"
        "                      repair='missing_is_last')\n"
    )
    command = [sys.executable, place / "script.py", dataset, tmp_path / "out"]
    done = subprocess.run(
        [*map(str, command)], cwd=elsewhere, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done.stderr
    for item in read_items(tmp_path / "out"):
        np.testing.assert_allclose(item["policy_info/scaled"][:1], 2 * item["reward"][:1])
