"""Videos of LeRobot datasets, encoded or copied, in both versions; damaged ones are counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import bucket_servers
import lerobot_data as data
import numpy as np
import pytest
from camera_episodes import write_camera_episodes
from directories import bytes_of
from exchanging import export
from memory_store import memory_store

import rlds_beam
from rlds_beam.cli.main import main
from rlds_beam.encoding.tfds.features import parse_features
from rlds_beam.images.codecs import encode_jpeg, encode_png
from rlds_beam.images.videos import Video
from rlds_beam.reading.reader import episode_at
from rlds_beam.testing import make_episode, write_dataset

pytest.importorskip("av")
CAMERAS = ("image_0", "wrist")
PIECES = {"3.0": "videos/*/chunk-000/file-*.mp4", "2.1": "videos/chunk-000/*/episode_*.mp4"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Any]]:
    return data.write_moving_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module", params=["3.0", "2.1"])
def output(request: pytest.FixtureRequest, source: tuple[str, list[Any]], tmp_path_factory: Any) -> tuple[str, Path]:
    path = tmp_path_factory.mktemp("lerobot") / "out"
    data.convert_here(source[0], path, shards=2, images="video", lerobot_version=request.param)
    return request.param, path


def test_each_frame_is_read_back(source, output):
    version, path = output
    assert len(list(path.glob(PIECES[version]))) == len(CAMERAS) * (2 if version == "3.0" else len(source[1]))
    info = data.meta(path, "info")
    assert info["features"]["observation.images.wrist"]["info"]["video.codec"] == "av1"
    assert info.get("total_videos", 10) == 10
    found = data.read_episodes(str(path), "lerobot")
    for one, other in zip(found, source[1], strict=True):
        for camera in CAMERAS:
            pixels = [e.steps[f"observation/{camera}"].decode().astype(int) for e in (one, other)]
            assert np.abs(pixels[0] - pixels[1]).mean(axis=(1, 2, 3)).max() < 6
        np.testing.assert_array_equal(one.steps["action"], other.steps["action"])
        assert list(one.steps["observation/depth"]) == list(other.steps["observation/depth"])


def test_an_episode_is_the_same_video_on_every_worker(source, output, tmp_path):
    version, path = output
    if version == "3.0":
        pytest.skip("a file holds all episodes of a range")
    data.convert_here(source[0], tmp_path / "one", images="video", lerobot_version="2.1", map="-observation/wrist")
    for one in (tmp_path / "one").glob(PIECES[version]):
        assert one.read_bytes() == (path / one.relative_to(tmp_path / "one")).read_bytes()


def test_a_damaged_or_lost_video_costs_its_episodes(source, output, tmp_path):
    version, path = output
    copy = tmp_path / "copy"
    for name, content in bytes_of(path).items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(content)
    first, *_, last = sorted(copy.glob(PIECES[version]))
    first.write_bytes(first.read_bytes()[:300])
    last.unlink()
    report = data.convert_here(copy, tmp_path / "rlds", from_="lerobot", to="rlds")
    assert (report.valid, report.rejected) == ((0, 5) if version == "3.0" else (3, 2))


def test_videos_in_a_store(source, output):
    with memory_store() as store:
        root = bucket_servers.upload(output[1], f"{store}/out")
        assert [len(e) for e in data.read_episodes(root, "lerobot")] == [len(e) for e in source[1]]


def camera_episode(encoding: str, length: int, seed: int) -> Any:
    """A camera with one color per step, stored raw, as PNG or as JPEG."""
    made = make_episode(length, seed=seed, observation={"state": 2})
    pixels = np.random.default_rng(seed).integers(0, 255, (length, 1, 1, 3), np.uint8).repeat(32, 1).repeat(32, 2)
    column: Any = pixels
    if encoding != "raw":
        column = data.images({"png": encode_png, "jpeg": encode_jpeg}[encoding](pixels), (32, 32, 3))
    return made.replace(steps={**made.steps, "observation/camera": column})


@pytest.mark.parametrize("version", ["3.0", "2.1"])
@pytest.mark.parametrize("images", ["copy", "video"])
@pytest.mark.parametrize("encoding", ["raw", "png", "jpeg"])
def test_a_camera_matches_features_json(tmp_path, encoding, images, version):
    made = [camera_episode(encoding, 3 + seed, seed) for seed in range(2)]
    source = write_dataset(tmp_path / "data", made)
    data.convert_here(source, tmp_path / "lerobot", images=images, lerobot_version=version)
    report = data.convert_here(tmp_path / "lerobot", tmp_path / "rlds", from_="lerobot", to="rlds")
    assert (report.items_written, report.rejected) == (2, 0)
    root = next(file.parent for file in (tmp_path / "rlds").rglob("features.json"))
    declared = parse_features((root / "features.json").read_text(), "features.json").steps["observation/camera"]
    written = "png" if (encoding, images) == ("jpeg", "video") else encoding
    assert (declared.encoding, declared.shape) == ("none" if written == "raw" else written, (32, 32, 3))
    starts = {"png": b"\x89PNG", "jpeg": b"\xff\xd8\xff"}
    for found, wanted in zip(data.read_episodes(str(root), "rlds"), made, strict=True):
        one, other = (episode.steps["observation/camera"] for episode in (found, wanted))
        if written != "raw":
            assert all(image.startswith(starts[written]) for image in one)
            one = one.decode()
        assert np.abs(one.astype(int) - (other if encoding == "raw" else other.decode())).mean() < 6
    columns = data.convert_here(root, tmp_path / "columns", to="columns")
    assert columns.rejected == 0


ENCODE = """
import hashlib, os, sys
import numpy as np
from rlds_beam.formats.lerobot.videos import Encoding, VideoFile
for codec, preset, height, width in (("h264", "medium", 100, 90), ("h264", "slow", 48, 80), ("av1", "12", 100, 90)):
    rng = np.random.default_rng(0)
    tiles = rng.integers(0, 255, (height // 6 + 1, width // 6 + 1, 3), np.uint8).repeat(6, 0).repeat(6, 1)
    noise = rng.integers(0, 9, (30, height, width, 3), np.uint8)
    images = [np.roll(tiles[:height, :width], 2 * i, 1) // 2 + noise[i] for i in range(30)]
    with VideoFile(f"{sys.argv[1]}/a.mp4", Encoding(codec, 30, 2, preset), 10, height, width) as video:
        video.add(images, "key")
        for thread in os.listdir("/proc/self/task") if hasattr(os, "sched_getscheduler") else ():
            assert os.sched_getscheduler(int(thread)) == os.SCHED_OTHER  # SVT-AV1 makes them real-time, for root
        print(codec, preset, height, width, hashlib.sha256(video.content()).hexdigest())
"""


def test_a_video_does_not_depend_on_uninitialized_memory(tmp_path):
    """glibc fills allocated memory with a byte, so reading uninitialized memory changes the video."""
    found = set()
    for fill in ("0", "85", "170"):
        environment = {**os.environ, "MALLOC_PERTURB_": fill}
        command = [sys.executable, "-c", ENCODE, str(tmp_path)]
        found.add(
            subprocess.run(command, env=environment, text=True, capture_output=True, check=True, timeout=240).stdout
        )
    assert len(found) == 1 and len(found.pop().splitlines()) == 3


def test_a_damaged_frame_is_found_when_it_is_decoded(source, output, tmp_path):
    """Checks list the packets only, unless --decode_images asks for more."""
    for name, content in bytes_of(output[1]).items():
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / name).write_bytes(content)
    path = min((tmp_path / "copy").rglob("*image_0*/**/*.mp4"))
    packet = Video.probe(str(path)).packets[2]
    content = bytearray(path.read_bytes())
    content[packet["offset"] + 3 : packet["offset"] + packet["size"]] = bytes(int(packet["size"]) - 3)
    path.write_bytes(content)
    config = ["check", "--rules", str(tmp_path / "copy")]
    assert (main(config), main([*config, "--decode_images"])) == (0, 3)
    assert main(["check", str(tmp_path / "copy")]) in (0, 3)
    report = data.convert_here(tmp_path / "copy", tmp_path / "rlds", from_="lerobot", to="rlds")
    assert (report.valid, report.rejected) == (4, 1)


IMAGE = "observation/image"


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LeRobot dataset of version 3.0, whose second episode does not start with a key frame."""
    directory = tmp_path_factory.mktemp("arm")
    source = write_camera_episodes(directory, 4, seed=1)
    export(source, directory / "arm", "lerobot", fps=10, images="video")
    return directory / "arm"


def pixels(directory: Path, episodes: int = 4) -> list[Any]:
    source = rlds_beam.open_source(str(directory))
    return [episode_at(source, i).steps[IMAGE].decode() for i in range(episodes)]


def packets(directory: Path) -> list[int]:
    """The checksums of all packets."""
    files = sorted(directory.rglob("*.mp4"))
    return [int(crc) for file in files for crc in Video.probe(str(file)).packets["crc"]]


def info(directory: Path) -> dict[str, Any]:
    features = json.loads((directory / "meta" / "info.json").read_text())["features"]
    return next(feature for name, feature in features.items() if "image" in name)


def test_a_whole_file_is_copied_packet_by_packet(arm: Path, tmp_path: Path) -> None:
    done = rlds_beam.convert(arm, tmp_path / "out", to="lerobot")
    assert "encoded again" not in str(done)
    assert packets(tmp_path / "out") == packets(arm)
    assert info(tmp_path / "out")["dtype"] == "video" and info(tmp_path / "out")["info"]["video.codec"] == "av1"
    for copied, stored in zip(pixels(tmp_path / "out"), pixels(arm), strict=True):
        np.testing.assert_array_equal(copied, stored)


def test_an_episode_after_a_gap_is_encoded_with_those_before_it(arm: Path, tmp_path: Path) -> None:
    starts = np.cumsum([0, *(len(frames) for frames in pixels(arm))])
    (file,) = arm.rglob("*.mp4")
    odd = next(i for i in (2, 3) if not Video.probe(str(file)).packets["key"][starts[i]])
    done = rlds_beam.convert(arm, tmp_path / "out", to="lerobot", connectors=[DropBefore(odd)])
    said = "3 of 3 episodes encoded again, not copied: some do not begin at a key frame"
    assert said in str(done)
    kept = [i for i in range(4) if i != odd - 1]
    for again, stored in zip(pixels(tmp_path / "out", 3), (pixels(arm)[i] for i in kept), strict=True):
        assert again.shape == stored.shape and np.abs(again.astype(int) - stored).mean() < 8
    assert packets(tmp_path / "out")[0] not in packets(arm)  # the first episode is encoded, though it could be copied


class DropBefore:
    """Drops the episode before one."""

    def __init__(self, position: int):
        self.position = position

    def __call__(self, batch: Any) -> Any:
        return batch.replace(episodes=tuple(e for e in batch.episodes if e.key.position != self.position - 1))


def test_a_recording_whose_last_frames_are_not_encoded_is_saved_without_them(arm: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    rlds_beam.convert(arm, cut, to="lerobot", lerobot_version="2.1")
    lines = (cut / "meta/episodes.jsonl").read_text().splitlines(keepends=True)
    (cut / "meta/episodes.jsonl").write_text("".join(lines[:3]))
    (cut / "meta/rlds_beam.json").unlink()
    (video,) = cut.rglob("episode_000003.mp4")
    video.unlink()
    (note,) = (note for note in rlds_beam.open_source(str(cut)).details.notes if "was cut" in note)
    assert "3 of 4 episodes can be converted, but not episode 3: " in note
    assert f"{video} cannot be read" in note
    report = rlds_beam.check(cut, rules=True).report
    assert (report.valid, report.rejected) == (3, 1)


def test_changed_frames_are_encoded(arm: Path, tmp_path: Path) -> None:
    done = rlds_beam.convert(arm, tmp_path / "out", to="lerobot", connectors="FlipChannels")
    assert "4 of 4 episodes encoded again, not copied: connectors change frames" in str(done)
    flipped, stored = pixels(tmp_path / "out")[0].astype(int), pixels(arm)[0]
    assert info(tmp_path / "out")["dtype"] == "video"
    assert np.abs(flipped - stored[..., ::-1]).mean() < np.abs(flipped - stored).mean()


def test_one_file_for_each_episode(arm: Path, tmp_path: Path) -> None:
    done = rlds_beam.convert(arm, tmp_path / "out", to="lerobot", lerobot_version="2.1")
    (file,) = arm.rglob("*.mp4")
    starts = np.cumsum([0, *(len(frames) for frames in pixels(arm))])[:4]
    inner = int((~Video.probe(str(file)).packets["key"][starts]).sum())
    assert inner and f"{inner} of 4 episodes encoded again, not copied: some do not begin at a key frame" in str(done)
    assert len(list((tmp_path / "out").rglob("*.mp4"))) == 4
    for copied, stored in zip(pixels(tmp_path / "out"), pixels(arm), strict=True):
        assert np.abs(copied.astype(int) - stored).mean() < 8
    np.testing.assert_array_equal(pixels(tmp_path / "out")[0], pixels(arm)[0])
