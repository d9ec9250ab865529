"""Draws the pictures of the tutorials, from what they print and from the example episodes.

    python docs/gallery.py

`make docs` runs it, and a test fails if the files in `docs/pictures` differ from what it writes. The numbers of charts
come from the output blocks of the pages, which tests compare with what the commands print.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import svg

from rlds_beam.cli.commands.example import make_episodes
from rlds_beam.images.codecs import encode_jpeg

DOCS = Path(__file__).parent
WIDTH = 560

ROBOT = svg.PICTURES / "robot.jpg"
IMAGES = 6
"""Images in the strip of a camera."""


def robot() -> np.ndarray:
    """Returns the images of both cameras for six steps of an episode, uint8 [128 * 2, 128 * 6, 3]."""
    episode = list(make_episodes(4, robot=True))[3]
    chosen = np.linspace(4, len(episode) - 1, IMAGES).round().astype(int)
    rows = [episode.steps[f"observation/images/{name}"][chosen].decode().copy() for name in ("front", "wrist")]
    for images in rows:
        images[1:, :, :2] = images[:, :1] = 255  # lines between them
    return np.concatenate([np.concatenate(list(images), axis=1) for images in rows])


def curve(title: str, points: Sequence[tuple[float, float]], unit: str = "step") -> svg.Picture:
    """A learning curve through (step, loss); its axis begins at 0."""
    steps, losses = zip(*points, strict=True)
    described = ", ".join(f"{loss:g} at {unit} {step:g}" for step, loss in points)
    picture = svg.Picture(WIDTH, 260, title, f"Loss: {described}.")
    left, right, top, bottom = 60, WIDTH - 30, 52, 210
    high = max(losses)

    def place(step: float, loss: float) -> tuple[float, float]:
        x = left + (right - left) * (step - steps[0]) / (steps[-1] - steps[0])
        return x, bottom - (bottom - top) * loss / high

    picture.text(8, 24, title, size=18, bold=True)
    for loss in (0, high):
        x, y = place(steps[0], loss)
        picture.line((x, y), (right, y), dashed=True)
        picture.text(x - 10, y + 5, f"{loss:g}", anchor="end", color="muted")
    picture.line(*(place(*point) for point in points), color="accent", width=3)
    for point in points:
        x, y = place(*point)
        picture.box(x - 4, y - 4, 8, 8, fill="accent", stroke="", radius=4)
        picture.text(x, bottom + 26, f"{point[0]:g}", anchor="middle", color="muted")
    picture.text(x + 4, y - 12, f"{losses[-1]:g}", anchor="end", color="muted")
    picture.text((left + right) / 2, bottom + 46, unit, anchor="middle", color="muted")
    return picture


def bars(title: str, *values: tuple[str, float]) -> svg.Picture:
    """Bars from 0: what was recorded, in gray, and what is compared with it."""
    row, left = 34, 250
    described = ", ".join(f"{name} {value:g}" for name, value in values)
    picture = svg.Picture(WIDTH, 46 + row * len(values), title, f"{described}.")
    picture.text(8, 24, title, size=18, bold=True)
    longest = max(value for _, value in values)
    for i, (name, value) in enumerate(values):
        y = 46 + i * row
        width = (WIDTH - left - 60) * value / longest
        picture.text(left - 10, y + 16, name, anchor="end")
        picture.box(left, y, width, 22, fill="accent" if i else "muted", stroke="", radius=2)
        picture.text(left + width + 8, y + 16, f"{value:g}", bold=True)
    return picture


def printed(page: str, pattern: str) -> list[list[str]]:
    """The groups of a pattern in the output blocks of a tutorial, for each line that it matches."""
    text = (DOCS / "tutorials" / f"{page}.md").read_text()
    outputs = "".join(re.findall(r"^```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    return [list(match.groups()) for match in re.finditer(pattern, outputs, re.MULTILINE)]


def mean_returns(page: str) -> list[float]:
    """The mean returns that a tutorial prints, in its order."""
    return [float(value) for (value,) in printed(page, r"^episode_return +([\d.]+)")]


def charts() -> dict[str, svg.Picture]:
    """Name -> picture."""
    lerobot = [
        (float(step), float(loss)) for step, loss in printed("lerobot_training", r"^ *(\d+) steps: loss ([\d.]+)")
    ]
    recorded, trained = mean_returns("pytorch_training")
    logged, truth = mean_returns("off_policy_evaluation")
    estimates = printed("off_policy_evaluation", r"^(\w+_\w+) +([\d.]+)$")
    named = [
        (name.replace("self_normalized_", "self-normalized ").replace("_", "-"), float(v)) for name, v in estimates
    ]
    demo = [(float(step), float(loss)) for step, loss in printed("index", r"^ +step +(\d+) +loss ([\d.]+)")]
    returns = "Mean return in CartPole"
    return {
        "lerobot-loss": curve("LeRobot's ACT on the arm's episodes: loss", lerobot),
        "pytorch-returns": bars(returns, ("recorded episodes", recorded), ("trained policy", trained)),
        "estimates": bars("Mean return of the new policy", ("recorded policy", logged), *named, ("true value", truth)),
        "demo-loss": curve("make demo: loss of TF-Agents' behavioral cloning", demo),
    }


def pictures() -> dict[Path, str]:
    """Path -> content of the SVG files."""
    return {path: text for name, picture in charts().items() for path, text in svg.files(name, picture).items()}


def main() -> None:
    svg.write(pictures())
    (jpeg,) = encode_jpeg(robot()[None])
    ROBOT.write_bytes(jpeg)


if __name__ == "__main__":
    sys.exit(main())
