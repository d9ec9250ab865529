"""Parses connectors given on the command line: `--connectors="MinimumLength(10),FlipChannels"`."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

from rlds_beam.connectors.catalog import connector_class
from rlds_beam.errors import UsageError
from rlds_beam.text import count, shortened


def is_inline(text: str) -> bool:
    """Whether a value of `--connectors` lists connectors; otherwise it is a file or `module:name`."""
    return re.match(r"\s*\w+\s*(\(|,|$)", text) is not None and not text.endswith((".yaml", ".yml", ".json"))


def entries(text: str) -> list[dict[str, dict[str, Any]]]:
    """The entries of a connectors file that says the same: `[{"MinimumLength": {"transitions": 10}}]`.

    Nothing is evaluated: there are names of connectors, and literals.

    Raises:
      UsageError: the text is no such list, a connector does not exist, or it takes fewer arguments.
    """
    where = f"--connectors={shortened(text)}"
    try:
        parsed = ast.parse(f"[{text}]", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        parsed = None
    if not isinstance(parsed, ast.List):
        raise UsageError(f'{where}: expected a list such as "MinimumLength(10),FlipChannels", a file, or module:name')
    return [_entry(node, where) for node in parsed.elts]


def _entry(node: ast.expr, where: str) -> dict[str, dict[str, Any]]:
    call = node if isinstance(node, ast.Call) else None
    function = node if call is None else call.func
    if not isinstance(function, ast.Name):
        raise UsageError(
            f"{where}: {shortened(ast.unparse(node))}: expected the name of a connector; those without an entry point "
            "go into a file of connectors"
        )
    name = function.id
    takes = list(inspect.signature(connector_class(name, where)).parameters)
    given, named = (call.args, call.keywords) if call else ([], [])
    if len(given) > len(takes):
        raise UsageError(
            f"{where}: {name} takes {count(len(takes), 'argument')} ({', '.join(takes)}), not {len(given):,}"
        )
    arguments = dict(zip(takes, given, strict=False))
    for keyword in named:
        if keyword.arg is None or keyword.arg in arguments:
            twice = "**" if keyword.arg is None else f"{keyword.arg} is given twice"
            raise UsageError(f"{where}: {name}: {twice}; it takes {', '.join(takes)}")
        arguments[keyword.arg] = keyword.value
    return {name: {argument: _literal(value, f"{where}: {name}: {argument}") for argument, value in arguments.items()}}


def _literal(node: ast.expr, where: str) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        text = ast.unparse(node)
        quoted = f', for example "{text}"' if isinstance(node, (ast.Name, ast.Attribute)) else ""
        raise UsageError(f"{where}: expected a text in quotes, a number, or a list{quoted}") from None
