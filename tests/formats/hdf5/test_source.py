"""Profiles in use: rewards, ends, texts, and images; optional attributes; files in buckets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bucket_servers import upload
from exchanging import export, read_back
from hdf5_robots import BUILDERS, droid, isaaclab, robomimic
from memory_store import memory_store, put

from rlds_beam.episodes.episode import Episode
from rlds_beam.formats.format_options import ProfileOptions
from rlds_beam.formats.inputs import open_source
from rlds_beam.formats.profiles import episodes
from rlds_beam.formats.profiles.source import Hdf5Source
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.remote import Filesystem, open_store

PANDA = ("eef_pos", "eef_quat", "gripper_qpos")
REWARDED = ("libero", "robomimic")
TERMINAL = (*REWARDED, "isaaclab")  # of isaaclab's episodes, those with an even number


@pytest.mark.parametrize("name", BUILDERS)
def test_rewards_and_ends(name: str, tmp_path: Path) -> None:
    BUILDERS[name](tmp_path, [4, 4, 4])
    for i, episode in enumerate(read_back(tmp_path, "hdf5")):
        rewards = [0.0] * 3 + [1.0 if name in REWARDED else 0.0]
        rewards += [0.0] if name == "robomimic" else []  # next_obs: the last step has a void action and reward
        assert episode.steps["reward"].tolist() == rewards
        ended = name in TERMINAL and (name != "isaaclab" or i % 2 == 0)
        assert episode.steps["is_terminal"].tolist() == [False] * (len(rewards) - 1) + [ended]
        assert episode.steps["is_last"].tolist() == [False] * (len(rewards) - 1) + [True]
        steps, zeros = len(rewards), 2 if name == "robomimic" else 1  # the action into a terminal state, and a void one
        expected = [1.0] * (steps - zeros) + [0.0] * zeros if ended else [1.0] * steps
        assert episode.steps["discount"].tolist() == expected


def test_a_state_is_joined_from_the_vectors_that_an_episode_has(tmp_path: Path) -> None:
    """Of two arms, all vectors; without one of an arm's, there is no state."""
    h5py = pytest.importorskip("h5py")
    robomimic(tmp_path, [4, 5])
    path = tmp_path / "low_dim.hdf5"
    with h5py.File(path, "a") as file:
        groups = [demo[kind] for demo in file["data"].values() for kind in ("obs", "next_obs")]
        for group in groups:
            for name in ("eef_pos", "eef_quat", "gripper_qpos"):
                group[f"robot1_{name}"] = group[f"robot0_{name}"][()].astype(np.float32) + 1
        first = file["data/demo_0"]
        rows = [
            np.concatenate([first[f"{kind}/robot{arm}_{name}"] for arm in (0, 1) for name in PANDA], axis=1)
            for kind in ("obs", "next_obs")
        ]
    state = next(iter(read_back(tmp_path, "hdf5"))).steps["observation/state"]
    np.testing.assert_array_equal(state, np.concatenate([rows[0], rows[1][-1:]]))
    names = open_source(str(tmp_path)).schema.names["observation/state"]
    assert names[::9] == ("robot0_x", "robot1_x") and len(names) == 18
    with h5py.File(path, "a") as file:
        for demo in file["data"].values():
            del demo["obs/robot0_eef_quat"]
    assert "observation/state" not in open_source(str(tmp_path)).schema.steps


@pytest.mark.parametrize("missing", ["metadata_a+1.json", "an empty text"])
def test_an_episode_may_lack_its_text(tmp_path: Path, missing: str) -> None:
    written = droid(tmp_path / "in", [3, 3, 3])
    file = tmp_path / "in/lab/success/1/metadata_a+1.json"
    if missing == file.name:
        file.unlink()
    else:
        file.write_text(json.dumps({"current_task": ""}))
    episodes = read_back(tmp_path / "in", "hdf5")
    texts = [set(episode.steps["language_instruction"]) for episode in episodes]
    assert texts == [{b"tidy up"}, {b""}, {b"tidy up"}] and len(written) == 3
    assert bool(episodes[0].metadata["success"])
    report = export(tmp_path / "in", tmp_path / "out", "rlds", from_="hdf5")
    assert (report.items_written, report.rejected) == (3, 0)


def without(path: Path, *attributes: str) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "a") as root:
        for attribute in attributes:
            del root["data/demo_1"].attrs[attribute]


