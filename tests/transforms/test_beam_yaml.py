"""The transforms for Beam YAML name their outputs and take paths. `make test-peers PEERS=beam_yaml` runs Beam YAML."""

from __future__ import annotations

from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to
from beam_runners import new_pipeline

import rlds_beam
from rlds_beam.errors import UsageError
from rlds_beam.testing import make_episode, write_dataset
from rlds_beam.transforms import ReadFromRlds
from rlds_beam.transforms.beam_yaml import episodes_to_rows, validate_episodes, write_episodes


@pytest.fixture
def data(tmp_path: Path) -> str:
    episodes = [make_episode(n, seed=n) for n in (3, 5)]
    broken = make_episode(4, breaks=["missing_is_last"])
    return str(write_dataset(tmp_path / "data", [*episodes, broken], shards=2))


@pytest.mark.parametrize(("repair", "accepted"), [((), [3, 5]), ("missing_is_last", [3, 4, 5])])
def test_outputs_have_names(tmp_path: Path, data: str, repair: str, accepted: list[int]) -> None:
    with new_pipeline() as root:
        checked = root | ReadFromRlds(data) | validate_episodes(repair=repair)
        assert {*checked} == {"accepted", "rejected", "report"}
        assert_that(checked["accepted"] | beam.Map(len), equal_to(accepted))
        written = checked["accepted"] | write_episodes(str(tmp_path / "out"), data, "zarr", compressor="zstd")
        assert {*written} == {"report", "rejected"}
        steps = checked["accepted"] | episodes_to_rows(data, ["reward"]) | beam.combiners.Count.Globally()
        assert_that(steps, equal_to([sum(accepted)]), label="steps")
    lengths = [len(episode["steps/reward"]) for episode in rlds_beam.open_dataset(tmp_path / "out", unit="episodes")]
    assert sorted(lengths) == accepted


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(UsageError, match="repairs"):
        validate_episodes(repairs="missing_is_last")
