"""The browser shows datasets in buckets: it reads what is shown, and does not scan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browsing import browsing
from bucket_servers import serving, upload

import rlds_beam
from rlds_beam.testing import read_payloads, shard_paths

Publish = Callable[[Path, str], str]


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Iterator[Publish]:
    """Uploads a dataset under a name and returns its address."""
    with serving("s3") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield lambda local, name: upload(local, f"{server.new_bucket()}/{name}")


@pytest.mark.parametrize("to", ["rlds", "lerobot"])
def test_a_dataset(publish: Publish, tmp_path: Path, to: str) -> None:
    local = Path(rlds_beam.example(tmp_path, camera=True, episodes=4))
    if to == "lerobot":
        options = {"fps": 10, "images": "video"}
        rlds_beam.convert(local, tmp_path / "out", to=to, workers=1, progress="none", **options)
    path = publish(local if to == "rlds" else tmp_path / "out", to)
    with browsing(path, no_scan=False) as browser:
        (about,) = browser.json("/api/datasets")
        assert (about["episodes"], about["format"], about["scan"]["state"]) == (4, to, "none")
        key = browser.list_keys()[3]
        shown = browser.json("/api/episode", key=key)
        assert shown["steps"] and shown["readable"] and shown["previous"] == browser.list_keys()[2]
        camera = shown["cameras"][0]["path"]
        if to == "lerobot":
            (video,) = (tmp_path / "out").rglob("*.mp4")
            part = browser.get("/video", {"Range": "bytes=7-99"}, key=key, camera=camera)
            assert (part.status_code, part.content) == (206, video.read_bytes()[7:100])
        else:
            image = browser.get("/image", key=key, camera=camera, step=2)
            assert image.content in read_payloads(shard_paths(local)[-1])[-1]
            again = browser.get("/image", {"If-None-Match": image.headers["etag"]}, key=key, camera=camera, step=2)
            assert again.status_code == 304
