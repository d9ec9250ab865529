"""Images without a size in the schema: all must have the first one's size, or their episode is rejected."""

from __future__ import annotations

import dataclasses

import lerobot_data as data
import numpy as np
import pytest

from rlds_beam.errors import UsageError
from rlds_beam.images.encoding import encode_jpeg
from rlds_beam.testing import make_episode, write_dataset


def episode(size: int, seed: int, *, channels: int | None = 3):
    made = make_episode(3, seed=seed, observation={"state": 2})
    pixels = np.random.default_rng(seed).integers(0, 255, (3, size, size, 3), np.uint8)
    picture = data.images(encode_jpeg(pixels), (None, None, channels))
    return dataclasses.replace(made, steps={**made.steps, "observation/image": picture})


@pytest.mark.parametrize("version", ["3.0", "2.1"])
def test_all_images_must_have_the_first_size(tmp_path, version):
    source = write_dataset(tmp_path, [episode(16, 0), episode(24, 1), episode(16, 2)], name="open", shards=2)
    out = tmp_path / "out"
    report = data.convert_here(source, out, lerobot_version=version)
    assert (report.valid, report.rejected) == (2, 1)
    assert "24x24" in (out / "rejected" / next(p.name for p in (out / "rejected").glob("*.jsonl"))).read_text()
    assert data.meta(out, "info")["features"]["observation.images.image"]["shape"] == [16, 16, 3]
    found = data.read_episodes(str(out), "lerobot")
    assert [e.steps["observation/image"].shape for e in found] == [(None, None, 3)] * 2
    for one, seed in zip(found, (0, 2), strict=True):
        assert list(one.steps["observation/image"]) == list(episode(16, seed).steps["observation/image"])


def test_a_dataset_without_a_valid_episode_is_refused(tmp_path):
    broken = dataclasses.replace(episode(16, 0))
    broken.steps["observation/image"].data[:] = b"no image"
    source = write_dataset(tmp_path, [broken], name="open")
    with pytest.raises(UsageError, match="images of unknown size"):
        data.convert_here(source, tmp_path / "out")
