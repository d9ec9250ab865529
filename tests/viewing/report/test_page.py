"""The file of a report: its data cannot end their element, and are complete. `tests/site` opens it in Chromium."""

from __future__ import annotations

import json
import re

import pytest
from browser_data import HOSTILE

from rlds_beam.viewing.report.report_file import json_data, render


def test_data_cannot_end_its_script() -> None:
    value = {"a": ["</script>", "<!--", "\u2028\u2029", "\ud800", "&amp;"]}
    text = json_data(value)
    assert json.loads(text) == value
    assert text.isascii()
    assert not set("<>&") & set(text)


@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_is_only_in_the_data(text: str) -> None:
    plain, hostile = render({"title": "x"}), render({"title": text})
    elements = re.compile(r"<[a-z!/]", re.IGNORECASE)
    assert len(elements.findall(hostile)) == len(elements.findall(plain))
    (data,) = re.findall(r'<script type="application/json" id="report-data">(.*?)</script>', hostile)
    assert json.loads(data)["title"] == text