def read_with(directory: Path, text: str) -> list[Episode]:
    """The episodes of files, read with a profile of this text."""
    profile = directory / "profile.yaml"
    profile.write_text(text)
    source = Hdf5Source.open(str(directory), options=ProfileOptions(profile=str(profile)))
    reader = EpisodeReader(source)
    works = plan_ranges(source)
    return [episode for work in works for s in work.segments for episode in reader.read(work.split, s)]


def test_an_episode_may_lack_attributes(tmp_path: Path) -> None:
    isaaclab(tmp_path / "in", [4, 5, 3])
    without(tmp_path / "in/dataset.hdf5", "seed", "success")
    episodes = read_back(tmp_path / "in", "hdf5")
    assert not any(episode.faults for episode in episodes)
    assert [int(episode.metadata["seed"]) for episode in episodes] == [0, 0, 2]
    assert [bool(episode.metadata["success"]) for episode in episodes] == [True, False, True]
    assert not episodes[1].steps["is_terminal"].any()
    report = export(tmp_path / "in", tmp_path / "out", "rlds", from_="hdf5")
    assert (report.items_written, report.rejected) == (3, 0)


def test_text_and_arrays_that_an_episode_lacks(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    for i in range(2):
        with h5py.File(tmp_path / f"{i}.hdf5", "w") as root:
            root["qpos"], root["action"] = np.ones((3, 2)), np.ones((3, 2))
            if i == 0:
                root.attrs["who"], root["pose"], root["words"] = "me", np.ones((2, 2), "f4"), np.array([b"a", b"b"])
    one = "fields: {observation/state: qpos, action: action}\n"
    metadata = 'metadata: {who: "@who", pose: pose, words: words}\n'
    full, bare = read_with(tmp_path, f"name: mine\nepisodes: file\n{one}{metadata}")
    assert (full.metadata["who"], bare.metadata["who"]) == (b"me", b"")
    assert full.metadata["pose"].tolist() == [[1, 1], [1, 1]] and bare.metadata["pose"].tolist() == [[0, 0], [0, 0]]
    assert bare.metadata["words"].tolist() == [b"", b""]


@pytest.mark.parametrize("steps", [1, 4])
def test_an_added_last_step(tmp_path: Path, steps: int) -> None:
    h5py = pytest.importorskip("h5py")
    action, state = np.arange(2.0 * steps).reshape(steps, 2) + 1, np.ones((steps, 3), np.float32)
    image = np.full((steps, 16, 16, 3), 9, np.uint8)
    with h5py.File(tmp_path / "one.hdf5", "w") as root:
        root["action"], root["qpos"], root["image"] = action, state, image
        root["reward"], root["done"] = np.ones(steps), np.arange(steps) == steps - 1
    (episode,) = read_with(
        tmp_path,
        "name: mine\nepisodes: file\nlast_step: added\nterminal: done\n"
        "fields: {observation/state: qpos, observation/image: image, action: action, reward: reward}\n",
    )
    assert not episode.faults
    assert episode.steps["reward"].tolist() == [1.0] * steps + [0.0]
    assert np.array_equal(episode.steps["action"], np.vstack([action, np.zeros((1, 2))]))
    assert np.array_equal(episode.steps["observation/state"], np.vstack([state, np.zeros((1, 3))]))
    pixels = episode.steps["observation/image"]
    assert len(pixels) == steps + 1
    assert episode.steps["is_last"].tolist() == episode.steps["is_terminal"].tolist() == [False] * steps + [True]
    assert episode.steps["discount"].tolist()[-2:] == [0.0, 0.0]


FIELDS = "name: mine\nepisodes: file\nfields:\n  action: a\n  observation/s: a\n"


def read(directory: Path, image: str, raw_images: Any = "png") -> Any:
    """The images of the only episode, as pixels."""
    profile = directory / "profile.yaml"
    profile.write_text(f"{FIELDS}  observation/image: {image}\n")
    source = Hdf5Source.open(str(directory), options=ProfileOptions(profile=str(profile), raw_images=raw_images))
    (work,) = plan_ranges(source)
    (episode,) = EpisodeReader(source).read(work.split, work.segments[0])
    assert not episode.faults
    column = episode.steps["observation/image"]
    return column if isinstance(column, np.ndarray) else column.decode()


@pytest.mark.parametrize("chunks", [None, (4, 20, 24, 3), (13, 10, 24, 1)])
@pytest.mark.parametrize("rows", [(0, 13), (5, 11)])
def test_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks: tuple[int, ...] | None, rows: tuple[int, int]
) -> None:
    h5py = pytest.importorskip("h5py")
    pixels = np.random.default_rng(0).integers(0, 255, (13, 20, 24, 3)).astype(np.uint8)
    start, stop = rows
    with h5py.File(tmp_path / "a.hdf5", "w") as root:
        root["a"] = np.ones((stop - start, 2))
        root.create_dataset("camera", data=pixels, chunks=chunks, compression="gzip" if chunks else None)
    for frames in (1, 3, 100):
        monkeypatch.setattr(episodes, "_PIECE", frames * 20 * 24 * 3)
        found = read(tmp_path, f'{{from: "camera[{start}:{stop}]"}}')
        np.testing.assert_array_equal(found, pixels[start:stop])


