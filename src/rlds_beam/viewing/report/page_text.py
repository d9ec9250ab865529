"""Text and numbers as a report shows them: jinja2 escapes HTML, this module makes the rest harmless."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from typing import Any

from markupsafe import Markup, escape

from rlds_beam.text import format_size

MAX_CHARACTERS = 4000
"""The number of characters of one text that a page shows."""

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # change the direction of the text around them
    "\u2028\u2029\ufeff\ufff9-\ufffb\ud800-\udfff]"  # separators, marks, and halves of characters
)


_FLAG = re.compile(r"(?<![\w-])--[a-z]\w*=?")


def visible(value: object) -> object:
    """A text with characters that hide or reorder other text as `\\u202e`, cut after `MAX_CHARACTERS` characters.

    Used for every expression of a template. Markup and other values are returned unchanged.
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    text = _UNSEEN.sub(lambda found: f"\\u{ord(found.group()):04x}", value[:MAX_CHARACTERS])
    return f"{text}… ({len(value) - MAX_CHARACTERS:,} more characters)" if len(value) > MAX_CHARACTERS else text


def code(text: str) -> Markup:
    """A text with code between backticks, and with flags that no line break divides."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return _with_flags(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(visible(part)) if place % 2 else _with_flags(part)
        for place, part in enumerate(parts)
    )


def _with_flags(text: str) -> Markup:
    return Markup(_FLAG.sub(r'<code class="flag">\g<0></code>', str(escape(visible(text)))))


def value(content: Any) -> str:
    """A value of JSON as text: a text as it is."""
    return content if isinstance(content, str) else json.dumps(content)


def one_line(value: str) -> str:
    """A text to copy into a terminal: no line break can run a command."""
    return " ".join(value.split())


def json_data(value: Any) -> Markup:
    """JSON for `<script type="application/json">`: no `<`, `>`, or `&`, only ASCII, sorted names."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"), sort_keys=True)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def image_data(jpeg: bytes) -> Markup:
    """A JPEG as a `data:` URI."""
    return Markup(f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode('ascii')}")


def digest(content: str) -> str:
    """The hash that allows an inline script or style in a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode('ascii')}'"


NOTHING = "-"
"""Shown for a value that is missing, NaN, or infinite."""


def number(value: float | None, digits: int = 4) -> str:
    """A number with thousands separators and `digits` significant digits: `1,234`, `0.01235`, `1.2e-07`."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e15):
        return f"{int(value):,}"
    size = math.floor(math.log10(abs(value)))
    if -4 <= size < 9:
        text = f"{value:,.{max(0, digits - 1 - size)}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.{digits - 2}e}"


def compact(value: float | None) -> str:
    """A number for an axis: three significant digits."""
    return number(value, 3)


def percent(part: float, whole: float) -> str:
    """A share as text: `12.5 %`; what is not zero is never shown as 0 %, what is not all never as 100 %."""
    if not whole:
        return NOTHING
    share = 100 * part / whole
    if 0 < share < 0.1:
        return "< 0.1 %"
    if 99.9 < share < 100:
        return "> 99.9 %"
    return f"{share:.1f}".rstrip("0").rstrip(".") + " %"


def duration(steps: int, fps: float | None) -> str:
    """The duration of steps: `3.2 s`, `2 min 05 s`, `1 h 12 min`; empty if the rate is unknown."""
    if not fps or not math.isfinite(fps) or fps <= 0:
        return ""
    seconds = steps / fps
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60:02d} min"


def size(value: int) -> str:
    """A number of bytes: `1.2 MB`."""
    return format_size(value)
