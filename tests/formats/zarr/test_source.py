"""Replay buffers of diffusion policy and UMI, as the zarr library writes them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bucket_servers import upload
from exchanging import export, plain, read_back
from memory_store import memory_store
from zarr_data import change_metadata, episode_arrays, open_zip, write_buffer

from rlds_beam.errors import UsageError
from rlds_beam.formats.format_options import ProfileOptions
from rlds_beam.formats.inputs import open_source
from rlds_beam.formats.profiles.source import ZarrSource
from rlds_beam.formats.recognition import recognize
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader

LENGTHS = (5, 1, 12, 9)


def rows_of(arrays: dict[str, Any], number: int) -> dict[str, Any]:
    """The rows of an episode."""
    ends = np.cumsum([0, *LENGTHS])
    return {name: values[ends[number] : ends[number + 1]] for name, values in arrays.items()}


def assert_buffer(path: Any, arrays: dict[str, Any], ranges: int = 2) -> None:
    episodes = read_back(path, "zarr", ranges=ranges)
    assert [len(episode) for episode in episodes] == [*LENGTHS]
    for number, episode in enumerate(episodes):
        assert episode.faults == ()
        for name, values in rows_of(arrays, number).items():
            column = episode.steps[name if name == "action" else f"observation/{name}"]
            found = column.decode() if isinstance(column, EncodedImages) else np.asarray(column)
            assert found.dtype == values.dtype.newbyteorder("=")
            assert found.tolist() == values.tolist()
        assert plain(episode.steps["is_first"]) == [i == 0 for i in range(len(episode))]
        assert plain(episode.steps["is_last"]) == [i == len(episode) - 1 for i in range(len(episode))]
        assert not episode.steps["is_terminal"].any() and not episode.steps["reward"].any()


@pytest.mark.parametrize("ranges", [1, 3])
@pytest.mark.parametrize("name", ["push.zarr", "push.zarr.zip"])
def test_a_buffer_of_diffusion_policy(tmp_path, name, ranges):
    arrays = episode_arrays(LENGTHS)
    path = write_buffer(tmp_path / name, arrays, LENGTHS)
    assert_buffer(path, arrays, ranges)
    source = open_source(str(path), from_="zarr")
    assert (source.name, source.episodes) == ("push", 4)
    assert str(source.schema.steps["observation/img"]) == "observation/img: uint8(16, 16, 3) png"
    assert source.details.notes == ("profile replay_buffer", "no reward is recorded: it is 0")


def test_images_of_umi_are_decoded(tmp_path):
    pytest.importorskip("zarr")
    from imagecodecs.numcodecs import Jpeg2k, Jpegxl, register_codecs

    register_codecs(verbose=False)
    arrays = episode_arrays(LENGTHS)
    arrays = {
        "camera0_rgb": arrays["img"],
        "camera1_rgb": arrays["img"][::-1].copy(),
        "camera2_rgb": arrays["img"] // 2,
    }
    path = write_buffer(
        tmp_path / "umi.zarr.zip",
        arrays,
        LENGTHS,
        chunks={name: (4 if name == "camera2_rgb" else 1, 16, 16, 3) for name in arrays},
        compressors={"camera0_rgb": Jpegxl(lossless=True), "camera1_rgb": Jpeg2k(level=0), "camera2_rgb": Jpegxl()},
    )
    assert_buffer(path, arrays)


@pytest.mark.parametrize("options", [{"order": "F"}, {"dimension_separator": "/"}])
def test_layouts_of_chunks(tmp_path, options):
    arrays = episode_arrays(LENGTHS)
    arrays["state"] = arrays["state"].astype(">f4")
    chunks = {"img": (3, 5, 16, 2), "keypoint": (2, 4, 2), "state": (100, 8)}
    assert_buffer(write_buffer(tmp_path / "x.zarr", arrays, LENGTHS, chunks=chunks, **options), arrays)


def test_roles_and_kinds_of_arrays(tmp_path):
    steps = sum(LENGTHS)
    arrays = {
        "actions": np.arange(steps * 2.0).reshape(steps, 2),
        "reward": np.arange(steps, dtype=np.float32)[:, None],
        "depth": np.ones((steps, 16, 16), np.uint16),
        "first_pixels": np.zeros((steps, 3, 16, 16), np.uint8),
        "gray": np.full((steps, 16, 16, 1), 7, np.uint8),
        "task": np.array([f"é{i}" for i in range(steps)], "U5"),
    }
    meta = {"seed": np.arange(4), "name": np.array([b"a", b"bb", b"", b"d"]), "other": np.arange(9)}
    path = write_buffer(tmp_path / "x.zarr", arrays, LENGTHS, meta=meta)
    source = open_source(str(path), from_="zarr")
    assert str(source.schema.steps["reward"]) == "reward: float32()"
    assert {"is_first", "is_last", "is_terminal", "discount"} <= source.schema.steps.keys()
    assert source.schema.steps["observation/first_pixels"].encoding == "none"
    assert source.schema.steps["observation/gray"].encoding == "png"
    assert [*source.schema.metadata] == ["name", "seed"]
    third = read_back(path, "zarr")[2]
    assert third.faults == ()
    assert third.steps["action"].tolist() == arrays["actions"][6:18].tolist()
    assert third.steps["reward"].tolist() == [*range(6, 18)]
    assert list(third.steps["observation/task"])[:2] == ["é6".encode(), "é7".encode()]
    assert (third.metadata["seed"], third.metadata["name"]) == (2, b"")
    gray = third.steps["observation/gray"]
    assert isinstance(gray, EncodedImages) and (gray.decode() == 7).all()
    raw = ZarrSource.open(str(path), options=ProfileOptions(raw_images="raw"))
    (work,) = plan_ranges(raw)
    gray = next(EpisodeReader(raw).read(work.split, work.segments[0])).steps["observation/gray"]
    assert isinstance(gray, np.ndarray) and gray.dtype == np.uint8 and (gray == 7).all()
    jpegs = ZarrSource.open(str(path), options=ProfileOptions(raw_images="jpeg"))
    assert jpegs.schema.steps["observation/gray"].encoding == "jpeg"
    gray = next(EpisodeReader(jpegs).read(work.split, work.segments[0])).steps["observation/gray"]
    assert isinstance(gray, EncodedImages) and gray.image(0).startswith(b"\xff\xd8") and (gray.decode() == 7).all()


def test_text_of_varying_length(tmp_path):
    zarr = pytest.importorskip("zarr")
    if not zarr.__version__.startswith("2."):
        pytest.skip("zarr 3 writes such text differently in version 2 of the format")
    import numcodecs

    arrays = episode_arrays(LENGTHS)
    path = write_buffer(tmp_path / "x.zarr", arrays, LENGTHS)
    texts = np.array([f"step é {i}" * (i % 3) for i in range(sum(LENGTHS))], object)
    zarr.open(str(path), "a")["data"].array("text", texts, chunks=(4,), object_codec=numcodecs.VLenUTF8())
    back = read_back(path, "zarr")
    assert list(back[1].steps["observation/text"]) == [texts[5].encode()]
    change_metadata(path / "data" / "text", filters=[{"id": "pickle"}])
    with pytest.raises(UsageError, match="data/text is stored with the codec pickle"):
        open_source(str(path), from_="zarr")


def test_version_3(tmp_path):
    zarr = pytest.importorskip("zarr")
    if zarr.__version__.startswith("2."):
        pytest.skip("zarr 2 writes only version 2")
    arrays = episode_arrays(LENGTHS)
    root = zarr.open_group(str(tmp_path / "x.zarr"), mode="w", zarr_format=3)
    for name, values in arrays.items():
        root.create_array(f"data/{name}", data=values, chunks=(5, *values.shape[1:]))
    root.create_array("meta/episode_ends", data=np.cumsum(LENGTHS))
    assert_buffer(tmp_path / "x.zarr", arrays)


def test_several_stores_are_shards(tmp_path):
    arrays = episode_arrays(LENGTHS)
    for name in ("a.zarr", "b.zarr.zip"):
        write_buffer(tmp_path / name, arrays, LENGTHS)
    shutil.rmtree(tmp_path / "b.zarr")
    source = open_source(str(tmp_path), from_="zarr")
    assert [shard.records for shard in source.splits[0].shards] == [4, 4]
    assert len(read_back(tmp_path, "zarr", ranges=3)) == 8
    assert open_source(str(tmp_path), from_="zarr", split="train[2:5]").episodes == 3
    named = f"{tmp_path / 'a.zarr'},{tmp_path / 'b.zarr.zip'}"
    assert open_source(named, from_="zarr").episodes == 8


def test_data_without_actions(tmp_path):
    arrays = episode_arrays(LENGTHS)
    del arrays["action"]
    path = write_buffer(tmp_path / "x.zarr", arrays, LENGTHS)
    source = open_source(str(path), from_="zarr")
    assert "no action (see NextStateAsAction)" in source.describe()
    assert "action" not in source.schema.steps
    assert_buffer(path, arrays)


@pytest.mark.parametrize("images", ["blosc", "jpegxl"])
def test_a_buffer_is_written_as_it_was_read(tmp_path, images):
    pytest.importorskip("zarr")
    from imagecodecs.numcodecs import register_codecs

    register_codecs(verbose=False)
    arrays = episode_arrays(LENGTHS)
    export(write_buffer(tmp_path / "push.zarr", arrays, LENGTHS), tmp_path / "out", "zarr", images=images)
    root = open_zip(tmp_path / "out" / "train.zarr.zip")
    assert root["meta"]["episode_ends"][:].tolist() == np.cumsum(LENGTHS).tolist()
    for key in root["data"]:
        assert root["data"][key].shape[0] == sum(LENGTHS), key  # ReplayBuffer.__init__
    for key, values in arrays.items():
        assert root["data"][key].dtype == values.dtype and np.array_equal(root["data"][key][:], values)


@pytest.fixture
def store() -> Iterator[str]:
    with memory_store() as root:
        yield root


@pytest.mark.parametrize("name", ["x.zarr", "x.zarr.zip"])
def test_a_buffer_in_a_bucket(tmp_path: Path, store: str, name: str) -> None:
    path = write_buffer(tmp_path / name, episode_arrays(LENGTHS), LENGTHS)
    far = upload(path, f"{store}/in/{name}")
    assert recognize(far).format == recognize(f"{store}/in").format == "zarr"
    for one, other in zip(read_back(path, "zarr"), read_back(far, "zarr"), strict=True):
        assert not other.faults and one.payload == other.payload
