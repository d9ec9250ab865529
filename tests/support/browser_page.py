"""The pages of `rlds-beam browse`, against a running server, and `rlds-beam report`, from a file, in Chromium."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

import rlds_beam
from rlds_beam.cli.commands.browse import BrowseConfig, browse

BROWSERS = ("chromium", "google-chrome", "google-chrome-stable", "chromium-browser")
FLAGS = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--no-first-run",
    "--no-sandbox",
)
DEADLINE = 60_000
"""Milliseconds that the browser may take for one action on a busy machine."""
DRAWN_TEXTS = """() => {
  const { fillText } = CanvasRenderingContext2D.prototype;
  window.texts = [];
  CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
    window.texts.push(text);
    fillText.call(this, text, ...rest);
  };
}"""
"""Keeps the texts that are drawn from now on in `window.texts`."""
SCREENSHOTS = ROOT / "build" / "screenshots"


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Headless Chromium, or Google Chrome; skips the test if there is none."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make setup")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS, timeout=DEADLINE)
        yield browser
        browser.close()


def until(page: Any, condition: str, *arguments: Any) -> None:
    """Waits until a JavaScript condition holds. The policy of our pages does not allow `wait_for_function`."""
    deadline = time.monotonic() + DEADLINE / 1000
    while not page.evaluate(condition, *arguments):
        assert time.monotonic() < deadline, f"still not: {condition}"
        page.wait_for_timeout(40)


def painted(page: Any) -> None:
    """Waits until the page was painted: Chromium drops the keys that are pressed before."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


class Tab:
    """A tab with the page.

    Attributes:
      page: Playwright's page.
      address: the address of the server, with the token.
      base: the address of the server, without the token.
      noticed: what went wrong in the page: messages of the console, exceptions, requests to other sites.
    """

    def __init__(self, page: Any, url: str):
        self.page, self.address, self.base = page, url, url.split("?")[0]
        self.noticed: list[str] = []
        page.set_default_timeout(DEADLINE)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.noticed.append(f"JavaScript error: {error}"))
        page.on("response", lambda r: r.status >= 400 and self.noticed.append(f"{r.status}: {r.url}"))
        page.on("request", self._request)
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto(url)
        painted(page)

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.noticed.append(f"console: {message.text} {message.location}")

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.base, "data:", f"blob:{self.base}")):
            self.noticed.append(f"{request.url} is on another site")

    def until(self, condition: str, *arguments: Any) -> None:
        """Waits until a JavaScript condition holds."""
        until(self.page, condition, *arguments)

    def listed(self, rows: int = 1) -> None:
        """Waits until the list shows so many rows."""
        self.until("n => document.querySelectorAll('.virtual-body > .row:not(.waiting)').length >= n", rows)

    def scanned(self) -> None:
        """Waits until all episodes were checked, and the list can be sorted."""
        self.page.wait_for_selector(".head .sort")
        self.page.wait_for_selector("progress", state="detached")

    def open(self, row: int = 0) -> None:
        """Opens an episode of the list."""
        self.page.locator(f"#row-{row}").click()
        self.page.locator("main.episode .transport").wait_for()

    @property
    def step(self) -> int:
        """The step that is shown."""
        return int(self.page.locator(".scrubber").first.input_value())

    def at(self, step: int) -> None:
        """Waits until a step is shown, by the scrubber and all cameras with images."""
        self.until(
            """step => document.querySelector(".scrubber")?.value === String(step) &&
              [...document.querySelector(".left").querySelectorAll("canvas:not([hidden])")]
                .every((one) => one.dataset.step === String(step))""",
            step,
        )

    def image(self, camera: int = 0) -> str:
        """The pixels of a camera, as a data URL."""
        pixels: str = self.page.evaluate("i => document.querySelectorAll('.left canvas')[i].toDataURL()", camera)
        return pixels

    def column(self, name: str) -> list[str]:
        """The texts of a column of the list, in the order of the rows that are shown."""
        heads = self.page.locator(".head [role=columnheader]").all_inner_texts()
        number = [head.rstrip(" ↑↓") for head in heads].index(name)
        texts: list[str] = self.page.evaluate(
            """n => [...document.querySelectorAll(".virtual-body > .row")]
              .sort((a, b) => a.ariaRowIndex - b.ariaRowIndex).map((row) => row.children[n].textContent.trim())""",
            number,
        )
        return texts

    def screenshot(self, name: str) -> None:
        """Keeps a picture of the page in build/screenshots."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"browser-{name}.png")

    def check(self, *expected: str) -> None:
        """Nothing went wrong, nothing of the data ran, and the page does not scroll sideways."""
        noticed = [what for what in self.noticed if not any(part in what for part in expected)]
        assert noticed == []
        assert self.page.evaluate("window.pwned") is None
        assert self.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


@contextlib.contextmanager
def opened(browser: Any, *paths: object, width: int = 1280, **options: Any) -> Iterator[Tab]:
    """Serves datasets, and opens their page."""
    config = BrowseConfig.create([str(path) for path in paths], no_open=True, **options)
    with browse(config) as server:
        context = browser.new_context(
            viewport={"width": width, "height": 800}, permissions=["clipboard-read", "clipboard-write"]
        )
        try:
            yield Tab(context.new_page(), server.url)
        finally:
            context.close()


@contextlib.contextmanager
def opened_report(browser: Any, file: Path, width: int = 1280) -> Iterator[Tab]:
    """Opens a report from disk, with the viewer of its first episode."""
    context = browser.new_context(viewport={"width": width, "height": 800})
    try:
        tab = Tab(context.new_page(), file.as_uri())
        tab.page.locator("article.episode").first.scroll_into_view_if_needed()
        tab.page.locator("article .transport").first.wait_for()
        yield tab
    finally:
        context.close()


@contextlib.contextmanager
def viewed(browser: Any, kind: str, path: object, width: int = 1280) -> Iterator[Tab]:
    """The first episode of a dataset in the viewer of the browser (`browse`) or of a report."""
    if kind == "browse":
        with opened(browser, path, width=width, no_scan=True) as tab:
            tab.listed()
            tab.open(0)
            yield tab
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.html"
        rlds_beam.report(str(path), output=str(file), samples=3, workers=1, progress="none")
        with opened_report(browser, file, width) as tab:
            tab.page.locator(".screen, .chart").first.click()  # its keys are for the episode with the focus
            tab.page.keyboard.press("Home")
            yield tab
