"""A dataset that grew by `--append`, opened by LeRobot: the frames of one conversion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot_data import moving_episode
from lerobot_peer import OPTIONS, opened

import rlds_beam
from rlds_beam.testing import write_dataset


@pytest.mark.parametrize("images", ["copy", "video"])
def test_an_appended_dataset_is_that_of_one_conversion(tmp_path: Path, images: str) -> None:
    episodes = [moving_episode(length) for length in (5, 8, 7, 6)]
    days = [str(write_dataset(tmp_path / name, e, name=name)) for name, e in (("a", episodes[:2]), ("b", episodes[2:]))]
    options: dict[str, Any] = {**OPTIONS, "images": images}
    rlds_beam.convert(days[0], tmp_path / "out", **options)
    before = opened(tmp_path / "out")
    assert len(before) == 13
    rlds_beam.convert(days[1], tmp_path / "out", append=True, **options)
    np.testing.assert_array_equal(before[12]["action"], episodes[1].steps["action"][7])  # opened earlier: it goes on
    whole = rlds_beam.convert(days, tmp_path / "whole", **options)
    assert whole.report.items_written == 26
    grown, expected = opened(tmp_path / "out"), opened(tmp_path / "whole")
    assert (grown.num_episodes, len(grown)) == (4, 26) == (expected.num_episodes, len(expected))
    for i in range(26):
        for key in set(expected[i]) & set(grown[i]):
            if key.startswith("observation.images") and images == "video":  # coded in other groups of frames
                np.testing.assert_allclose(grown[i][key], expected[i][key], rtol=0, atol=0.05, err_msg=key)
            else:
                np.testing.assert_array_equal(grown[i][key], expected[i][key], err_msg=key)
    stats = [json.loads((tmp_path / name / "meta/stats.json").read_text()) for name in ("out", "whole")]
    for key in ("action", "observation.state"):
        for name in ("min", "max", "mean", "std"):
            np.testing.assert_allclose(stats[0][key][name], stats[1][key][name], rtol=1e-6, atol=1e-7)
