"""The page of an episode of `rlds-beam browse` in Chromium."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import browser_data
import pytest
from browser_page import Tab, opened
from camera_episodes import camera_episodes
from checkout import REAL_DATA

import rlds_beam
from rlds_beam.cli.commands.example import make_episodes
from rlds_beam.testing import record_offsets, shard_paths, write_dataset

BRIDGE = REAL_DATA / "bridge_dataset" / "1.0.0"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> str:
    episodes = list(camera_episodes(30))
    return str(write_dataset(tmp_path_factory.mktemp("data"), episodes, name="point_mass_camera"))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    return browser_data.write_hostile(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    pytest.importorskip("av")
    return browser_data.write_videos(tmp_path_factory.mktemp("videos"))


def test_the_step_is_in_the_address(browser: Any, example: str) -> None:
    with opened(browser, example, no_scan=True) as tab:
        tab.listed()
        tab.open(1)
        tab.at(0)
        tab.screenshot("episode")
        tab.page.locator(".scrubber").fill("5")
        tab.at(5)
        tab.until("t => location.search.includes(`t=${t}`)", 5)
        tab.page.reload()
        tab.at(5)
        tab.check()


def test_the_selected_tab_is_in_view_on_a_phone(browser: Any, example: str) -> None:
    with opened(browser, example, width=390, no_scan=True) as tab:
        tab.listed()
        tab.open(0)
        tab.page.get_by_role("tab", name="Compare").click()
        tab.until("location.search.includes('tab=compare')")
        tab.page.reload()
        tab.page.get_by_label("Episode to compare with", exact=True).wait_for()
        assert tab.page.evaluate("document.querySelector('.tabs').scrollWidth > innerWidth")
        tab.until(
            "Math.abs(document.querySelector('.tabs').getBoundingClientRect().right"
            " - document.querySelector('[aria-selected=true]').getBoundingClientRect().right) < 100"
        )
        tab.check()


def test_brackets_open_the_neighbors_in_the_list(browser: Any, example: str) -> None:
    with opened(browser, example) as tab:
        tab.scanned()
        tab.page.get_by_role("button", name="steps", exact=True).click()
        tab.until("document.querySelector('[aria-sort=descending]') && !document.querySelector('.row.waiting')")
        tab.listed(3)
        numbers = tab.column("#")
        tab.open(0)
        for key, position in (("]", 1), ("]", 2), ("[", 1)):
            tab.page.keyboard.press(key)
            tab.page.locator("h1", has_text=re.compile(rf"^Episode {numbers[position]}$")).wait_for()
        for key in "]]][":  # faster than the episodes are loaded
            tab.page.keyboard.press(key)
        tab.page.locator("h1", has_text=re.compile(rf"^Episode {numbers[3]}$")).wait_for()
        for key in ("]", "Escape"):
            tab.page.keyboard.press(key)
        tab.listed(3)
        tab.check()


def test_rules_are_marked_where_they_are_broken(browser: Any, hostile: str) -> None:
    with opened(browser, hostile) as tab:
        tab.scanned()
        tab.open(2)
        tab.page.locator(".lane .mark.bad").click()
        tab.at(13)
        assert "missing_is_last" in tab.page.locator(".marks").inner_text()
        tab.check()


def test_a_damaged_image_has_a_placeholder(browser: Any, hostile: str) -> None:
    with opened(browser, hostile) as tab:
        tab.scanned()
        tab.open(1)
        tab.at(0)
        tab.page.keyboard.press("n")
        tab.page.locator(".broken", has_text="cannot be decoded").wait_for()
        tab.screenshot("damaged")
        tab.page.keyboard.press("ArrowRight")
        tab.page.locator(".broken", has_text="neither JPEG").wait_for()
        tab.page.keyboard.press("ArrowRight")
        tab.page.locator(".broken").wait_for(state="detached")
        tab.at(6)
        tab.check("404: ")


def test_hostile_text_stays_text(browser: Any, hostile: str) -> None:
    with opened(browser, hostile, items="sequences", sequence_length=8) as tab:
        tab.scanned()
        for row, text in enumerate(browser_data.HOSTILE):
            tab.open(row)
            if row not in (4, 5, 6):
                assert text in tab.page.locator(".instruction").inner_text()
            for name in ("Values", "Metadata", "What the learner sees", "Curves"):
                tab.page.get_by_role("tab", name=name).click()
                tab.until("!document.querySelector('[role=tabpanel] .wait')")
                tab.check("404: ")
            if row == 4:
                tab.screenshot("hostile")
            tab.page.keyboard.press("f")
            tab.page.keyboard.press("Escape")
            tab.listed(8)
        tab.page.get_by_role("button", name="Flagged episodes").click()
        tab.page.get_by_role("dialog").wait_for()
        tab.page.keyboard.press("Escape")
        tab.page.get_by_label("Sort").select_option("1:metadata/episode_metadata/<i>name")
        tab.page.get_by_role("columnheader", name="<i>name").wait_for()
        tab.page.get_by_role("button", name="Summary").click()
        tab.page.locator("#texts").wait_for()
        tab.check("404: ")


def test_a_damaged_record_says_so(browser: Any, tmp_path: Path) -> None:
    path = write_dataset(tmp_path, list(make_episodes(3)), name="point_mass")
    (shard,) = shard_paths(path)
    data = bytearray(shard.read_bytes())
    data[record_offsets(shard)[1] + 200] ^= 1
    shard.write_bytes(bytes(data))
    with opened(browser, path) as tab:
        tab.scanned()
        tab.page.locator("#row-1").click()
        tab.page.get_by_role("alert").wait_for()
        assert "cannot be read" in tab.page.get_by_role("alert").inner_text()
        tab.check()


def test_videos_follow_the_scrubber(browser: Any, videos: tuple[str, str]) -> None:
    source, lerobot = videos
    with opened(browser, lerobot, source) as tab:
        tab.listed()
        tab.open(1)
        tab.until("[...document.querySelectorAll('video')].every((one) => one.readyState >= 2)")
        tab.page.locator(".scrubber").fill("6")
        _shown(tab, 6)
        tab.screenshot("videos")
        tab.page.keyboard.press("Space")
        tab.until("document.querySelector('.scrubber').value === document.querySelector('.scrubber').max")
        _shown(tab, tab.step)
        tab.page.get_by_role("tab", name="Compare").click()
        tab.page.locator(".compare canvas[data-step]").first.wait_for()
        tab.screenshot("compare")
        tab.check()


def test_videos_are_in_the_list_and_play_under_the_pointer(browser: Any, videos: tuple[str, str]) -> None:
    with opened(browser, videos[1]) as tab:
        tab.scanned()
        tab.until("[...document.querySelectorAll('.row video')].filter((one) => one.readyState >= 2).length >= 2")
        second = "document.querySelector('#row-1 video')"
        first = tab.page.evaluate(f"{second}.currentTime")
        ranges = tab.page.evaluate(
            "fetch('/api/episodes?dataset=0').then((a) => a.json()).then((a) => fetch('/api/videos?dataset=0&key=' +"
            " encodeURIComponent(a.rows[1].key))).then((a) => a.json())"
        )
        start, stop = min((video["from"], video["to"]) for video in ranges)
        assert start <= first < start + 0.01
        tab.page.locator("#row-1 video").hover()
        tab.until(f"{second}.currentTime > {start} + 0.05")
        assert tab.page.evaluate(f"{second}.currentTime") <= stop + 0.5
        tab.page.mouse.move(0, 0)
        tab.until(f"{second}.paused && {second}.currentTime < {start} + 0.01")
        tab.screenshot("video-list")
        tab.check()


def _shown(tab: Tab, step: int) -> None:
    """Waits until the videos show a step."""
    episode = tab.page.evaluate(
        "fetch('/api/episode?dataset=0&key=' + encodeURIComponent(new URLSearchParams(location.search).get('episode')))"
        ".then((answer) => answer.json())"
    )
    starts = [camera["from"] for camera in episode["cameras"] if camera["kind"] == "video"]
    times = [start + (step + 0.5) / episode["fps"] for start in starts]
    tab.until(
        "times => [...document.querySelectorAll('.left video')]"
        ".every((one, i) => !one.seeking && Math.abs(one.currentTime - times[i]) < 0.3 / 10)",
        times,
    )


def test_items_show_padding(browser: Any, example: str) -> None:
    options = {"items": "sequences", "sequence_length": 12, "pad_end_of_episodes": True, "tile_end_of_episodes": True}
    with opened(browser, example, no_scan=True, **options) as tab:
        tab.listed()
        tab.open(1)
        tab.page.get_by_role("tab", name="What the learner sees").click()
        tab.page.locator(".item tbody tr").first.wait_for()
        assert tab.page.locator(".item tbody tr").count() == 12
        tab.page.locator(".span").last.click()
        tab.page.locator(".item tr.hatched").first.wait_for()
        tab.screenshot("items")
        tab.page.locator(".item tbody button.link").first.click()
        assert tab.step > 0
        tab.check()


def test_flags_become_a_file_that_convert_reads(browser: Any, example: str, tmp_path: Path) -> None:
    with opened(browser, example, no_scan=True) as tab:
        tab.listed(10)
        tab.page.keyboard.press("f")
        tab.open(3)
        tab.page.get_by_role("button", name="Flag", exact=True).click()
        tab.page.get_by_role("button", name="Flagged episodes: 2").click()
        tab.page.get_by_label("Remark").last.fill("the\tgripper <b>slips")
        tab.page.get_by_label("Remark").last.press("Tab")
        tab.page.locator(".flagged li", has_text="episode 3").wait_for()
        tab.screenshot("flags")
        with tab.page.expect_download() as waiting:
            tab.page.get_by_role("button", name="Download exclude.txt").click()
        waiting.value.save_as(tmp_path / "exclude.txt")
        tab.page.get_by_role("button", name="Copy the command").click()
        command = tab.page.evaluate("navigator.clipboard.readText()")
        assert command == f"rlds-beam convert {example} OUTPUT --exclude=exclude.txt"
        tab.page.reload()
        tab.page.get_by_role("button", name="Flagged episodes: 2").click()
        tab.page.get_by_role("button", name="Remove all").click()
        tab.page.get_by_text("No episode is flagged").wait_for()
        tab.check()
    outcome = rlds_beam.convert(example, str(tmp_path / "out"), exclude=str(tmp_path / "exclude.txt"))
    assert outcome.report.records == 30
    assert sum(dropped.episodes for dropped in outcome.report.dropped.values()) == 2


@pytest.mark.skipif(not BRIDGE.exists(), reason="the real episodes are not on this machine")
def test_real_episodes(browser: Any) -> None:
    with opened(browser, BRIDGE) as tab:
        tab.scanned()
        tab.open(1)
        tab.at(0)
        assert tab.page.locator(".left canvas").count() == 4
        tab.page.locator(".marks button").first.click()
        tab.at(9)
        tab.screenshot("bridge")
        tab.page.emulate_media(color_scheme="dark")
        tab.screenshot("bridge-dark")
        tab.check()
