"""Replay buffers of diffusion policy and UMI, as the zarr library writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from exchanging import export, plain, read_back
from zarr_data import change_metadata, episode_arrays, open_zip, write_buffer

from rlds_beam.errors import UsageError
from rlds_beam.formats.format_options import ProfileOptions
from rlds_beam.formats.inputs import open_source
from rlds_beam.formats.profiles.source import ZarrSource
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
    assert source.notes == ("profile replay_buffer", "no reward is recorded: it is 0")


def codecs() -> dict[str, Any]:
    numcodecs = pytest.importorskip("numcodecs")
    names = {
        f"blosc {name}": numcodecs.Blosc(name, 5, i % 3) for i, name in enumerate(("lz4", "lz4hc", "zstd", "zlib"))
    }
    others = {"lz4": numcodecs.LZ4(), "zstd": numcodecs.Zstd(), "zlib": numcodecs.Zlib(), "gzip": numcodecs.GZip()}
    return {**names, **others, "bz2": numcodecs.BZ2(), "none": None}


@pytest.mark.parametrize(
    "name", ["blosc lz4", "blosc lz4hc", "blosc zstd", "blosc zlib", "lz4", "zstd", "zlib", "gzip", "bz2", "none"]
)
def test_compressors(tmp_path, name):
    arrays = episode_arrays(LENGTHS)
    codec = codecs()[name]
    path = write_buffer(tmp_path / "x.zarr", arrays, LENGTHS, compressors=dict.fromkeys(arrays, codec))
    assert_buffer(path, arrays)


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
    (tmp_path / "b.zarr").rename(tmp_path / "not_listed")
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


zarr = pytest.importorskip("zarr")
STEPS = (5, 1, 12, 9)
HORIZON, BEFORE, AFTER = 8, 1, 7

Root: TypeAlias = "Mapping[str, Mapping[str, Any]]"


def on_disk(path: Path) -> Any:
    """`create_from_path`: the arrays stay in the file."""
    return open_zip(path)


def in_numpy(path: Path) -> Root:
    """`copy_from_path`: all arrays in memory."""
    root = on_disk(path)
    return {group: {key: root[group][key][:] for key in root[group].array_keys()} for group in ("meta", "data")}


def in_memory(path: Path) -> Any:
    """`copy_from_path(store=zarr.MemoryStore())`: chunks are copied to memory as they are."""
    if not zarr.__version__.startswith("2."):
        pytest.skip("zarr 3 has no copy_store")
    source, store = zarr.open(str(path), "r").store, zarr.MemoryStore()
    root = zarr.group(store=store)
    zarr.copy_store(source, store, source_path="/meta", dest_path="/meta", if_exists="replace")
    root.create_group("data", overwrite=True)
    for key in zarr.group(source)["data"].keys():  # noqa: SIM118
        zarr.copy_store(source, store, source_path=f"/data/{key}", dest_path=f"/data/{key}", if_exists="replace")
    return root


def sequences(root: Root, key: str) -> Iterator[Any]:
    """Every sequence of the sampler: `HORIZON` rows of an episode, padded with its first and last row."""
    values, start = root["data"][key], 0
    for end in root["meta"]["episode_ends"][:]:
        for index in range(-BEFORE, end - start - HORIZON + AFTER + 1):
            first, last = max(index, 0) + start, min(index + HORIZON, end - start) + start
            sample = values[first:last]
            before, after = first - (index + start), index + HORIZON + start - last
            yield np.concatenate([sample[:1].repeat(before, 0), sample, sample[-1:].repeat(after, 0)])
        start = end


@pytest.fixture(scope="module", params=["blosc", "jpegxl"])
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A buffer that was converted to a buffer."""
    from imagecodecs.numcodecs import register_codecs

    register_codecs(verbose=False)
    home = tmp_path_factory.mktemp("converted")
    path = write_buffer(home / "push.zarr", episode_arrays(STEPS), STEPS)
    export(path, home / "out", "zarr", images=request.param)
    return home / "out" / "train.zarr.zip"


@pytest.mark.parametrize("opened", [on_disk, in_numpy, in_memory])
def test_the_buffer_that_was_read_is_written(converted: Path, opened: Callable[[Path], Any]) -> None:
    root, arrays = opened(converted), episode_arrays(STEPS)
    assert root["meta"]["episode_ends"][:].tolist() == np.cumsum(STEPS).tolist()
    for key in root["data"]:
        assert root["data"][key].shape[0] == sum(STEPS), key  # ReplayBuffer.__init__
    expected = {"data": arrays, "meta": {"episode_ends": np.cumsum(STEPS)}}
    for key, values in arrays.items():
        assert root["data"][key].dtype == values.dtype and np.array_equal(root["data"][key][:], values)
        found = [*sequences(root, key)]
        assert len(found) == sum(max(0, length - HORIZON + AFTER + BEFORE + 1) for length in STEPS)
        assert all(np.array_equal(one, other) for one, other in zip(found, sequences(expected, key), strict=True))