@pytest.mark.parametrize("raw_images", ["png", "jpeg", "raw"])
def test_rows_of_bytes_without_an_encoding(tmp_path: Path, raw_images: str) -> None:
    """Black pixels at the end of a frame are no padding."""
    h5py = pytest.importorskip("h5py")
    pixels = np.random.default_rng(0).integers(0, 255, (5, 20, 24, 3)).astype(np.uint8)
    pixels[0, -1] = 0
    with h5py.File(tmp_path / "a.hdf5", "w") as root:
        root["a"] = np.ones((5, 2))
        camera = root.create_dataset("camera", (5,), h5py.vlen_dtype(np.uint8))
        for t, frame in enumerate(pixels):
            camera[t] = frame.reshape(-1)
    found = read(tmp_path, "{from: camera, raw_shapes: [[20, 24, 3]]}", raw_images)
    np.testing.assert_array_equal(found, as_jpegs(pixels) if raw_images == "jpeg" else pixels)


def as_jpegs(pixels: Any) -> Any:
    data = np.empty(len(pixels), object)
    data[:] = encode_jpeg(pixels)
    return EncodedImages(data, pixels.shape[1:], encoding="jpeg").decode()


def test_pixels_as_jpegs(tmp_path: Path) -> None:
    """Depth stays exact; images that are stored as JPEGs are kept."""
    h5py = pytest.importorskip("h5py")
    pixels = np.random.default_rng(0).integers(0, 255, (5, 20, 24, 3)).astype(np.uint8)
    depth = pixels[..., :1].astype(np.uint16) * 99
    with h5py.File(tmp_path / "a.hdf5", "w") as root:
        root["a"], root["camera"], root["depth"] = np.ones((5, 2)), pixels, depth
    np.testing.assert_array_equal(read(tmp_path, "{from: camera}", "jpeg"), as_jpegs(pixels))
    np.testing.assert_array_equal(read(tmp_path, "{from: depth}", "jpeg"), depth)
    stored = encode_jpeg(pixels, 50)
    with h5py.File(tmp_path / "a.hdf5", "a") as root:
        camera = root.create_dataset("stored", (5,), h5py.vlen_dtype(np.uint8))
        for t, image in enumerate(stored):
            camera[t] = np.frombuffer(image, np.uint8)
    wanted = EncodedImages(np.array([*stored, None], object)[:-1], (20, 24, 3), encoding="jpeg").decode()
    np.testing.assert_array_equal(read(tmp_path, "{from: stored}", "jpeg"), wanted)


@pytest.fixture
def store() -> Iterator[str]:
    with memory_store() as root:
        yield root


@pytest.mark.parametrize("profile", ["aloha", "robomimic", "robotwin", "robomind", "droid"])
def test_episodes_are_those_of_the_local_files(tmp_path: Path, store: str, profile: str) -> None:
    BUILDERS[profile](tmp_path, [4, 5, 3])
    path = upload(tmp_path, f"{store}/in")
    assert open_source(path).details.notes[0] == f"profile {profile}"
    for near, far in zip(read_back(tmp_path, "hdf5"), read_back(path, "hdf5"), strict=True):
        assert not far.faults and near.payload == far.payload


@pytest.mark.parametrize("given", ["", "/*.hdf5"])
def test_many_files_are_planned_without_a_request_for_each(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    BUILDERS["aloha"](tmp_path, [4])
    content = (tmp_path / "episode_0.hdf5").read_bytes()
    for i in range(2000):
        put(f"{store}/in/episode_{i}.hdf5", content)
    found: list[str] = []
    info = open_store(store).info
    monkeypatch.setattr(Filesystem, "info", lambda _, path: found.append(path) or info(path))
    source = open_source(f"{store}/in{given}", from_="hdf5")
    works = plan_ranges(source)
    assert sum(len(work.segments) for work in works) == source.splits[0].episodes == 2000
    assert sum(shard.size for shard in source.splits[0].shards) == 2000 * len(content)
    assert len(found) < 20
