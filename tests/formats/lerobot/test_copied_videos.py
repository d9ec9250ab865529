"""Videos of a LeRobot dataset stay videos: their packets are copied if no frame changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds_beam
from rlds_beam.images.videos import Video
from rlds_beam.reading.single import episode_at

pytest.importorskip("av")
IMAGE = "observation/image"


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LeRobot dataset of version 3.0, whose second episode does not start with a key frame."""
    directory = tmp_path_factory.mktemp("arm")
    source = rlds_beam.example(directory, camera=True, episodes=4)
    rlds_beam.convert(source, directory / "arm", to="lerobot", fps=10, images="video")
    return directory / "arm"


def pixels(directory: Path, episodes: int = 4) -> list[Any]:
    source = rlds_beam.open_source(str(directory))
    return [episode_at(source, i).steps[IMAGE].decode() for i in range(episodes)]


def packets(directory: Path) -> list[int]:
    """The checksums of all packets."""
    files = sorted(directory.rglob("*.mp4"))
    return [int(crc) for file in files for crc in Video.of(str(file)).packets["crc"]]


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
    odd = next(i for i in (2, 3) if not Video.of(str(file)).packets["key"][starts[i]])
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


def test_changed_frames_are_encoded(arm: Path, tmp_path: Path) -> None:
    done = rlds_beam.convert(arm, tmp_path / "out", to="lerobot", connectors="FlipChannels")
    assert "4 of 4 episodes encoded again, not copied: connectors change frames" in str(done)
    flipped, stored = pixels(tmp_path / "out")[0].astype(int), pixels(arm)[0]
    assert info(tmp_path / "out")["dtype"] == "video"
    assert np.abs(flipped - stored[..., ::-1]).mean() < np.abs(flipped - stored).mean()


def test_images_and_other_encodings_on_request(arm: Path, tmp_path: Path) -> None:
    rlds_beam.convert(arm, tmp_path / "images", to="lerobot", images="copy")
    assert info(tmp_path / "images")["dtype"] == "image"
    rlds_beam.convert(arm, tmp_path / "encoded", to="lerobot", images="video", vcodec="h264", crf=40)
    assert packets(tmp_path / "encoded")[0] not in packets(arm)


def test_one_file_for_each_episode(arm: Path, tmp_path: Path) -> None:
    done = rlds_beam.convert(arm, tmp_path / "out", to="lerobot", lerobot_version="2.1")
    (file,) = arm.rglob("*.mp4")
    starts = np.cumsum([0, *(len(frames) for frames in pixels(arm))])[:4]
    inner = int((~Video.of(str(file)).packets["key"][starts]).sum())
    assert inner and f"{inner} of 4 episodes encoded again, not copied: some do not begin at a key frame" in str(done)
    assert len(list((tmp_path / "out").rglob("*.mp4"))) == 4
    for copied, stored in zip(pixels(tmp_path / "out"), pixels(arm), strict=True):
        assert np.abs(copied.astype(int) - stored).mean() < 8
    np.testing.assert_array_equal(pixels(tmp_path / "out")[0], pixels(arm)[0])
