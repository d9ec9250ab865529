"""The file of a report: its data cannot end their element, and are complete. `tests/site` opens it in Chromium."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import report_documents as documents

from rlds_beam.viewing.report.document import ReportDocument
from rlds_beam.viewing.report.page import json_data, render


def content(document: ReportDocument) -> Any:
    """The data of a report."""
    (text,) = re.findall(r'<script type="application/json" id="report-data">(.*?)</script>', render(document))
    return json.loads(text)


def test_data_cannot_end_its_script() -> None:
    value = {"a": ["</script>", "<!--", "\u2028\u2029", "\ud800", "&amp;"]}
    text = json_data(value)
    assert json.loads(text) == value
    assert text.isascii()
    assert not set("<>&") & set(text)


@pytest.mark.parametrize("text", documents.HOSTILE, ids=range(len(documents.HOSTILE)))
def test_any_text_is_only_in_the_data(text: str) -> None:
    plain, hostile = render(documents.everything()), render(documents.everything(text))
    elements = re.compile(r"<[a-z!/]", re.IGNORECASE)
    assert len(elements.findall(hostile)) == len(elements.findall(plain))
    assert content(documents.everything(text))["title"] == text


def test_an_episode_has_its_data_and_its_frames() -> None:
    (part,) = content(documents.one())["datasets"]
    assert len(part["episodes"]) == 8
    for episode in part["episodes"]:
        for curve in episode["curves"]:
            assert len({len(values) for values in curve["values"]}) == 1
        for camera in episode["cameras"]:
            assert [picture["step"] for picture in camera["pictures"]] == [0, 7, 15, 22, 30, 37, 44, 52, 59]
    marks = [mark for episode in part["episodes"] for mark in episode["marks"]]
    assert [(mark["name"], mark["step"]) for mark in marks if mark["kind"] == "rule"] == [("nonfinite", 31)] * 2
