"""The episode list of `rlds-beam browse` in Chromium."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import browser_data
import pytest
from browser_page import opened
from camera_episodes import camera_episodes

from rlds_beam.cli.commands.browse import REDIRECT
from rlds_beam.testing import write_dataset


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> str:
    episodes = list(camera_episodes(200))
    return str(write_dataset(tmp_path_factory.mktemp("data"), episodes, name="point_mass_camera", shards=2))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    return browser_data.write_hostile(tmp_path_factory.mktemp("hostile"))


def test_the_list_is_sorted_and_filtered(browser: Any, example: str) -> None:
    with opened(browser, example) as tab:
        tab.scanned()
        tab.screenshot("list")
        tab.page.get_by_role("button", name="steps", exact=True).click()
        tab.until("document.querySelector('[aria-sort=descending]')")
        tab.until("!document.querySelector('.row.waiting')")
        tab.listed(10)
        steps = [int(text) for text in tab.column("steps")]
        assert steps == sorted(steps, reverse=True)
        tab.page.locator("#filter").fill(f"steps >= {steps[0]}")
        tab.until("document.querySelector('.toolbar [role=status]').textContent.includes(' of 200')")
        assert set(tab.column("steps")) == {str(steps[0])}
        assert "filter=steps" in tab.page.url
        tab.page.reload()  # the address holds the list's state
        tab.listed()
        assert set(tab.column("steps")) == {str(steps[0])}
        assert tab.page.locator("#filter").input_value() == f"steps >= {steps[0]}"
        tab.page.go_back()
        tab.check()


def test_the_search_looks_into_instructions(browser: Any, example: str) -> None:
    with opened(browser, example) as tab:
        tab.scanned()
        tab.page.keyboard.press("/")
        tab.page.keyboard.type("top right")
        tab.until("document.querySelector('.toolbar [role=status]').textContent.includes(' of 200')")
        assert all("top right" in text for text in tab.column("instruction"))
        tab.page.locator("#search").fill("no such words")
        tab.page.get_by_text("No episode matches").wait_for()
        tab.page.get_by_role("button", name="Show all episodes").click()
        tab.listed(10)
        tab.page.locator("#row-0 .flag").click()
        tab.page.get_by_role("button", name="Flagged episodes: 1").click()
        steps, instruction = (tab.column(name)[0] for name in ("steps", "instruction"))
        tab.page.locator(".flagged li", has_text=f"{steps} steps · {instruction}").wait_for()
        tab.check()


def test_a_wrong_filter_says_what_is_wrong(browser: Any, example: str) -> None:
    with opened(browser, example) as tab:
        tab.scanned()
        tab.page.locator("#filter").fill("steps > 3 and stepz > 3")
        tab.page.get_by_role("alert").wait_for()
        assert "stepz" in tab.page.get_by_role("alert").inner_text()
        tab.page.locator("#filter").fill("steps > 3")
        tab.page.get_by_role("alert").wait_for(state="detached")
        tab.check("400: ")


def test_rejected_episodes_are_chosen_by_rule(browser: Any, hostile: str) -> None:
    with opened(browser, hostile) as tab:
        tab.scanned()
        tab.page.get_by_label("Rules").select_option("rejected")
        tab.until("document.querySelectorAll('.virtual-body > .row').length === 3")
        tab.page.get_by_label("Rules").select_option("missing_is_last")
        tab.until("document.querySelectorAll('.virtual-body > .row').length === 1")
        assert tab.column("rule") == ["missing_is_last"]
        tab.check()


def test_the_summary_is_that_of_a_report(browser: Any, hostile: str) -> None:
    with opened(browser, hostile) as tab:
        tab.scanned()
        tab.page.get_by_role("button", name="Summary").click()
        tab.page.locator("#distributions table").wait_for()
        tab.screenshot("summary")
        tab.page.locator(".outstanding a", has_text="missing_is_last").click()
        tab.check()
        tab.page.locator("#rejected .key a").first.click()
        tab.page.locator("main.episode h1").wait_for()
        tab.check()


def test_keys_faster_than_the_drawing_are_not_lost(browser: Any, example: str) -> None:
    with opened(browser, example) as tab:
        tab.scanned()
        tab.page.evaluate("""for (const key of ["j", "j", "k", "j", "Enter"])
            document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}))""")
        tab.page.locator("main.episode h1").wait_for()
        assert "at=2" in tab.page.url
        tab.check()


def test_the_keyboard_moves_opens_and_comes_back(browser: Any, example: str) -> None:
    with opened(browser, example) as tab:
        tab.scanned()
        for key in ("j", "ArrowDown", "ArrowDown", "k"):
            tab.page.keyboard.press(key)
        tab.page.locator("#row-2[aria-selected=true]").wait_for()
        tab.page.keyboard.press("Enter")
        tab.page.locator("main.episode h1").wait_for()
        tab.page.keyboard.press("Escape")
        tab.listed(10)
        tab.page.locator("#row-2[aria-selected=true]").wait_for()
        tab.page.keyboard.press("End")
        tab.page.locator("#row-199").wait_for()
        tab.page.keyboard.press("?")
        tab.page.get_by_role("dialog", name="Keyboard").wait_for()
        tab.check()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone(browser: Any, hostile: str, theme: str) -> None:
    with opened(browser, hostile, width=390) as tab:
        tab.page.emulate_media(color_scheme=theme)
        tab.listed(8)
        tab.until("document.querySelectorAll('.row .badge').length === 3")
        tab.screenshot(f"phone-list-{theme}")
        tab.check()
        tab.open(2)
        tab.page.wait_for_selector(".mark.bad")
        tab.screenshot(f"phone-episode-{theme}")
        tab.check()
        brightness = tab.page.evaluate(
            "Math.max(...getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3))"
        )
        assert (brightness > 200) == (theme == "light")


def test_the_page_opens_from_a_private_file(browser: Any, example: str, tmp_path: Path) -> None:
    """The cookie is strict, and a file is another site."""
    with opened(browser, example, no_scan=True) as tab:
        server = tab.page.url  # the tab has a cookie: another context has none
        context = browser.new_context()
        page = context.new_page()
        file = tmp_path / "page.html"
        file.write_text(REDIRECT.format(url=tab.address))
        page.goto(file.as_uri())
        page.locator("#row-0").wait_for()
        assert page.url.startswith(server.partition("?")[0]) and "token" not in page.url
        assert page.evaluate("document.referrer") == ""
        assert page.evaluate("document.cookie") == ""
        context.close()
