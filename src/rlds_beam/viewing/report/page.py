"""Renders a report as one HTML file: the page of the browser (`viewing/page`) with the data inside, as JSON.

    html = render(document)

The file needs nothing else: style, scripts, images, and data are inside, and its Content-Security-Policy forbids
requests and any script but ours. Equal documents give equal bytes.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from importlib import resources
from typing import Any

from rlds_beam.viewing.bundle import bundle
from rlds_beam.viewing.episode_view import Json

POLICY = (
    "default-src 'none'; img-src data:; style-src {style}; script-src {scripts}; base-uri 'none'; form-action 'none'"
)


def render(document: Json) -> str:
    """The report as HTML."""
    style, scripts = _file("uPlot.min.css") + _file("viewer.css"), _scripts()
    policy = POLICY.format(style=_digest(style), scripts=" ".join(map(_digest, scripts)))
    theme, *others = (f"<script>{script}</script>" for script in scripts)
    values = {
        "POLICY": policy,
        "STYLE": style,
        "THEME": theme,
        "DATA": json_data(document),
        "SCRIPTS": "\n".join(others),
    }
    return re.sub(r"<!--([A-Z]+)-->", lambda found: values[found[1]], _read("report.html"))


def json_data(value: Any) -> str:
    """JSON for `<script type="application/json">`: no `<`, `>`, or `&`, only ASCII, sorted names."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"), sort_keys=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(content: str) -> str:
    """The hash that allows an inline script or style in a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode('ascii')}'"


@functools.cache
def _scripts() -> tuple[str, ...]:
    """The theme, uPlot, and the viewer with the data of its page instead of a server."""
    return _file("theme.js"), _file("uPlot.iife.min.js"), bundle("report.js", _file, {"source.js": "embedded.js"})


def _file(name: str) -> str:
    """A file of the page, or a vendored one, which may be inside `<style>` and `<script>`."""
    content = _read(name)
    assert not re.search("</(script|style)|<!--", content, re.IGNORECASE), f"{name} could end its element"
    return content


def _read(name: str) -> str:
    viewing = resources.files("rlds_beam.viewing")
    own = viewing / "page" / name
    return (own if own.is_file() else viewing / "vendored" / name).read_text(encoding="utf-8")
