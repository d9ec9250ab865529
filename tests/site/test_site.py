"""Every page of the documentation in a real browser, on a desktop and on a phone, light and dark.

`make test-docs` builds the site and runs these tests. A failure lists what is wrong and what to do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

SITE = ROOT / "build" / "docs"
PAGES = sorted(
    str(path.relative_to(SITE)) for path in SITE.rglob("*.html") if not path.relative_to(SITE).parts[0].startswith("_")
) or ["index.html"]
CHECKS = (Path(__file__).parent / "page_checks.js").read_text()
WIDTHS = {"desktop": 1280, "phone": 390}


def open_page(page: Any, path: str, width: int, theme: str = "light") -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=theme)
    page.goto(path, wait_until="load")


@pytest.mark.parametrize("path", PAGES)
def test_a_page_fits_and_is_complete(page: Any, path: str) -> None:
    page.noticed.clear()
    open_page(page, path, WIDTHS["desktop"])
    problems = []
    for device, width in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": 900})
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            found = page.evaluate(CHECKS, {"wide": device == "desktop", "light": theme == "light"})
            problems += [f"{path} at {width} pixels: {what}" for what in found]
    problems = list(dict.fromkeys([*problems, *(f"{path}: {what}" for what in page.noticed)]))
    assert not problems, "\n" + "\n".join(problems)


def test_the_site_has_four_parts(page: Any) -> None:
    open_page(page, "index.html", WIDTHS["desktop"])
    parts = page.locator(".sidebar-tree > ul > li > a.reference").all_inner_texts()
    assert parts == ["Tutorials", "How-to guides", "Reference", "Explanation"]


def test_dark_is_dark(page: Any) -> None:
    brightness = "Math.max(...getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3))"
    open_page(page, "index.html", WIDTHS["desktop"])
    assert page.evaluate(brightness) > 200
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(brightness) < 60


@pytest.mark.parametrize("width", WIDTHS.values())
def test_the_search_finds_a_word(page: Any, width: int) -> None:
    page.noticed.clear()
    open_page(page, "index.html", width)
    if width == WIDTHS["phone"]:
        page.locator(".mobile-header .nav-overlay-icon").click()
    box = page.locator(".sidebar-search")
    box.fill("missing_is_last")
    box.press("Enter")
    page.wait_for_url("**/search.html?q=missing_is_last*")
    first = page.locator("#search-results ul.search li a").first
    first.wait_for()
    first.click()
    page.wait_for_load_state()
    assert "missing_is_last" in page.locator("[role=main]").inner_text()
    assert page.noticed == []


@pytest.mark.parametrize("path", ["index.html", "how_to/columns.html"])
def test_a_copy_button_copies_its_block_and_no_output(page: Any, path: str) -> None:
    open_page(page, path, WIDTHS["desktop"])
    page.locator("button.copybtn").first.wait_for(state="attached")
    blocks = page.locator("div.highlight:has(button.copybtn)")
    for i in range(blocks.count()):
        blocks.nth(i).hover()
        blocks.nth(i).locator("button").click()
        blocks.nth(i).locator("button.success").wait_for()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied.strip() == blocks.nth(i).locator("pre").inner_text().strip()
    assert page.locator(":is(.highlight-text, .highlight-none) button.copybtn").count() == 0


def test_a_link_to_a_page_leads_to_the_page() -> None:
    pages = {page.read_bytes() for page in (ROOT / "docs").rglob("*.md")}
    copies = [copy.name for copy in (SITE / "_downloads").rglob("*.md") if copy.read_bytes() in pages]
    assert copies == [], "conf.py treats links to these pages as files to download"
