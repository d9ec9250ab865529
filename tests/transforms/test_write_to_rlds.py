"""WriteToRlds writes the bytes of write_rlds, with any number of workers and in any order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

import rlds_beam
from rlds_beam import CheckOptions
from rlds_beam.errors import FailedRuleError, UsageError
from rlds_beam.testing import read_rejected
from rlds_beam.transforms import WriteToRlds


def episode(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    steps = 3 + number % 4
    pixels = rng.integers(0, 255, (steps, 8, 8, 3), np.uint8)
    return {
        "observation": {"image": pixels, "state": rng.normal(size=(steps, 3))},
        "action": rng.normal(size=(steps - 1, 2)),
        "task": f"task {number}",
        "metadata": {"number": number},
    }


def keyed(number: int) -> tuple[int, dict[str, Any]]:
    return number, episode(number)


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def run(directory: Path, numbers: dict[str, list[int]], workers: int = 1, flags: tuple[str, ...] = ()) -> None:
    options = [f"--direct_num_workers={workers}", *flags]
    options += ["--direct_running_mode=multi_processing"] if workers > 1 else []
    with beam.Pipeline("FnApiRunner" if workers == 1 else "DirectRunner", PipelineOptions(options)) as root:
        episodes = {
            split: root
            | f"{split}" >> beam.Create(own)
            | f"spread {split}" >> beam.Reshuffle()
            | f"make {split}" >> beam.Map(keyed)
            for split, own in numbers.items()
        }
        episodes | WriteToRlds(directory, like=episode(0), num_shards=3)


@pytest.mark.parametrize(("workers", "flags"), [(1, ()), (2, ()), (1, ("--direct_runner_bundle_repeat=1",))])
def test_the_bytes_are_those_of_write_rlds(tmp_path, workers, flags) -> None:
    splits = {"train": [*range(12)], "val": [20, 21]}
    own = {split: [episode(i) for i in numbers] for split, numbers in splits.items()}
    rlds_beam.write_rlds(tmp_path / "a" / "1.0.0", own, num_shards=3)
    run(tmp_path / "b" / "a" / "1.0.0", {name: one[::-1] for name, one in splits.items()}, workers, flags)
    expected, written = files(tmp_path / "a" / "1.0.0"), files(tmp_path / "b" / "a" / "1.0.0")
    assert expected.keys() == written.keys()
    assert [name for name in expected if expected[name] != written[name]] == []
    assert len([name for name in written if "-of-" in name]) == 5
    assert not (tmp_path / "b" / "a" / "1.0.0" / "_parts").exists()
    assert rlds_beam.check(tmp_path / "b" / "a" / "1.0.0", rules=True).report.valid == 14


def test_bad_episodes_are_set_aside(tmp_path) -> None:
    content = [("a", episode(0)), ("b", {"observation": 1}), ("d", episode(3))]
    run_content(tmp_path / "d", content)
    rejected = [(line["id"], line["rule"]) for line, _ in read_rejected(tmp_path / "d")]
    assert rejected == [("b", "missing_field")]
    assert rlds_beam.check(tmp_path / "d", rules=True).report.valid == 2


def run_content(directory: Path, content: list[Any], **options: Any) -> None:
    with beam.Pipeline("FnApiRunner") as root:
        root | beam.Create(content) | WriteToRlds(directory, like=episode(0), **options)


def test_a_rule_that_fails_ends_the_pipeline(tmp_path) -> None:
    check = CheckOptions(fail=("missing_field",))
    with pytest.raises(Exception, match="missing_field"):
        run_content(tmp_path / "d", [("a", episode(0)), ("b", {"observation": 1})], check=check)
    assert not (tmp_path / "d" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([(1, episode(0)), (1, episode(1))], "have the key 1"),
        ([(1.5, episode(0))], "expected text or an integer"),
        ([episode(0)], r"expected \(key, episode\)"),
    ],
)
def test_what_cannot_be_ordered_is_refused(tmp_path, content, said) -> None:
    with pytest.raises(Exception, match=said):
        run_content(tmp_path / "d", content)


def test_a_bad_example_and_a_finished_directory_are_refused(tmp_path) -> None:
    with pytest.raises(FailedRuleError, match="episode like: missing_field"):
        WriteToRlds(tmp_path / "d", like={"observation": [1]})
    rlds_beam.write_rlds(tmp_path / "d", [episode(0)])
    with pytest.raises(UsageError, match="overwrite=True"):
        WriteToRlds(tmp_path / "d", like=episode(0))
