"""Pictures of an episode: small JPEGs of its images, curves as pixels, and both in a terminal."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from rlds_beam.episodes.episode import Episode
from rlds_beam.images.codecs import encode_png
from rlds_beam.images.resizing import resize_colors
from rlds_beam.images.thumbnails import (
    find_image,
    is_image,
    join_pictures,
    small_pixels,
    spread,
    stack_rows,
)
from rlds_beam.typing import Array
from rlds_beam.viewing.facts import Curve


def find_cameras(episode: Episode) -> list[str]:
    """The paths of the step fields that hold images, sorted."""
    return sorted(path for path, column in episode.steps.items() if is_image(column))


def strip(episode: Episode, count: int, height: int, cameras: Sequence[str] | None = None) -> Array:
    """One picture of an episode: a row for each camera, a column for each of `count` steps.

    Returns:
      uint8 [H, W, 3]; all images of a row have `height` rows. Empty if the episode has no images.
    """
    steps = spread(len(episode), count)
    rows = []
    for path in (find_cameras(episode) if cameras is None else cameras) if steps else ():
        column = episode.steps[path]
        rows.append(join_pictures([small_pixels(find_image(column, step), height)[0] for step in steps], height))
    return stack_rows(rows)


COLORS = ((59, 130, 246), (245, 158, 11), (16, 185, 129), (239, 68, 68), (139, 92, 246), (236, 72, 153), (20, 184, 166))
_CURSOR = (220, 38, 38)
_MARGIN = 4


def draw_curves(curves: Sequence[Curve], height: int, width: int) -> Array:
    """Fields below each other as uint8 [height * fields, width, 3]; each dimension is scaled to its own range."""
    panels = [_panel(curve, height, width) for curve in curves]
    return np.concatenate(panels) if panels else np.zeros((0, width, 3), np.uint8)


def with_cursor(plot: Array, step: int, steps: int) -> Array:
    """A copy with a vertical line at a step."""
    marked = plot.copy()
    marked[:, round(step * (plot.shape[1] - 1) / max(1, steps - 1))] = _CURSOR
    return marked


def _panel(curve: Curve, height: int, width: int) -> Array:
    """A white panel with a line for each dimension: its values are interpolated at each pixel column."""
    panel = np.full((height, width, 3), 255, np.uint8)
    panel[-1] = 200
    values = curve.values
    at = np.linspace(0, len(values) - 1, width)
    room = height - 2 * _MARGIN - 1
    for i, column in enumerate(values.T):
        finite = np.isfinite(column)
        if not finite.any():
            continue
        low, high = column[finite].min() / 2, column[finite].max() / 2
        scaled = (column[finite] / 2 - low) / ((high - low) or 1.0)
        rows = np.rint(_MARGIN + (1 - np.interp(at, np.flatnonzero(finite), scaled)) * room).astype(int)
        before = np.concatenate([rows[:1], rows[:-1]])
        for x, (start, stop) in enumerate(np.sort(np.stack([before, rows], axis=1), axis=1).tolist()):
            panel[start : stop + 1, x] = COLORS[i % len(COLORS)]
    return panel


Protocol = Literal["kitty", "iterm2", "blocks"]
Images = Literal["auto", "always", "never"]

_CHUNK = 4096
"""Bytes of base64 in one of kitty's escape sequences."""
_CELL_WIDTH = 8
"""Pixels of a column, about: a picture is not shown larger than it is."""


def protocol_for(
    environment: Mapping[str, str], *, is_terminal: bool, encoding: str, images: Images
) -> Protocol | None:
    """The protocol by which a terminal shows pictures; None if it cannot, or is not known to.

    Args:
      environment: the environment variables.
      is_terminal: whether the output is a terminal.
      encoding: the encoding of the output; half blocks are not in all of them.
      images: `always` gives half blocks to outputs that are not known to show pictures.
    """
    if images == "never" or (images == "auto" and not is_terminal):
        return None
    name, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM", "")
    inside = name.startswith(("screen", "tmux")) or "TMUX" in environment  # which pass no pictures on
    if not inside and (name in ("xterm-kitty", "xterm-ghostty") or "KITTY_WINDOW_ID" in environment):
        return "kitty"
    if not inside and (program in ("iTerm.app", "WezTerm") or environment.get("LC_TERMINAL") == "iTerm2"):
        return "iterm2"
    if images == "always":
        return "blocks"
    colors = environment.get("COLORTERM") in ("truecolor", "24bit") and "NO_COLOR" not in environment
    return "blocks" if colors and encoding.lower().replace("-", "") == "utf8" and name != "dumb" else None


def picture(pixels: Array, protocol: Protocol, columns: int) -> str:
    """A picture as text for a terminal, ending in a line break.

    Args:
      pixels: uint8 [H, W, 3].
      columns: the width of the terminal.
    """
    if not pixels.size:
        return ""
    if protocol == "blocks":
        return _blocks(pixels, min(columns, pixels.shape[1]))
    wide = min(columns, -(-pixels.shape[1] // _CELL_WIDTH))
    data = base64.b64encode(encode_png(pixels[None])[0]).decode()
    if protocol == "iterm2":
        return f"\x1b]1337;File=inline=1;width={wide};preserveAspectRatio=1:{data}\x07\n"
    chunks = [data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK)]
    keys = [f"a=T,f=100,c={wide},", *[""] * (len(chunks) - 1)]
    return (
        "".join(
            f"\x1b_G{key}m={int(i < len(chunks) - 1)};{chunk}\x1b\\"
            for i, (key, chunk) in enumerate(zip(keys, chunks, strict=True))
        )
        + "\n"
    )


def _blocks(pixels: Array, columns: int) -> str:
    """Two pixels in each character: the upper one is the color of `▀`, the lower one that of the background."""
    rows = max(2, round(pixels.shape[0] * columns / pixels.shape[1] / 2) * 2)
    small = resize_colors(pixels[None], rows, columns)[0]
    lines = []
    for upper, lower in zip(small[::2].tolist(), small[1::2].tolist(), strict=True):
        cells = [
            f"\x1b[38;2;{r};{g};{b}m\x1b[48;2;{x};{y};{z}m▀" for (r, g, b), (x, y, z) in zip(upper, lower, strict=True)
        ]
        lines.append("".join(cells) + "\x1b[0m\n")
    return "".join(lines)
