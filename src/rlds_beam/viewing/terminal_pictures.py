"""Pictures in a terminal: the graphics protocols of kitty and iTerm2, or colored half blocks."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Literal

from rlds_beam.images.encoding import encode_png
from rlds_beam.images.resizing import resize_colors
from rlds_beam.typing import Array

Protocol = Literal["kitty", "iterm2", "blocks"]
Images = Literal["auto", "always", "never"]

_CHUNK = 4096
"""Bytes of base64 in one of kitty's escape sequences."""
_CELL_WIDTH = 8
"""Pixels of a column, about: a picture is not shown larger than it is."""


def protocol_for(
    environment: Mapping[str, str], *, is_terminal: bool, encoding: str, images: Images
) -> Protocol | None:
    """How a terminal shows pictures; None if it cannot, or is not known to.

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
