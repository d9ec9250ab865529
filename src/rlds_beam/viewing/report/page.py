"""Renders a report as one HTML file: the page of the browser (`viewing/page`) with the data inside, as JSON.

    html = render(document)

The file needs nothing else: style, scripts, images, and data are inside, and its Content-Security-Policy forbids
requests and any script but ours. Equal documents give equal bytes.

The modules of the page are joined into one script: each becomes a function that returns its exports, in the order in
which they need each other; `import {a} from "./b.js"` becomes `const {a} = $b`. Imports and exports are as those of
`page/`: named, at the start of a line.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

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


_IMPORT = re.compile(r'^(import|export) \{([^}]*)\} from "\./([\w.-]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_EXPORTS = re.compile(r"\bexport\s*\{([^}]*)\};?\s*$")


def bundle(entry: str, read: Callable[[str], str], replaced: Mapping[str, str] = {}) -> str:
    """The module `entry` and all that it imports as one script.

    Args:
      entry: the name of a module.
      read: returns the text of a module.
      replaced: modules that are used instead of others, by name.

    Raises:
      ValueError: modules import each other in a circle, or a form of import or export is not known.
    """
    parts: dict[str, str] = {}
    open_names: list[str] = []

    def add(name: str) -> str:
        name = replaced.get(name, name)
        if name in open_names:
            raise ValueError(f"{' -> '.join([*open_names, name])}: modules import each other")
        if name not in parts:
            open_names.append(name)
            parts[name] = _convert(name, read(name), add)
            open_names.remove(name)
        return _variable(name)

    add(entry)
    body = "\n".join(f"const {_variable(name)} = (() => {{\n{text}}})();" for name, text in parts.items())
    return f'"use strict";\n(() => {{\n{body}\n}})();\n'


def _convert(name: str, text: str, add: Callable[[str], str]) -> str:
    exports: list[str] = []

    def link(found: re.Match[str]) -> str:
        kind, names, other = found.groups()
        pairs = [_pair(one) for one in names.split(",") if one.strip()]
        if kind == "export":
            exports.extend(f"{new}: {add(other)}.{old}" for old, new in pairs)
            return ""
        return f"const {{ {', '.join(f'{old}: {new}' for old, new in pairs)} }} = {add(other)};"

    def keep(found: re.Match[str]) -> str:
        exports.extend(f"{new}: {old}" for old, new in map(_pair, found[1].split(",")))
        return ""

    text = _IMPORT.sub(link, text)
    exports.extend(f"{found}" for found in _EXPORT.findall(text))
    text = _EXPORTS.sub(keep, _EXPORT.sub("", text))
    if re.search(r"^(import|export)\b", text, re.MULTILINE):
        raise ValueError(f"{name}: this form of import or export is not known")
    return f"{text.rstrip()}\nreturn {{ {', '.join(exports)} }};\n"


def _pair(text: str) -> tuple[str, str]:
    """The two names of `a as b`."""
    old, _, new = text.strip().partition(" as ")
    return old, new or old


def _variable(name: str) -> str:
    return "$" + re.sub(r"\W", "_", name.removesuffix(".js"))
