"""Statistics as a table for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_COLUMNS = ("mean", "std", "min", "q01", "q50", "q99", "max")
_DEVIATION = 4
"""Calibration deviations up to this are attributed to chance; for one action, chance exceeds it once in 750 cases."""

_MOST = 32
"""Maximum number of printed dimensions per field; the JSON has all."""


def statistics_lines(content: Mapping[str, Any]) -> list[str]:
    """The table: one line per dimension of each field, and for the lengths and returns of the episodes.

    Args:
      content: `DatasetStatistics.to_json()`.
    """
    if not content["episodes"]:
        return ["episodes  none, so there are no statistics"]
    rows: list[tuple[str, ...]] = [("", *_COLUMNS)]
    for path, leaf in content["fields"].items():
        rows += _rows(path, leaf)
    for name in ("episode_length", "episode_return"):
        if content[name]:
            rows += _rows(name, content[name])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        f"episodes  {content['episodes']:,}, {content['transitions']:,} transitions",
        *(_line(row, widths) for row in rows),
        *_exactness(content),
        *_propensity_lines(content.get("propensities")),
    ]


def _rows(path: str, leaf: Mapping[str, Any]) -> list[tuple[str, ...]]:
    values = [np.reshape(leaf[name], -1) for name in _COLUMNS]
    size = len(values[0])
    names = [path] if size == 1 else [f"{path}[{i}]" for i in range(min(size, _MOST))]
    rows = [(name, *(f"{column[i]:.4g}" for column in values)) for i, name in enumerate(names)]
    if size > _MOST:
        rows.append((f"{path}: {size - _MOST:,} more", *("" for _ in _COLUMNS)))
    return rows


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    first, *others = row
    return "  ".join(
        [first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(others, widths[1:], strict=True))]
    ).rstrip()


def _exactness(content: Mapping[str, Any]) -> list[str]:
    error = max((leaf["quantile_error"] for leaf in content["fields"].values()), default=0.0)
    return [f"quantiles are within {error:.3%} of their value"] if error else []


def _propensity_lines(content: Mapping[str, Any] | None) -> list[str]:
    """Lines on whether the data allows off-policy evaluation (`PropensityStatistics.to_json`)."""
    if content is None:
        return []
    lines = [f"propensity      of {content['transitions']:,} transitions, the smallest {content['smallest']:.4g}"]
    if "calibration" in content:
        worst = content["calibration"]["largest_deviation"]
        fit = "fit" if worst <= _DEVIATION else "DO NOT FIT"
        chance = f"deviation {worst:.1f}; up to {_DEVIATION} is chance"
        lines.append(f"calibration     propensities {fit} how often actions occur ({chance})")
    if "support" in content:
        support, sizes = content["support"], content["effective_sample_size"]
        lines.append(f"support         mean ratio {support['mean']:.4f} +- {support['error']:.4f}; 1 is full support")
        lines.append(
            f"effective size  {sizes['transitions']:,.1f} of {sizes['of_transitions']:,} transitions, "
            f"{sizes['episodes']:,.1f} of {sizes['of_episodes']:,} episodes"
        )
    return lines
