"""Text for people."""

from __future__ import annotations

import numpy as np
import pytest

from rlds_beam.episodes.schema import Field, Schema, schema_tree, text_field
from rlds_beam.terminal.tables import sparkline
from rlds_beam.text import duration, printable


def test_a_sparkline() -> None:
    assert sparkline(range(8), 20) == "▁▂▃▄▅▆▇█"
    assert sparkline([], 20) == "" and sparkline([3, 3, 3], 20) == "▁▁▁"
    assert sparkline([0, np.nan, 1, np.inf], 20) == "▁·█·"
    assert sparkline([np.nan] * 50, 20) == "·" * 20
    assert sparkline([-1.7e308, 1.7e308], 20) == "▁█"
    assert sparkline([True, False], 20) == "█▁"


def test_a_long_sparkline_keeps_its_peak() -> None:
    values = np.zeros(10_000)
    values[7000] = 1
    line = sparkline(values, 40)
    assert len(line) == 40 and line.count("█") == 1 and line.index("█") == 28


def test_the_schema_tree() -> None:
    fields = [
        Field("observation/image", "uint8", (96, 96, 3), "jpeg"),
        Field("observation/arm/state", "float32", (7,)),
        Field("action", "float32", (None, 2)),
        text_field("language_instruction"),
    ]
    schema = Schema({field.path: field for field in fields}, {"episode_id": Field("episode_id", "int64")})
    assert schema_tree(schema).splitlines() == [
        "step",
        "├── action                float32 (?, 2)",
        "├── language_instruction  text",
        "└── observation",
        "    ├── arm",
        "    │   └── state         float32 (7,)",
        "    └── image             uint8 (96, 96, 3) jpeg",
        "episode",
        "└── episode_id            int64",
    ]
    assert schema_tree(Schema({})) == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pick up the cup", "pick up the cup"),
        (b"caf\xc3\xa9 \xff", "café \ufffd"),
        ("a\x1b]0;title\x07b", r"a\x1b]0;title\x07b"),
        ("two\nlines", "two lines"),
        ("\u202ebidi\u200b", r"\u202ebidi\u200b"),
        ("x" * 300, "x" * 197 + "..."),
        (7, "7"),
    ],
)
def test_printable(text: object, shown: str) -> None:
    assert printable(text) == shown


def test_duration() -> None:
    assert [duration(seconds) for seconds in (0.51, 59.9, 125, 3723)] == ["0.5 s", "59.9 s", "2:05", "1:02:03"]
