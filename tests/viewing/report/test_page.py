"""The page of a report as text: complete, safe with any text, and the same bytes again."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import report_documents as documents

from rlds_beam.viewing.report import charts, page_text
from rlds_beam.viewing.report.document import ReportDocument
from rlds_beam.viewing.report.page import render
from rlds_beam.viewing.report.page_text import MAX_CHARACTERS, json_data, visible
from rlds_beam.viewing.report.sections import Histogram

TEMPLATES = Path(render.__code__.co_filename).parent / "templates"
VOID = frozenset({"meta", "link", "img", "br"})
TAGS = """
a article b bdi body br button caption code details div dl dt dd figcaption figure footer h1 h2 h3 h4 head header html i
image img li line link main meta nav ol output p path pre rect script section small span style summary svg table tbody
td th thead title tr ul
"""
ALLOWED = frozenset(TAGS.split())


class Page(HTMLParser):
    """The elements of a page, checked while they are read: each is closed, and none was made by a text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.data: list[Any] = []
        self.scripts = 0
        self.text: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = dict(attributes)
        assert tag in ALLOWED, tag
        assert not any(name.startswith("on") or name == "style" for name in named), named
        allowed = "data:image/jpeg;base64," if tag == "image" else ("#", "data:image/svg+xml,")
        assert (named.get("href") or "#").startswith(allowed), named
        assert (named.get("src") or "data:image/jpeg;base64,").startswith("data:image/jpeg;base64,"), named
        if "id" in named:
            self.ids.append(str(named["id"]))
        if tag == "a":
            self.links.append(str(named["href"]))
        if tag == "img":
            self.images.append(named)
        self.scripts += tag == "script" and named.get("type") is None
        self.is_data = tag == "script" and named.get("type") == "application/json"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag not in VOID
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script" and self.is_data:
            self.data.append(json.loads(data))
        elif not self.open or self.open[-1] not in ("script", "style"):
            self.text.append(data)


@pytest.mark.parametrize("text", documents.HOSTILE, ids=range(len(documents.HOSTILE)))
def test_any_text_stays_text(text: str) -> None:
    html = render(documents.everything(text))
    page = Page(html)
    assert page.scripts == 3
    assert page.data
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\u202a-\u202e\u2066-\u2069\u2028\u2029\ufeff]", html)
    html.encode("utf-8")
    shown = str(visible(text))
    assert " ".join(shown.split()) in " ".join("".join(page.text).split())


def test_anchors_and_links_match() -> None:
    page = Page(render(documents.everything()))
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert {"conversion", "comparison", "a-rejected", "b-rejected", "a-signals", "a-samples"} <= set(page.ids)


def test_each_episode_is_shown_once() -> None:
    document = documents.one()
    page = Page(render(document))
    shown = [name for name in page.ids if re.fullmatch(r"e\d+", name)]
    assert len(shown) == len(document.datasets[0].episodes) == 8


def test_images_have_texts_and_sizes() -> None:
    page = Page(render(documents.one()))
    assert len(page.images) > 100
    assert all(image["alt"] and image["width"] == "80" and image["height"] == "64" for image in page.images)


def test_an_episode_has_its_data_and_its_frames() -> None:
    html = render(documents.one())
    articles = re.findall(r"<article.*?</article>", html, re.DOTALL)
    assert len(articles) == 8
    for article in articles:
        (episode,) = json.loads(re.findall(r'<script type="application/json">(.*?)</script>', article)[0])
        for curve in episode["curves"]:
            assert len({len(values) for values in curve["values"]}) == 1
        assert article.count('<ol class="frames">') == len(episode["cameras"])
    assert html.count('"kind":"rule","name":"nonfinite","step":31,"stop":32') == 2


def test_each_episode_is_found_by_its_key() -> None:
    page = Page(render(documents.everything()))
    (root,) = [data for data in page.data if isinstance(data, dict)]
    assert [one["id"] for one in root["datasets"]] == ["0", "1", "before", "after"]
    episodes = [data for data in page.data if isinstance(data, list)]
    assert sorted(row["key"] for row in root["rows"]) == sorted(one["key"] for some in episodes for one in some)
    assert {row["id"] for row in root["rows"]} <= set(page.ids)


def test_the_parts_of_a_conversion_add_up() -> None:
    html = render(documents.everything())
    assert "503 records: 440 written, 3 rejected, 60 dropped" in html
    assert "The counts do not add up" not in html


def test_a_report_without_datasets() -> None:
    Page(render(ReportDocument("an output", (), documents.one().made, documents.conversion())))


def test_templates_mark_nothing_as_safe() -> None:
    for template in sorted(TEMPLATES.glob("*.html")):
        content = template.read_text()
        assert "|safe" not in content.replace(" ", ""), template.name
        assert "autoescape" not in content, template.name
        ours = re.findall(r"\{\{ *(.*?)\|ours", content)
        assert set(ours) <= {"style", "theme", "script"}, template.name


def test_data_cannot_end_its_script() -> None:
    value = {"a": ["</script>", "<!--", "\u2028\u2029", "\ud800", "&amp;"]}
    text = json_data(value)
    assert json.loads(text) == value
    assert text.isascii()
    assert not set("<>&") & set(text)


def test_hidden_characters_become_visible() -> None:
    assert visible("a\u202eb\x00\ud800") == "a\\u202eb\\u0000\\ud800"
    assert visible("سلام 🦾\n") == "سلام 🦾\n"
    assert str(visible("x" * (MAX_CHARACTERS + 1000))).endswith("… (1,000 more characters)")
    assert visible(3) == 3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1234567, "1,234,567"),
        (1234567.0, "1,234,567"),
        (0.012345, "0.01235"),
        (1234.5678, "1,235"),
        (-0.5, "-0.5"),
        (1.25e-7, "1.25e-07"),
        (3.2e15, "3.20e+15"),
        (None, "-"),
        (float("nan"), "-"),
        (float("inf"), "-"),
        (12.34567, "12.35"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert page_text.number(value) == text


def test_shares_and_times() -> None:
    assert [page_text.percent(part, 1000) for part in (0, 1, 125, 1000)] == ["0 %", "0.1 %", "12.5 %", "100 %"]
    assert [page_text.percent(part, 10_000) for part in (1, 9_999)] == ["< 0.1 %", "> 99.9 %"]
    assert page_text.percent(0, 0) == "-"
    assert [page_text.duration(n, 5) for n in (16, 625, 21_600)] == ["3.2 s", "2 min 05 s", "1 h 12 min"]
    assert page_text.duration(10, None) == ""


def test_charts_of_odd_histograms() -> None:
    assert charts.bars(Histogram(), "") == ""
    constant = Histogram((2.0, 2.0), (7,))
    assert 'd="M0.06 100v-100h0.88v100Z"' in charts.bars(constant, "seven")
    assert (charts.constant(constant), charts.constant(Histogram())) == ("2", "")
    assert charts.ends(constant) == ("2", "2")
    assert charts.ends(Histogram((8.5, 9.5, 10.5), (3, 4))) == ("9", "10")
    assert charts.bins(Histogram((8.5, 9.5, 10.5), (3, 0))) == [("9", 3)]
    one_of_many = charts.bars(Histogram((0.0, 1.0, 2.0), (1, 10**6)), "")
    assert "v-3h" in one_of_many  # still seen
    assert charts.stacked_bar([("written", 0)], "") == ""
