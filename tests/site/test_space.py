"""`examples/space` in Chromium: the pages and the report of a dataset on the Hub, for every visitor."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from browser_page import Tab
from checkout import ROOT
from hub_server import hub_server
from processes import kill, start, wait_until
from servers import free_port

from rlds_beam.jobs.example import make_episodes
from rlds_beam.testing import write_dataset

httpx = pytest.importorskip("httpx")
SPACE = ROOT / "examples" / "space"


def test_a_space_shows_a_dataset_of_the_hub_to_everybody(browser: Any, tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", [*make_episodes(20, camera=True)], name="point_mass_camera")
    with hub_server() as hub:
        port = free_port()
        environment = {
            **os.environ,
            **hub.environment(tmp_path / "hf"),
            "DATASET": hub.add(data, "robots/point_mass"),
            "PORT": str(port),
        }
        url = f"http://127.0.0.1:{port}/"
        command = [sys.executable, str(SPACE / "app.py")]
        with start(command, env=environment, stdout=None, stderr=None) as process, httpx.Client(base_url=url) as client:

            def status(path: str) -> int:
                try:
                    return int(client.get(path, headers={"host": "robots-space.hf.space"}).status_code)
                except httpx.TransportError:
                    return 0

            wait_until(lambda: status("/") == 200, process)
            assert process.poll() is None
            headers = client.get("/").headers
            assert "frame-ancestors 'self' https://huggingface.co" in headers["content-security-policy"]
            assert "x-frame-options" not in headers and client.post("/").status_code == 405
            with browser.new_context() as context:
                tab = Tab(context.new_page(), url)
                tab.listed(10)
                tab.open()
                assert tab.noticed == []
                wait_until(lambda: status("/report") == 200, process)
                page = context.new_page()
                page.goto(f"{url}report")
                assert "point_mass_camera" in page.title()
            assert process.poll() is None
            kill(process)


def test_the_space_has_what_the_hub_reads() -> None:
    text = (SPACE / "README.md").read_text()
    assert text.startswith("---\n") and "\nsdk: docker\n" in text
    dockerfile = (SPACE / "Dockerfile").read_text()
    assert "\napp_port: 7860\n" in text and "\nEXPOSE 7860\n" in dockerfile and "--uid 1000" in dockerfile
