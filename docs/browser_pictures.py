"""Makes the pictures of the page of `rlds-beam browse`, with Chromium and episodes of `rlds-beam example`.

    python docs/browser_pictures.py

Run it after a change of the page; fonts differ between machines, so `make docs` does not.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from rlds_beam.jobs.example import make_episodes
from rlds_beam.pipelines.browse import BrowseConfig, browse
from rlds_beam.testing import write_dataset

PICTURES = Path(__file__).parent / "pictures"
SIZE = {"width": 1120, "height": 640}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        episodes = list(make_episodes(64, broken=6, camera=True))
        path = write_dataset(Path(directory), episodes, name="point_mass_camera")
        config = BrowseConfig.create([str(path)], no_open=True)
        with browse(config) as server, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page(viewport=SIZE)
            page.goto(server.url)
            page.get_by_role("button", name="steps", exact=True).click()
            page.locator("[aria-sort]").wait_for()
            page.wait_for_timeout(2000)
            page.keyboard.press("ArrowDown")
            save(page, "browse-list")
            page.get_by_label("Rules").select_option("missing_is_last")
            page.wait_for_timeout(1000)
            page.locator("#row-0").click()
            page.locator("canvas[data-step]").wait_for()
            for _ in range(7):
                page.keyboard.press("ArrowRight")
            page.wait_for_timeout(1000)
            save(page, "browse-episode")
            browser.close()


def save(page: object, name: str) -> None:
    page.screenshot(path=PICTURES / f"{name}.jpg", type="jpeg", quality=80)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
