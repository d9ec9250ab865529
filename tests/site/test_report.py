"""A report in a real browser, opened from disk: it loads nothing, fits a phone, and can be used with the keyboard.

Screenshots go to `build/screenshots`, which CI keeps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import browser_data
import numpy as np
import pytest
from browser_page import DRAWN_TEXTS, painted, until
from camera_episodes import camera_episodes
from checkout import ROOT

import rlds_beam
from rlds_beam.testing import write_dataset

SHOTS = ROOT / "build" / "screenshots"
WIDTHS = {"desktop": 1280, "phone": 390, "wide": 2200}
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
BACKGROUND = "Math.max(...getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/g).slice(0, 3))"
INK = """(box) => {
  const canvas = box.querySelector("canvas");
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const colors = new Set();
  for (let i = 0; i < pixels.length; i += 4)
    if (pixels[i + 3] > 250) colors.add(`${pixels[i]},${pixels[i + 1]},${pixels[i + 2]}`);
  return colors.size;
}"""
"""The number of colors on a plot."""

NEXT = """() => {
  const article = document.querySelector("article:not([data-shown])");
  article?.scrollIntoView();
  return !article;
}"""
"""Whether all episodes are drawn; if not, scrolls to the next one."""
DRAWN = """!document.querySelector("article:not([data-shown])") &&
  [...document.querySelectorAll("div.chart")].every((box) => !box.clientWidth || box.querySelector("canvas"))"""

STEPS = """(article) => {
  const { dataset: { episodes } } = JSON.parse(document.getElementById("report-data").textContent);
  const key = article.querySelector(".key").title;
  return episodes.find((one) => one.key === key).cameras[0].pictures.map((one) => one.step);
}"""
"""The steps whose frames a report has of an episode."""

Opened = Callable[..., Any]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a dataset with broken records, and an episode whose action jumps."""
    directory = tmp_path_factory.mktemp("one")
    episodes = list(camera_episodes(24, broken=2))
    action = np.array(episodes[7].steps["action"])
    action[3] = 500
    episodes[7] = episodes[7].with_columns({"action": action})
    data = write_dataset(directory, episodes, name="jumpy")
    rlds_beam.report(data, output=directory / "report.html", workers=1)
    return directory / "report.html"


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a conversion."""
    directory = tmp_path_factory.mktemp("everything")
    source = rlds_beam.example(directory / "data", robot=True, broken=2, episodes=12)
    connectors = "[MinimumLength: {transitions: 15}, Normalize: {fields: [action]}]"
    (directory / "connectors.yaml").write_text(connectors)
    out = directory / "out"
    rlds_beam.convert(source, out, to="rlds", connectors=str(directory / "connectors.yaml"), workers=1)
    rlds_beam.report(out, output=directory / "report.html", workers=1)
    return directory / "report.html"


@pytest.fixture
def opened(browser: Any) -> Iterator[Opened]:
    """A function that opens a report; at the end, nothing may have been requested, run, or logged."""
    contexts, noticed = [], []

    def open_report(path: Path, device: str = "desktop", theme: str = "light", **more: Any) -> Any:
        size = {"width": WIDTHS[device], "height": 900}
        context = browser.new_context(viewport=size, color_scheme=theme, accept_downloads=False, **more)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.noticed = noticed
        page.on("console", lambda one: one.type == "error" and noticed.append(f"console: {one.text}"))
        page.on("pageerror", lambda error: noticed.append(f"JavaScript error: {error}"))
        page.on("dialog", lambda dialog: noticed.append(f"dialog: {dialog.message}"))
        page.on("request", functools.partial(_requested, path.as_uri(), noticed))
        page.goto(path.as_uri(), wait_until="load")
        painted(page)
        return page

    yield open_report
    for context in contexts:
        context.close()
    assert noticed == []


def _requested(own: str, noticed: list[str], request: Any) -> None:
    if request.url.partition("#")[0] != own and not request.url.startswith("data:"):
        noticed.append(f"{request.url} was requested")


def drawn(page: Any) -> None:
    """Opens all blocks and waits for all plots."""
    page.evaluate("for (const block of document.querySelectorAll('details')) block.open = true")
    until(page, NEXT)
    until(page, DRAWN)


@pytest.mark.parametrize(("device", "theme"), [("desktop", "light"), ("phone", "dark"), ("wide", "light")])
def test_a_report_fits(opened: Opened, device: str, theme: str, everything: Path) -> None:
    page = opened(everything, device, theme)
    assert page.evaluate(SIDEWAYS) <= 0
    drawn(page)
    assert page.evaluate(SIDEWAYS) <= 0
    assert page.locator("div.chart canvas").count() > 10
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"report-{device}-{theme}.png", full_page=True)


def test_any_text_is_harmless(opened: Opened, tmp_path: Path) -> None:
    data = browser_data.write_hostile(tmp_path)
    rlds_beam.report(data, output=tmp_path / "report.html", samples=20, workers=1)
    page = opened(tmp_path / "report.html", "phone")
    drawn(page)
    assert page.evaluate("window.pwned") is None
    assert page.evaluate("document.scripts.length - document.querySelectorAll('script[type]').length") == 3
    for name in ("Values", "Metadata", "Compare"):
        for tab in page.get_by_role("tab", name=name).all():
            if tab.is_visible():
                tab.click()
        page.locator(".values").first.wait_for()
    assert page.evaluate("window.pwned") is None
    assert page.evaluate(SIDEWAYS) <= 0
    assert page.evaluate("getComputedStyle(document.querySelector('h1')).display") == "block"


def test_episodes_are_seen_first_and_play(opened: Opened, one: Path) -> None:
    page = opened(one)
    film = page.locator("svg.film").first
    assert film.bounding_box()["y"] < 500
    playing = "(film) => getComputedStyle(film.querySelector('image')).animationName"
    assert film.evaluate(playing) == "none"
    film.hover()
    assert film.evaluate(playing) == "film"
    page.emulate_media(reduced_motion="reduce")
    assert film.evaluate(playing) == "none"
    phone = opened(one, "phone")
    first, second = (phone.locator("svg.film").nth(i).bounding_box() for i in range(2))
    assert first["y"] == second["y"]
    assert first["width"] > 150


def test_the_theme_is_the_system_s_until_it_is_switched(opened: Opened, one: Path) -> None:
    page = opened(one)
    assert page.evaluate(BACKGROUND) > 200
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(BACKGROUND) < 60
    page.locator("button.theme").click()
    assert page.evaluate(BACKGROUND) > 200
    page.reload()
    assert page.evaluate(BACKGROUND) > 200


def test_curves_and_the_broken_step_are_drawn(opened: Opened, one: Path) -> None:
    page = opened(one)
    page.locator("#rejected article").first.scroll_into_view_if_needed()
    box = page.locator("#rejected div.chart").first
    box.locator("canvas").wait_for()
    page.evaluate(DRAWN_TEXTS)
    page.locator("button.theme").click()  # draws again
    until(page, "window.texts.includes('missing_is_last')")
    assert box.evaluate(INK) > 2  # the curves and the mark


def test_frames_are_those_nearest_to_the_step(opened: Opened, one: Path) -> None:
    page = opened(one)
    article = page.locator("#samples article").first
    article.scroll_into_view_if_needed()
    article.locator(".scrubber").fill("8")
    steps = article.evaluate(STEPS)
    nearest = min(steps, key=lambda step: abs(step - 8))
    assert len(steps) > 4 and article.locator(".nearest").all_inner_texts() == (
        [f"step {nearest}"] if nearest != 8 else []
    )


def test_flags_of_a_report_become_a_file(opened: Opened, one: Path) -> None:
    page = opened(one)
    article = page.locator("#samples article").first
    article.scroll_into_view_if_needed()
    article.get_by_role("button", name="Flag", exact=True).click()
    page.get_by_role("button", name="Flagged episodes: 1").click()
    page.locator(".flagged li", has_text=" steps").wait_for()
    assert "--exclude=exclude.txt" in page.locator("dialog .command").inner_text()


def test_a_link_opens_its_block(opened: Opened, one: Path) -> None:
    page = opened(one)
    signal = page.locator("details.signal").first
    assert signal.get_attribute("open") is None
    page.locator(".outstanding a", has_text="jump").click()
    signal.locator(".worst table").wait_for()
    signal.locator(".worst a").first.click()
    assert page.evaluate("document.activeElement.matches('.episode')")


def test_a_key_and_a_command_are_copied(opened: Opened, one: Path) -> None:
    page = opened(one, permissions=["clipboard-read", "clipboard-write"])
    button = page.locator("#rejected .command button.copy").first
    button.click()
    page.locator("#rejected .command button.done").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("rlds-beam convert ") and copied.endswith(" --repair=missing_is_last")
    assert button.inner_text() == "Copied"


def test_nothing_can_be_added_to_the_page(opened: Opened, one: Path) -> None:
    """The policy refuses what an escaping mistake would let in: the page is closed even then."""
    page = opened(one)
    page.evaluate(
        """() => {
          const image = document.createElement("img");
          image.src = "https://example.com/x.png";
          document.body.append(image);
          document.body.insertAdjacentHTML("beforeend", "<b onclick='window.hacked = 1' id=x>x</b>");
          document.getElementById("x").click();
          const script = document.createElement("script");
          script.textContent = "window.hacked = 1";
          document.body.append(script);
        }"""
    )
    assert page.evaluate("window.hacked") is None
    refused = [what for what in page.noticed if "Content Security Policy" in what]
    assert len(refused) == 3, page.noticed
    page.noticed.clear()
