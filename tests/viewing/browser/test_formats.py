"""The browser shows every format: the list, the values, and the images as they are stored."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import browsing
from camera_episodes import write_camera_episodes
from checkout import REAL_DATA
from exchanging import export

import rlds_beam
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.formats.inputs import open_source
from rlds_beam.images.codecs import decode_image
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.reader import read_episode
from rlds_beam.viewing.browser.episodes import EpisodeCache

CAMERA = "observation/image"
EPISODES = 6
REAL = REAL_DATA / "bridge_dataset/1.0.0"

Convert = Callable[..., Path]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_camera_episodes(tmp_path_factory.mktemp("data"), EPISODES)


@pytest.fixture(scope="module")
def convert(source: str, tmp_path_factory: pytest.TempPathFactory) -> Convert:
    """Converts the source once for each set of options."""
    made: dict[str, Path] = {}

    def convert(**options: Any) -> Path:
        name = re.sub(r"\W+", "_", str(sorted(options.items())))
        if name not in made:
            made[name] = tmp_path_factory.mktemp("out") / name
            rlds_beam.convert(source, made[name], workers=1, progress="none", **options)
        return made[name]

    return convert


def check_episode(browser: Any, key: str, path: str, from_: str) -> None:
    """Compares an episode of the page with the episode as the source reads it."""
    episode = read_episode(open_source(path, from_=from_), EpisodeKey.parse(key))
    shown = browser.json("/api/episode", key=key)
    assert (shown["steps"], shown["readable"], shown["marks"]) == (len(episode), True, [])
    curves = {curve["path"]: np.array(curve["values"], np.float64).T for curve in shown["curves"]}
    assert {"action", "reward", "observation/position"} <= curves.keys()
    for name, values in curves.items():
        column = np.asarray(episode.steps[name], np.float64).reshape(len(episode), -1)
        np.testing.assert_allclose(values, column, rtol=1e-6, atol=1e-6 * np.abs(column).max())
    for step in (0, len(episode) - 1):
        values = {one["path"]: one["value"] for one in browser.json("/api/step", key=key, step=step)["values"]}
        np.testing.assert_allclose(values["action"], episode.steps["action"][step], rtol=1e-6)
        assert values["is_last"] == bool(np.asarray(episode.steps["is_last"])[step])
        check_image(browser, key, step, episode.steps.get(CAMERA))
    if episode.metadata:
        assert shown["metadata"].keys() == episode.metadata.keys()


def check_image(browser: Any, key: str, step: int, column: Any) -> None:
    answer = browser.get("/image", key=key, camera=CAMERA, step=step)
    assert answer.status_code == 200
    if isinstance(column, EncodedImages):
        assert answer.content == column.image(step)  # as stored
    else:
        np.testing.assert_array_equal(decode_image(answer.content, 3, "uint8"), column[step])
    small = browser.get("/image", key=key, camera=CAMERA, step=step, height="32")
    assert small.headers["content-type"] == "image/jpeg" and decode_image(small.content, 3, "uint8").shape[0] == 32


FORMATS = {
    "rlds": {"to": "rlds"},
    "lerobot": {"to": "lerobot", "fps": 10},
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_that_sources_read(convert: Convert, name: str) -> None:
    path = str(convert(**FORMATS[name]))
    with browsing(path) as browser:
        (dataset,) = browser.json("/api/datasets")
        assert (dataset["format"], dataset["episodes"]) == (name, EPISODES)
        assert [camera["path"] for camera in dataset["cameras"]] == [CAMERA]
        assert [split["episodes"] for split in dataset["splits"]] == [EPISODES]
        keys = browser.list_keys()
        assert len(keys) == len(set(keys)) == EPISODES
        for key in (keys[0], keys[-1]):
            check_episode(browser, key, path, name)
        made = browser.json("/api/made", key=keys[0])
        void = name != "lerobot"  # its last actions are real
        assert made["total"] == browser.json("/api/episode", key=keys[0])["steps"] - void


def test_videos_are_sent_as_files_in_parts(convert: Convert) -> None:
    pytest.importorskip("av")
    path = convert(to="lerobot", fps=10, images="video")
    (video,) = path.rglob("*.mp4")
    with browsing(path) as browser:
        keys = browser.list_keys()
        first, second = (browser.json("/api/episode", key=key) for key in keys[:2])
        (camera,) = second["cameras"]
        assert (camera["path"], camera["kind"], camera["frames"]) == (CAMERA, "video", second["steps"])
        assert browser.json("/api/videos", key=keys[1]) == [camera]
        assert camera["from"] == pytest.approx(first["steps"] / 10)
        assert camera["to"] - camera["from"] == pytest.approx(second["steps"] / 10)
        query = {"key": keys[1], "camera": CAMERA}
        whole, data = browser.get("/video", **query), video.read_bytes()
        assert (whole.status_code, whole.headers["content-type"], whole.content) == (200, "video/mp4", data)
        size = len(data)
        for asked, start, stop in (
            ("bytes=0-0", 0, 1),
            ("bytes=10-99", 10, 100),
            ("bytes=100-", 100, size),
            ("bytes=-7", size - 7, size),
            (f"bytes=5-{size * 2}", 5, size),
            (f"bytes=-{size * 2}", 0, size),
        ):
            part = browser.get("/video", {"Range": asked}, **query)
            assert (part.status_code, part.content) == (206, data[start:stop])
            assert part.headers["content-range"] == f"bytes {start}-{stop - 1}/{size}"
        for asked in (f"bytes={size}-", "bytes=9-8", "bytes=-0"):
            part = browser.get("/video", {"Range": asked}, **query)
            assert (part.status_code, part.headers["content-range"]) == (416, f"bytes */{size}")
        for asked in ("bytes=-", "bytes=0-1,3-4", "items=0-1", "bytes=a-b", "bytes=٣-٤"):
            assert (
                browser.client.get(
                    "/video", params={"dataset": "0", **query}, headers={"Range": asked.encode()}
                ).content
                == data
            )
        changed = browser.get("/video", {"Range": "bytes=0-0", "If-Range": '"another"'}, **query)
        assert (changed.status_code, changed.content) == (200, data)
        assert browser.get("/image", key=keys[0], camera=CAMERA, step="0").status_code == 404


@pytest.mark.skipif(not REAL.is_dir(), reason="no real data; set $RLDS_BEAM_REAL_DATA to their path")
def test_real_episodes() -> None:
    with browsing(REAL) as browser:
        for key in browser.list_keys():
            shown = browser.json("/api/episode", key=key)
            assert shown["rejected"] == "missing_is_last" and len(shown["cameras"]) == 4
            assert {"observation/state", "action"} <= {curve["path"] for curve in shown["curves"]}
            assert shown["marks"][0]["step"] == shown["steps"] - 1
            for camera in shown["cameras"]:
                image = browser.get("/image", key=key, camera=camera["path"], step=0)
                assert image.headers["content-type"] == "image/jpeg" and image.content.startswith(b"\xff\xd8")


def test_a_changed_companion_is_another_stamp(tmp_path: Path) -> None:
    """A video of a dataset, the second file that its episodes are read from."""
    pytest.importorskip("av")
    path = tmp_path / "out"
    export(write_camera_episodes(tmp_path / "data", 2), path, "lerobot", fps=10, images="video")
    source = open_source(str(path))
    key = EpisodeKey(source.dataset, "train", 0, 0)
    cache = EpisodeCache(source, None)
    seen = {cache.stamp(key)}
    shard = source.splits[0].shards[0]
    companions = source.companions(shard)
    for file in companions:
        content = Path(file).read_bytes()
        Path(file).write_bytes(content)
        seen.add(cache.stamp(key))
    assert companions and len(seen) == len(companions) + 1
