"""The viewer of an episode, which the browser and a report share, in Chromium."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser_page import Tab, viewed

import rlds_beam
from rlds_beam.testing import make_episode, write_dataset

View = Callable[..., AbstractContextManager[Tab]]
PLAYHEADS = """[...document.querySelector(".halves").querySelectorAll(".chart .playhead")].map((one) => {
  const { left, width } = one.closest(".u-over").getBoundingClientRect();
  return (one.getBoundingClientRect().left - left) / width;
})"""
"""Where the step is in each chart of the first episode, from 0 to 1."""


@pytest.fixture(params=["browse", "report"])
def view(request: pytest.FixtureRequest, browser: Any) -> View:
    def open_view(path: object, **options: Any) -> AbstractContextManager[Tab]:
        return viewed(browser, request.param, path, **options)

    return open_view


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("data")
    rlds_beam.example(str(directory), robot=True, episodes=4)
    return str(directory / "planar_arm" / "1.0.0")


def test_keys_and_curves_move_the_cameras(view: View, example: str) -> None:
    with view(example) as tab:
        tab.at(0)
        first = tab.image()
        tab.page.keyboard.press("ArrowRight")
        tab.at(1)
        tab.page.keyboard.press("Shift+ArrowRight")
        tab.at(11)
        tab.page.keyboard.press("End")
        last = tab.step
        tab.at(last)
        assert tab.image() != first
        tab.page.keyboard.press("Home")
        tab.at(0)
        assert tab.image() == first
        tab.page.locator(".scrubber").first.fill("5")
        tab.at(5)
        box = tab.page.locator(".chart .u-over").first.bounding_box()
        tab.page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 40)
        tab.page.mouse.down()
        tab.at(round(0.25 * last))
        tab.page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 40, steps=4)
        tab.at(round(0.75 * last))
        tab.page.mouse.up()
        assert tab.page.evaluate(PLAYHEADS)[0] == pytest.approx(0.75, abs=0.02)
        tab.check()


def test_frames_are_above_the_curves_at_their_time(view: View, example: str) -> None:
    with view(example) as tab:
        pictures = tab.page.locator(".strip").first.locator("button")
        pictures.first.wait_for()
        chart = tab.page.locator(".chart .u-over").first.bounding_box()
        last, count = int(tab.page.locator(".scrubber").first.get_attribute("max")), pictures.count()
        for i in (1, count - 1):
            pictures.nth(i).click()
            box = pictures.nth(i).bounding_box()
            middle = (box["x"] + box["width"] / 2 - chart["x"]) / chart["width"] * last
            assert abs(tab.step - middle) <= 1
        tab.check()


def test_the_curves_zoom_together(view: View, example: str) -> None:
    with view(example) as tab:
        zoomed = tab.page.get_by_role("button", name="Whole episode").first
        assert zoomed.is_disabled()
        box = tab.page.locator(".chart .u-over").first.bounding_box()
        tab.page.keyboard.down("Shift")
        tab.page.mouse.move(box["x"] + 50, box["y"] + 40)
        tab.page.mouse.down()
        tab.page.mouse.move(box["x"] + 200, box["y"] + 40, steps=4)
        tab.page.mouse.up()
        tab.page.keyboard.up("Shift")
        tab.until("!document.querySelector('.zoom button:last-child').disabled")
        assert tab.step == 0
        zoomed.click()
        tab.until("document.querySelector('.zoom button:last-child').disabled")
        tab.page.locator(".legend button").first.click()
        assert tab.page.locator(".legend button").first.get_attribute("aria-pressed") == "false"
        tab.check()


def test_an_episode_plays_to_its_end(view: View, example: str) -> None:
    with view(example) as tab:
        tab.page.get_by_label("Speed").first.select_option("4")
        tab.page.get_by_role("button", name="Play", exact=True).first.click()
        tab.until("document.querySelector('.scrubber').value === document.querySelector('.scrubber').max")
        tab.page.get_by_role("button", name="Play", exact=True).first.wait_for()
        tab.at(tab.step)
        tab.check()


def test_a_step_or_a_time_is_typed(view: View, example: str) -> None:
    with view(example) as tab:
        box = tab.page.locator(".jump").first
        for text, step in (("7", 7), ("1.2 s", 12), ("0:02", 20), ("soon", 20)):
            box.fill(text)
            box.press("Enter")
            tab.at(step)
            assert box.input_value() == str(step)
        tab.check()


def test_many_dimensions_are_told_apart_by_name_color_and_dash(view: View, tmp_path: Path) -> None:
    episode = make_episode(30, observation={"qpos": 14})
    with view(write_dataset(tmp_path, [episode])) as tab:
        curve = tab.page.locator(".curve", has_text="qpos").first
        curve.locator("canvas").wait_for()
        buttons = curve.locator(".legend button")
        assert buttons.count() == 14
        looks = buttons.evaluate_all(
            "(all) => all.map((one) => getComputedStyle(one.querySelector('i')).borderTopStyle + "
            "getComputedStyle(one.querySelector('i')).borderTopColor)"
        )
        assert len(set(looks)) == 14
        assert looks[13].startswith("dashed")
        buttons.nth(9).hover()
        curve.locator(".legend .near").wait_for()
        tab.screenshot("dimensions")
        tab.check()


def test_frames_open_large_and_step_in_sync(view: View, example: str) -> None:
    with view(example) as tab:
        small = tab.page.locator(".left canvas").first.bounding_box()
        tab.page.get_by_role("button", name="Large frames").first.click()
        large = tab.page.locator("dialog.large canvas").first
        tab.until("document.querySelector('dialog.large canvas')?.dataset.step === '0'")
        assert large.bounding_box()["width"] > 1.5 * small["width"]
        tab.page.keyboard.press("ArrowRight")
        tab.until("document.querySelector('dialog.large canvas').dataset.step === '1'")
        tab.screenshot("large-frames")
        tab.page.keyboard.press("Escape")
        tab.at(1)
        tab.check()


@pytest.mark.parametrize("width", [1280, 390])
def test_two_episodes_side_by_side_in_sync(view: View, example: str, width: int) -> None:
    with view(example, width=width) as tab:
        tab.page.get_by_role("tab", name="Compare").first.click()
        chosen = tab.page.get_by_label("Episode to compare with", exact=True)
        chosen.wait_for()
        tab.page.locator(".compare canvas[data-step]").first.wait_for()
        before = chosen.input_value()
        tab.page.get_by_role("button", name="Next episode to compare with").click()
        tab.until("before => document.querySelector('.chooser select').value !== before", before)
        tab.page.locator(".compare .chart .u-over").first.wait_for()
        tab.page.locator(".scrubber").first.fill("6")
        tab.until("document.querySelector('.compare .camera canvas')?.dataset.step === '6'")
        other = tab.page.locator(".compare .chart .u-over").first
        other.scroll_into_view_if_needed()
        box = other.bounding_box()
        tab.page.mouse.click(box["x"] + 0.5 * box["width"], box["y"] + 40)
        tab.until("document.querySelector('.scrubber').value !== '6'")
        heads = tab.page.evaluate(PLAYHEADS)
        assert np.ptp(heads) < 0.02
        tab.screenshot(f"side-by-side-{width}")
        tab.check()


def test_values_of_a_step(view: View, example: str) -> None:
    with view(example) as tab:
        tab.page.get_by_role("tab", name="Values").first.click()
        tab.page.locator(".values caption", has_text="Step 0").wait_for()
        assert "observation/state" in tab.page.locator(".values").inner_text()
        tab.page.locator(".scrubber").first.fill("4")
        tab.page.locator(".values caption", has_text="Step 4").wait_for()
        tab.check()
