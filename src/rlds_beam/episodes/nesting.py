"""Nesting by path: `{"observation/state": x}` and `{"observation": {"state": x}}`."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any


def nest(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Values by path as nested dicts."""
    nested: dict[str, Any] = {}
    for path, value in leaves.items():
        *parents, leaf = path.split("/")
        functools.reduce(lambda level, name: level.setdefault(name, {}), parents, nested)[leaf] = value
    return nested


def flatten(value: Any, path: str) -> dict[str, Any]:
    """The leaves of nested dicts by path, each below `path`; of anything else, the value itself at `path`."""
    if not isinstance(value, Mapping):
        return {path: value}
    return {leaf: v for name, below in value.items() for leaf, v in flatten(below, f"{path}/{name}").items()}


def nest_order(paths: Iterable[str]) -> list[str]:
    """The paths as `tf.nest` orders the leaves of nested dicts: sorted name by name."""
    return sorted(paths, key=lambda path: path.split("/"))
