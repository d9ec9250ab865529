"""Several datasets read as one: all episodes with one schema, or an error that names each field."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rlds_beam
from rlds_beam.errors import UsageError
from rlds_beam.formats.format_options import MergeOptions
from rlds_beam.formats.inputs import open_source
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.testing import make_episode, write_dataset


def images(length: int, height: int) -> EncodedImages:
    data = encode_jpeg(np.zeros((length, height, 8, 3), np.uint8))
    return EncodedImages(np.array([*data, None], object)[:-1], (height, 8, 3))


def dataset(folder: Path, name: str, height: int, dtype: str, seeds: range, **columns: object) -> Path:
    records = [
        make_episode(
            4,
            seed=seed,
            observation={"state": 2},
            columns={"observation/image": images(4, height), "count": np.arange(4, dtype=dtype), **columns},
            metadata={"seed": np.int32(seed)},
        )
        for seed in seeds
    ]
    write_dataset(folder, records[:1], name=name, split="val")
    return write_dataset(folder, records[1:], name=name, shards=2)


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("data")
    one = dataset(folder, "one", 8, "int32", range(4))
    return one, dataset(folder, "two", 6, "int64", range(10, 13), extra=np.zeros(4, np.float32))


def test_all_episodes_of_both_are_there(two, tmp_path):
    text = ",".join(map(str, two))
    done = rlds_beam.convert(text, tmp_path / "both", from_="merged", merge_fields="common", to="rlds", shards=2)
    assert done.report.items_written == 7
    episodes = list(rlds_beam.open_dataset(tmp_path / "both", "train", images="encoded"))
    assert [(row["source_dataset"], row["episode_metadata/seed"]) for row in episodes] == [
        *((b"one/1.0.0", seed) for seed in (1, 2, 3)),
        *((b"two/1.0.0", seed) for seed in (11, 12)),
    ]
    for row in episodes:
        made = make_episode(4, seed=int(row["episode_metadata/seed"]), observation={"state": 2})
        np.testing.assert_array_equal(row["steps/observation/state"], made.steps["observation/state"])
        assert row["steps/count"].dtype == np.int64
        assert "steps/extra" not in row
    assert len(rlds_beam.open_dataset(tmp_path / "both", "val", images="encoded")) == 2
    image = open_source(str(tmp_path / "both")).schema.steps["observation/image"]
    assert (image.shape, image.encoding) == ((None, 8, 3), "jpeg")


def test_differences_are_refused_by_field(two, tmp_path):
    with pytest.raises(UsageError, match=r"missing in one/1.0.0: extra \(--merge_fields=common leaves such"):
        open_source([str(path) for path in two], from_="merged")
    records = [make_episode(4, observation={"state": 3}, columns={"count": np.zeros(4, np.float32)})]
    other = write_dataset(tmp_path, records, name="other")
    with pytest.raises(UsageError) as refused:
        open_source([str(two[0]), str(other)], options=MergeOptions(merge_fields="common"))
    for text in (
        "observation/state: float32(2,) in one/1.0.0, float32(3,) in other",
        "count: int32() in one/1.0.0, float32() in",
    ):
        assert text in str(refused.value)
    for given, message in (([str(two[0])], "expected two or more datasets"), ([str(two[0]), str(two[0])], None)):
        if message is None:
            assert open_source(given, from_="merged").episodes == 8
        else:
            with pytest.raises(UsageError, match=message):
                open_source(given, from_="merged")
    with pytest.raises(UsageError, match="nor slices"):
        open_source([str(path) for path in two], "train[:1]", from_="merged")


def test_a_dataset_without_splits_is_refused(two):
    """Otherwise, its episodes would be missing without a word."""
    one, other = two
    info = other / "dataset_info.json"
    content = info.read_text()
    info.write_text(content.replace('"splits"', '"parts"'))
    try:
        with pytest.raises(UsageError, match=f"{other} has no episodes: it has no splits"):
            open_source(f"{one},{other}", from_="merged", options=MergeOptions(merge_fields="common"))
    finally:
        info.write_text(content)
