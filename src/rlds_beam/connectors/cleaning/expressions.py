"""Evaluates conditions on an episode, for example `success and steps > 30`, in a small safe language."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.text import did_you_mean

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "matches": lambda text, pattern: re.fullmatch(pattern, text, re.DOTALL) is not None,
    "lower": lambda text: text.lower(),
    "abs": abs,
    "len": len,
}
_MAX_CHARACTERS = 10_000
"""The most characters of an expression."""


class EpisodeCondition:
    """A condition on an episode. Pickled as its text.

    A name is an episode field: `success`. Nested names use dots: `episode_metadata.task`; other names need
    `field("a-b/c")`. `first.X` and `last.X` are a step field's values at the first and the last step; `steps` is the
    number of steps; `split`, `shard`, and `position` are where the episode was read. Operators: and, or, not,
    comparisons, in, + - * / %. Functions: matches(text, pattern), lower, len, abs.

    Raises:
      UsageError: the text is not such an expression.
    """

    def __init__(self, text: str, where: str = "a condition"):
        self._text, self._where = text, where
        try:
            if len(text) > _MAX_CHARACTERS:
                raise ValueError(f"it has more than {_MAX_CHARACTERS} characters")
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise UsageError(f"{where}: {text!r} is not an expression: {error}") from None
        self._check(self._tree)

    def __reduce__(self) -> tuple[Any, ...]:
        return EpisodeCondition, (self._text, self._where)

    def holds(self, episode: Episode) -> bool:
        """Whether the condition is true for an episode.

        Raises:
          UsageError: a named field does not exist, or the values cannot be compared.
        """
        try:
            value = self._value(self._tree, episode)
            return bool(value.all() if isinstance(value, np.ndarray) else value)
        except UsageError:
            raise
        except Exception as error:  # operators may raise anything for odd values
            raise UsageError(f"{self._where}: {self._text!r} for {episode.key}: {error}") from None

    def _check(self, node: ast.AST) -> None:
        """Raises UsageError for anything outside the language."""
        kinds = (ast.BoolOp, ast.Compare, ast.Constant, ast.List, ast.Tuple, ast.Name, ast.Attribute)
        good = isinstance(node, kinds)
        if isinstance(node, ast.UnaryOp):
            good = isinstance(node.op, (ast.Not, ast.USub))
        elif isinstance(node, ast.BinOp):
            good = type(node.op) in _ARITHMETIC
        elif isinstance(node, ast.Compare):
            good = all(type(op) in _COMPARISONS for op in node.ops)
        elif isinstance(node, ast.Constant):
            good = isinstance(node.value, (str, int, float, bool))
        elif isinstance(node, ast.Call):
            good = isinstance(node.func, ast.Name) and node.func.id in (*_FUNCTIONS, "field") and not node.keywords
        elif isinstance(node, ast.Attribute):
            good = isinstance(node.value, (ast.Name, ast.Attribute))
        if not good:
            part = ast.get_source_segment(self._text.strip(), node) if isinstance(node, ast.expr) else None
            raise UsageError(
                f"{self._where}: {self._text!r}: {part or type(node).__name__} is not allowed; use fields of "
                f"the episode, comparisons, and, or, not, in, arithmetic, and {', '.join((*_FUNCTIONS, 'field'))}"
            )
        inner = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
        for child in inner:
            if isinstance(child, ast.expr):
                self._check(child)

    def _value(self, node: ast.AST, episode: Episode) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self._value(elt, episode) for elt in node.elts]
        if isinstance(node, ast.BoolOp):
            values = (self._value(value, episode) for value in node.values)
            return all(values) if isinstance(node.op, ast.And) else any(values)
        if isinstance(node, ast.UnaryOp):
            value = self._value(node.operand, episode)
            return not value if isinstance(node.op, ast.Not) else -value
        if isinstance(node, ast.BinOp):
            return _ARITHMETIC[type(node.op)](self._value(node.left, episode), self._value(node.right, episode))
        if isinstance(node, ast.Compare):
            return self._compare(node, episode)
        if isinstance(node, ast.Call):
            assert isinstance(node.func, ast.Name)
            given = [self._value(argument, episode) for argument in node.args]
            return self._field(str(given[0]), episode) if node.func.id == "field" else _FUNCTIONS[node.func.id](*given)
        return self._field("/".join(_names(node)), episode)

    def _compare(self, node: ast.Compare, episode: Episode) -> bool:
        left = self._value(node.left, episode)
        for op, right in zip(node.ops, node.comparators, strict=True):
            value = self._value(right, episode)
            if not np.all(_COMPARISONS[type(op)](left, value)):
                return False
            left = value
        return True

    def _field(self, path: str, episode: Episode) -> Any:
        known: Mapping[str, Any] = episode.metadata
        if path in known:
            return _plain(known[path])
        own = {
            "steps": len(episode),
            "split": episode.key.split,
            "shard": episode.key.shard,
            "position": episode.key.position,
        }
        if path in own:
            return own[path]
        place, _, field = path.partition("/")
        column = episode.steps.get(field)
        if place in ("first", "last") and column is not None and not isinstance(column, EncodedImages):
            return _plain(column[0 if place == "first" else -1])
        names = [*known, *own, *(f"{end}.{name}" for name in episode.steps for end in ("first", "last"))]
        there = f"there are {', '.join([*known, *own])}, and first.X and last.X of the steps"
        raise UsageError(
            f"{self._where}: {self._text!r}: there is no field {path.replace('/', '.')}"
            f"{did_you_mean(path, names, otherwise=there)}"
        )


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Attribute):
        return [*_names(node.value), node.attr]
    assert isinstance(node, ast.Name)
    return [node.id]


def _plain(value: Any) -> Any:
    """Text as `str`, a number as a Python number."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value.item() if isinstance(value, np.generic) else value
