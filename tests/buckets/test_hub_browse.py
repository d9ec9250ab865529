"""The browser shows datasets of the Hub."""

from __future__ import annotations

from pathlib import Path

import pytest
from browsing import browsing
from hub_server import hub_server

import rlds_beam
from rlds_beam.testing import read_payloads, shard_paths


@pytest.mark.parametrize("to", ["rlds", "lerobot", "columns"])
def test_a_dataset_of_the_hub(tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    local = Path(rlds_beam.example(tmp_path, camera=True, episodes=4))
    if to != "rlds":
        options = {"fps": 10, "images": "video"} if to == "lerobot" else {"format": "parquet"}
        rlds_beam.convert(local, tmp_path / "out", to=to, workers=1, progress="none", **options)
    with hub_server() as hub:
        for name, value in hub.environment(tmp_path / "hf_home").items():
            monkeypatch.setenv(name, value)
        path = hub.add(local if to == "rlds" else tmp_path / "out", "robots/data")
        with browsing(path, no_scan=False) as browser:
            (about,) = browser.json("/api/datasets")
            assert (about["episodes"], about["format"], about["scan"]["state"]) == (4, to, "none")
            key = browser.list_keys()[3]
            shown = browser.json("/api/episode", key=key)
            assert shown["steps"] and shown["readable"]
            camera = shown["cameras"][0]["path"]
            if to == "lerobot":
                (video,) = (tmp_path / "out").rglob("*.mp4")
                part = browser.get("/video", {"Range": "bytes=7-99"}, key=key, camera=camera)
                assert (part.status_code, part.content) == (206, video.read_bytes()[7:100])
            else:
                image = browser.get("/image", key=key, camera=camera, step=2)
                assert image.content in read_payloads(shard_paths(local)[-1])[-1]
