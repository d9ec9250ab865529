"""Datasets that LeRobot wrote, merged by us and by LeRobot: the same frames, tasks, and statistics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot_peer import FORMAT_VERSION, opened, write_with_lerobot

import rlds_beam
from rlds_beam.connectors import ArrangeDimensions, RenameFields

pytestmark = pytest.mark.skipif(FORMAT_VERSION != "3.0", reason="this LeRobot has no merge")


@pytest.mark.parametrize("kind", ["image", "video"])
def test_the_result_is_that_of_lerobots_own_merge(moving: Any, tmp_path: Path, kind: str) -> None:
    from lerobot.datasets.dataset_tools import merge_datasets

    halves = [moving[1][:2], moving[1][2:]]
    for name, episodes in zip("ab", halves, strict=True):
        write_with_lerobot(tmp_path / name, episodes, kind)
    theirs = merge_datasets([opened(tmp_path / name) for name in "ab"], "some/merged", tmp_path / "theirs")
    report = rlds_beam.convert([tmp_path / "a", tmp_path / "b"], tmp_path / "ours", to="lerobot").report
    assert (report.rejected, report.items_written) == (0, len(theirs))
    ours = opened(tmp_path / "ours")
    assert ours.num_episodes == theirs.num_episodes and ours.fps == theirs.fps
    for i in range(len(theirs)):
        one, other = ours[i], theirs[i]
        for key in ("observation.state", "action", "episode_index", "frame_index", "timestamp", "index"):
            np.testing.assert_array_equal(one[key], other[key])
        assert one["task"] == other["task"]
        np.testing.assert_array_equal(one["observation.images.top"], other["observation.images.top"])
    stats = [json.loads((tmp_path / name / "meta/stats.json").read_text()) for name in ("ours", "theirs")]
    for key in ("observation.state", "action"):
        for name in ("min", "max", "mean", "std"):
            np.testing.assert_allclose(stats[0][key][name], stats[1][key][name], rtol=1e-5, atol=1e-6)


def test_features_that_differ_are_merged_and_opened(moving: Any, tmp_path: Path) -> None:
    """What LeRobot's merge refuses: other names of cameras, and another length of the action."""
    write_with_lerobot(tmp_path / "a", moving[1][:2])
    other = [
        RenameFields({"observation/images/top": "observation/images/front"}),
        ArrangeDimensions("action", [0, 1, None]),
    ]
    rlds_beam.convert(tmp_path / "a", tmp_path / "b", to="lerobot", connectors=other)
    from lerobot.datasets.dataset_tools import merge_datasets

    with pytest.raises(ValueError, match="features"):
        merge_datasets([opened(tmp_path / name) for name in "ab"], "some/merged", tmp_path / "theirs")
    fields = tmp_path / "fields.yaml"
    fields.write_text(
        "inputs:\n- connectors:\n"
        "  - ArrangeDimensions: {field: action, order: [0, 1, null], mask: mask/action}\n"
        "- connectors:\n  - ArrangeDimensions: {field: action, order: [0, 1, 2], mask: mask/action}\n"
        "  - RenameFields: {fields: {observation/images/front: observation/images/top}}\n"
    )
    options = {"to": "lerobot", "merge_fields": str(fields), "accept": "duplicate_episode"}  # it has copies
    rlds_beam.convert([tmp_path / "a", tmp_path / "b"], tmp_path / "ours", **options)
    dataset = opened(tmp_path / "ours")
    assert dataset.num_episodes == 4 and dataset.features["action"]["shape"] == (3,)
    first, second = dataset[0], dataset[len(dataset) // 2]
    assert first["mask.action"].tolist() == [True, True, False] and second["mask.action"].tolist() == [True] * 3
    np.testing.assert_array_equal(first["observation.images.top"], second["observation.images.top"])
