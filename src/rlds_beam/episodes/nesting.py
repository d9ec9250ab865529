"""Converts between flat and nested dicts: `{"observation/state": x}` and `{"observation": {"state": x}}`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rlds_beam.errors import UsageError

Path = tuple["str | int", ...]


def below(path: str, name: str) -> bool:
    """Whether a path is `name` or a leaf below it: `observation/state` is below `observation`."""
    return path == name or path.startswith(name + "/")


def all_below(paths: Iterable[str], name: str) -> list[str]:
    """The paths that are `name` or below it."""
    return [path for path in paths if below(path, name)]


def nest(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Converts values by path to nested dicts, in the order of the paths.

    Raises:
      UsageError: a path is below another path that has a value.
    """
    nested: dict[str, Any] = {}
    for path, value in leaves.items():
        *parents, leaf = path.split("/")
        level = nested
        for depth, name in enumerate(parents, 1):
            level = level.setdefault(name, {})
            if not isinstance(level, dict):
                raise UsageError(f"{path}: {'/'.join(parents[:depth])} is a value, so nothing can be below it")
        level[leaf] = value
    return nested


def flatten(value: Any, path: str) -> dict[str, Any]:
    """The leaves of nested dicts by path, each below `path`; any other value is a leaf at `path`."""
    if not isinstance(value, Mapping):
        return {path: value}
    return {leaf: v for name, below in value.items() for leaf, v in flatten(below, f"{path}/{name}").items()}


def nest_order(paths: Iterable[str]) -> list[str]:
    """Sorts paths as `tf.nest` orders the leaves of nested dicts: name by name."""
    return sorted(paths, key=lambda path: path.split("/"))


def flatten_nest(nest: Any) -> tuple[tuple[Path, ...], list[Any]]:
    """The paths and leaves of a nest, in the order of `tf.nest`.

    Mappings (by sorted key), namedtuples, tuples, and lists are nests; everything else is a leaf. Empty nests have no
    leaves.
    """
    paths: list[Path] = []
    leaves: list[Any] = []
    _walk(nest, (), paths, leaves)
    return tuple(paths), leaves


def _walk(nest: Any, path: Path, paths: list[Path], leaves: list[Any]) -> None:
    if isinstance(nest, np.ndarray):  # the most common case
        paths.append(path)
        leaves.append(nest)
    elif isinstance(nest, tuple | list):
        for name, part in zip(getattr(nest, "_fields", range(len(nest))), nest, strict=True):
            _walk(part, (*path, name), paths, leaves)
    elif isinstance(nest, Mapping):
        for key in sorted(nest):
            _walk(nest[key], (*path, key), paths, leaves)
    else:
        paths.append(path)
        leaves.append(nest)
