"""Makes the pictures of `rlds-beam browse` and `rlds-beam report`, with Chromium and episodes of `rlds-beam example`.

    python docs/browser_pictures.py

Run it after a change of the pages; fonts differ between machines, so `make docs` does not.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import rlds_beam
from rlds_beam.cli.commands.browse import BrowseConfig, browse

PICTURES = Path(__file__).parent.resolve() / "pictures"
SIZE = {"width": 1120, "height": 640}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        path = rlds_beam.example("data", robot=True, broken=2)
        rlds_beam.report(path)
        config = BrowseConfig.create([path], no_open=True)
        with browse(config) as server, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page(viewport=SIZE)
            page.goto(server.url)
            for _ in range(2):  # the shortest first
                page.get_by_role("button", name="steps").click()
                page.locator("[aria-sort]").wait_for()
            page.wait_for_timeout(2000)
            page.keyboard.press("ArrowDown")
            save(page, "browse-list")
            page.get_by_label("Rules").select_option("missing_is_last")
            page.wait_for_timeout(1000)
            page.locator("#row-1").click()
            page.locator("canvas[data-step]").first.wait_for()
            for _ in range(22):
                page.keyboard.press("ArrowRight")
            page.wait_for_timeout(1000)
            save(page, "browse-episode")
            page.set_viewport_size({"width": 1120, "height": 800})
            page.goto(f"file://{directory}/report.html")
            page.wait_for_timeout(2000)
            save(page, "report")
            browser.close()


def save(page: object, name: str) -> None:
    page.screenshot(path=PICTURES / f"{name}.jpg", type="jpeg", quality=80)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
