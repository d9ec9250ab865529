"""Draws the diagrams of the documentation into `pictures/`, light and dark.

    python docs/diagrams.py

`make docs` runs it, and a test fails if a file differs from what it draws.
"""

from collections.abc import Callable
from pathlib import Path

from svg import Picture, files

DIAGRAMS: dict[str, Callable[[], Picture]] = {}
"""File name -> the function that draws it."""


def diagram(draw: Callable[[], Picture]) -> Callable[[], Picture]:
    """Register a diagram under the name of its function."""
    DIAGRAMS[draw.__name__] = draw
    return draw


@diagram
def episode() -> Picture:
    picture = Picture(
        480, 250, "An episode",
        "Four RLDS steps. Each holds an observation, the action taken there, its reward and discount. "
        "The last step holds only an observation; its other values are void. Four steps make three transitions.",
    )  # fmt: skip
    left, width, gap = 92, 84, 12
    for row, (name, y) in enumerate({"observation": 66, "action": 96, "reward": 126}.items()):
        picture.text(left - 8, y + 17, name, size=14, anchor="end", color="muted")
        for step in range(4):
            x = left + step * (width + gap)
            void = step == 3 and row > 0
            label = "void" if void else f"{'oar'[row]}{step}"
            picture.box(
                x, y, width, 24, label,
                size=14, fill="panel" if void else "accent-soft", stroke="line" if void else "accent",
                color="muted" if void else "ink", dashed=void,
            )  # fmt: skip
    for step, flag in enumerate(("is_first", "", "", "is_last")):
        x = left + step * (width + gap) + width / 2
        picture.text(x, 36, f"step {step}", size=14, anchor="middle", bold=True)
        picture.text(x, 55, flag, size=13, anchor="middle", mono=True, color="muted")
    for transition in range(3):
        x = left + transition * (width + gap) + width / 2
        picture.line((x, 166), (x, 176), (x + width + gap, 176), (x + width + gap, 166), color="muted")
        picture.text(x + (width + gap) / 2, 194, f"transition {transition}", size=13, anchor="middle")
    picture.text(240, 232, "4 steps = 3 transitions", size=14, anchor="middle", color="muted")
    return picture


def drawn() -> dict[Path, str]:
    """Path -> content of all files."""
    pictures = {name.replace("_", "-"): draw() for name, draw in DIAGRAMS.items()}
    return {path: text for name, picture in pictures.items() for path, text in files(name, picture).items()}


if __name__ == "__main__":
    for path, text in drawn().items():
        path.write_text(text)
