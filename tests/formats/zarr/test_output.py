"""`--to=zarr` writes replay buffers that the zarr library and diffusion policy's ReplayBuffer open."""

from __future__ import annotations

import numpy as np
import pytest
from exchanging import assert_equal, export, plain, read_back, rich_dataset

from rlds_beam.formats.inputs import open_source
from rlds_beam.formats.profiles.zarr_store import ZarrContainer, open_store
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.testing import make_episode, read_rejected, write_dataset


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    return rich_dataset(tmp_path_factory.mktemp("rich"))


@pytest.mark.parametrize("options", [{}, {"images": "jpegxl"}, {"compressor": "zstd"}], ids=str)
def test_a_round_trip_is_exact(rich, tmp_path, options):
    export(rich[0], tmp_path / "out", "zarr", **options)
    back = read_back(tmp_path / "out", "zarr", ranges=2)
    for found, expected in zip(back, rich[1], strict=True):
        image = found.steps["observation/image"]
        assert isinstance(image, EncodedImages)
        decoded = expected.steps["observation/image"].decode()
        pixels = {"observation/image": decoded}
        assert_equal(
            found.replace(steps={**found.steps, "observation/image": image.decode()}),
            expected.replace(steps={**expected.steps, **pixels}),
        )
        metadata = {path.split("/")[-1]: value for path, value in found.metadata.items()}
        assert metadata["episode_id"] == expected.metadata["episode_id"].encode()
        assert metadata["seed"] == expected.metadata["seed"]
        assert metadata["pose"].tolist() == expected.metadata["pose"].tolist()


def test_dtypes_shapes_and_large_rows(tmp_path):
    columns = {
        "observation/big": np.arange(5 * 200 * 200, dtype=np.float32).reshape(5, 200, 200),
        "observation/none": np.zeros((5, 0, 3), np.float32),
        "observation/half": np.arange(5, dtype=np.float16),
        "observation/wide": np.arange(5, dtype=np.uint64) + (1 << 60),
        "observation/pixels": np.arange(5 * 48, dtype=np.uint8).reshape(5, 4, 4, 3),
        "text": np.array([b"x" * (i * 200) for i in range(5)], object),
        "action/arm": np.ones((5, 2)),
        "action/hand": np.zeros(5, np.int8),
        "observation/arm": np.ones(5),
        "arm": np.zeros(5),
    }
    made = [make_episode(5, seed=seed, observation={"x": 2}, columns=columns) for seed in range(2)]
    made = [episode.replace(steps={p: c for p, c in episode.steps.items() if p != "action"}) for episode in made]
    export(write_dataset(tmp_path / "data", made), tmp_path / "out", "zarr")
    store = open_store(str(tmp_path / "out" / "train.zarr.zip"))
    assert {"data/arm", "data/observation_arm", "data/action_arm"} <= {*ZarrContainer(store).leaves}
    for found, expected in zip(read_back(tmp_path / "out", "zarr"), made, strict=True):
        assert_equal(found, expected)


def test_several_splits(tmp_path):
    for split, count in (("train", 4), ("test", 2)):
        data = write_dataset(tmp_path / "data", [make_episode(3, seed=i) for i in range(count)], split=split)
    export(data, tmp_path / "out", "zarr")
    source = open_source(str(tmp_path / "out"), from_="zarr")
    assert {split.name: split.episodes for split in source.splits} == {"train": 4, "test": 2}
    assert len(read_back(tmp_path / "out", "zarr", split="test")) == 2


def test_text_that_arrays_of_bytes_cannot_hold(tmp_path):
    made = make_episode(3, columns={"text": np.array([b"a", b"b\0", b""], object)})
    report = export(
        write_dataset(tmp_path / "data", [made, make_episode(3, columns={"text": [b"", b"\0c", b""]})]),
        tmp_path / "out",
        "zarr",
    )
    assert (report.items_written, report.rejected) == (1, 1)
    ((line, _),) = read_rejected(tmp_path / "out")
    assert "ends with a zero byte" in line["detail"]
    assert plain(read_back(tmp_path / "out", "zarr")[0].steps["text"]) == [b"", b"\0c", b""]
