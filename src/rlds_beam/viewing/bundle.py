"""Joins the modules of the page into one script, for a report that is one file.

Each module becomes a function that returns its exports, in the order in which they need each other: `import {a} from
"./b.js"` becomes `const {a} = $b`. Imports and exports are as those of `page/`: named, at the start of a line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

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
