"""The pipelines of public transforms write what the jobs write, on each runner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apache_beam.testing.util import assert_that, equal_to
from beam_runners import RUNNERS, new_pipeline, runner_flags

from rlds_beam import CheckOptions, ItemOptions
from rlds_beam.cli.main import main as rlds_beam
from rlds_beam.connectors import Connector, MinimumLength, SubsampleSteps
from rlds_beam.output.commits import read_manifest
from rlds_beam.pipelines.rlds_to_trajectories import define_pipeline, main
from rlds_beam.testing import make_episode, read_items, read_rejected, shard_paths, write_dataset


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three shards with a repeated, a broken, and a one-step episode."""
    episodes = [make_episode(n, seed=n, observation={"b": 2, "a": (2, 2)}) for n in (4, 1, 7, 3, 12, 5)]
    broken = make_episode(4, seed=50, observation={"b": 2, "a": (2, 2)}, breaks=["missing_is_last"])
    return write_dataset(tmp_path / "data", [*episodes, broken, episodes[2]], shards=3)


def converted(data: Path, output: Path, *flags: str) -> Path:
    assert rlds_beam(["convert", str(data), str(output), *flags]) in (0, 3)
    return output


def contents(output: Path) -> tuple[list[Any], list[Any]]:
    """The items and the rejected records, as bytes and in one order."""
    items = [{path: np.asarray(leaf).tobytes() for path, leaf in item.items()} for item in read_items(output)]
    rejected = [(line["key"], line["rule"], payload) for line, payload in read_rejected(output)]
    return sorted(map(sorted, map(dict.items, items))), sorted(rejected)


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_command_line_writes_the_pairs_of_convert(tmp_path: Path, data: Path, runner: str) -> None:
    main([f"--input={data}", f"--output={tmp_path / 'pairs'}", *runner_flags(runner)])
    items, rejected = contents(tmp_path / "pairs")
    assert (items, rejected) == contents(converted(data, tmp_path / "expected"))
    assert len(items) == 26 and [rule for _, rule, _ in rejected] == ["missing_is_last", "duplicate_episode"]


def test_padded_sequences_connectors_and_repairs_are_those_of_convert(tmp_path: Path, data: Path) -> None:
    options = {"items": "sequences", "sequence_length": 5, "pad_end_of_episodes": True, "tile_end_of_episodes": True}
    with new_pipeline() as root:
        written = define_pipeline(
            root,
            str(data),
            str(tmp_path / "out"),
            ItemOptions(**options),
            check=CheckOptions(repair=("missing_is_last",)),
            connectors=[MinimumLength(4)],
        )
        assert_that(written.rejected, equal_to([]), label="rejected")
    flags = [f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items()]
    flags += ["--repair=missing_is_last", "--connectors=MinimumLength(4)"]
    items, rejected = contents(tmp_path / "out")
    assert (items, rejected) == contents(converted(data, tmp_path / "expected", *flags))
    assert len(items) == 7 + 12 + 5  # MinimumLength counts transitions


def test_one_shard_has_the_bytes_of_convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_dataset(tmp_path / "data", [make_episode(3 + i, seed=i) for i in range(5)])
    with new_pipeline() as root:
        define_pipeline(root, str(data), str(tmp_path / "out"))
    expected = shard_paths(converted(data, tmp_path / "expected"))
    assert [(path.name, path.read_bytes()) for path in shard_paths(tmp_path / "out")] == [
        (path.name, path.read_bytes()) for path in expected
    ]
    assert rlds_beam(["inspect", str(tmp_path / "out")]) == 2
    assert "out holds 20 items (trajectories) written by a pipeline, not episodes" in capsys.readouterr().err


@pytest.mark.parametrize("connectors", [[], [SubsampleSteps(2)]])
def test_rate_robot_names_and_metadata_are_those_of_convert(tmp_path: Path, connectors: list[Connector]) -> None:
    """SubsampleSteps keeps one step of two, so it halves the rate."""
    episodes = [make_episode(9, seed=i, observation={"state": 2}, action=3) for i in range(2)]
    data = write_dataset(tmp_path / "data", episodes)
    meaning = {"fps": 30, "robot": "arm", "names": {"action": ["x", "y", "z"], "observation/state": ["u", "v"]}}
    (data / "meaning.json").write_text(json.dumps(meaning))
    with new_pipeline() as root:
        define_pipeline(root, str(data), str(tmp_path / "out"), connectors=connectors)
    flags = ["--connectors=SubsampleSteps(2)"] if connectors else []
    expected = read_manifest(str(converted(data, tmp_path / "expected", *flags)))
    manifest = read_manifest(str(tmp_path / "out"))
    assert manifest["meaning"] == {**meaning, "fps": 15 if connectors else 30}
    assert {**manifest, "plan_sha256": ""} == {**expected, "plan_sha256": ""}
    for file in ("features.json", "dataset_info.json"):
        assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "expected" / file).read_bytes()
