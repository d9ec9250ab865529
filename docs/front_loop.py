"""Makes the loop on the front page, and its still, from episodes of `rlds-beam example --robot`.

    python docs/front_loop.py

The scenes: episodes as recorded, the one that breaks a rule, the windows that a learner gets, and the arm under the
control of a policy that was trained on them. Run it after a change of the arm; `make docs` does not, because encoders
differ between machines.
"""

from __future__ import annotations

import contextlib
import math
import re
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import rollout_loop
import svg
from PIL import Image, ImageDraw, ImageFont, ImageSequence

import rlds_beam
from rlds_beam.cli.commands import example

WIDTH, HEIGHT, SCALE, DRAWN = 800, 450, 1.2, 2
"""Size in pixels of a page; how much larger the file is, for sharp displays; and the scale at which it is drawn."""
MARGIN, TOP, TILE, GAP = 28, 94, 164, 27
STILL = 40
"""The frame for readers who prefer no motion."""
INK, MUTED, LINE, _, PAGE, ACCENT, SOFT, OK, _, _, _, BAD, _ = svg.THEMES["light"].values()
CURVES = {"shoulder": (ACCENT, "#aecfdd"), "elbow": ("#c2540a", "#ebc6ad"), "gripper": (OK, "#b3d4bc")}
"""Joint -> color of the window, and of the episode."""


class Frame:
    """A white card with a bar for each scene, a title, and a line below it."""

    def __init__(self, scene: int, progress: float, title: str, line: str, color: str = MUTED):
        self.image = Image.new("RGBA", (WIDTH * DRAWN, HEIGHT * DRAWN))
        self.draw = ImageDraw.Draw(self.image)
        self.box(0, 0, WIDTH, HEIGHT, fill=PAGE, stroke=LINE, width=1, radius=14)
        wide = (WIDTH - 2 * MARGIN - 3 * 8) / 4
        for i in range(4):
            x, done = MARGIN + i * (wide + 8), min(max(scene + progress - i, 0), 1)
            self.box(x, 14, x + wide, 18, fill=LINE, radius=2)
            if done:
                self.box(x, 14, x + max(4, wide * done), 18, fill=ACCENT, radius=2)
        self.text(MARGIN, 50, title, 27)
        self.text(MARGIN, 78, line, 20, color)

    def box(self, *corners: float, fill: Any = None, stroke: Any = None, width: float = 0, radius: float = 0) -> None:
        x0, y0, x1, y1 = (round(v * DRAWN) for v in corners)
        self.draw.rounded_rectangle((x0, y0, x1 - 1, y1 - 1), radius * DRAWN, fill, stroke, round(width * DRAWN))

    def text(self, x: float, y: float, content: str, size: float, color: str = INK, anchor: str = "ls") -> None:
        """A line of text in Pillow's own font, with its baseline at `y`; large text is bolder."""
        font, bold = ImageFont.load_default(size * DRAWN), size * DRAWN / 80 if size > 25 else 0
        self.draw.text((x * DRAWN, y * DRAWN), content, color, font, anchor, stroke_width=bold, stroke_fill=color)

    def line(self, points: Sequence[tuple[float, float]], color: str, width: float) -> None:
        self.draw.line([(x * DRAWN, y * DRAWN) for x, y in points], color, round(width * DRAWN), "curve")

    def dot(self, x: float, y: float, radius: float, color: str) -> None:
        self.box(x - radius, y - radius, x + radius, y + radius, fill=color, radius=radius)

    def picture(self, x: float, y: float, pixels: Any) -> None:
        """An image [H, W, 3] with round corners."""
        mask = Image.new("L", (TILE * DRAWN, TILE * DRAWN))
        ImageDraw.Draw(mask).rounded_rectangle((0, 0, *mask.size), 6 * DRAWN, 255)
        image = Image.fromarray(pixels).resize(mask.size, Image.Resampling.BICUBIC)
        self.image.paste(image, (round(x * DRAWN), round(y * DRAWN)), mask)


def tile(i: int) -> tuple[float, float]:
    """The place of the i-th of eight pictures."""
    return MARGIN + i % 4 * (TILE + GAP + 2.6), TOP + i // 4 * (TILE + 16)


def play(episodes: Sequence[rlds_beam.Episode]) -> Iterator[Frame]:
    """Scenes 1 and 2: all episodes play; when the interrupted one ends, each gets its mark."""
    steps = [episode.steps["observation/images/front"].decode() for episode in episodes]
    checks = [rlds_beam.validate_episode(episode, rlds_beam.CheckOptions()) for episode in episodes]
    ((bad, violation),) = ((i, check.violations[0]) for i, check in enumerate(checks) if check.violations)
    end, more = len(steps[bad]), 23
    for t in range(end + more):
        marks = t - end
        frame = Frame(0, (t + 1) / end, "Episodes, as they were recorded", "8 of a robot arm, 10 steps per second")
        if marks >= 0:
            frame = Frame(1, (marks + 1) / more, "Each one is checked, and one is set aside", str(violation), BAD)
        for i, images in enumerate(steps):
            x, y = tile(i)
            frame.picture(x, y, images[min(t, len(images) - 1)])
            if i == bad and marks >= 0:
                frame.box(x - 5, y - 5, x + TILE + 5, y + TILE + 5, stroke=BAD, width=5, radius=10)
                frame.box(x, y + TILE - 34, x + TILE, y + TILE, fill=BAD)
                frame.text(x + TILE / 2, y + TILE - 11, violation.rule, 20, PAGE, "ms")
            elif marks > i:
                frame.dot(x + TILE - 18, y + 18, 12, OK)
                frame.line([(x + TILE - 24, y + 18), (x + TILE - 19, y + 23), (x + TILE - 12, y + 13)], PAGE, 3)
        yield frame


def window(batch: dict[str, Any], steps: int) -> Iterator[Frame]:
    """Scene 3: what `batches` gives for each step of an episode."""
    left, right, top, bottom = 430, WIDTH - MARGIN, 130, 380
    actions = batch["action"][:steps, 0]
    low, high = math.floor(actions.min()), math.ceil(actions.max())

    def place(step: float, value: float) -> tuple[float, float]:
        return left + (right - left) * step / (steps - 1), bottom - (bottom - top) * (value - low) / (high - low)

    for t in range(8, 35):
        images = batch["observation/images/front"]
        shapes = f"images {list(images.shape[1:])}, action {list(batch['action'].shape[1:])}"
        frame = Frame(2, (t - 7) / 27, "What the learner gets", f"history=2, chunk=8: {shapes}")
        for row, camera in enumerate(("front", "wrist")):
            for i in range(2):
                x, y = MARGIN + i * (TILE + 10), TOP + row * (TILE + 10)
                frame.picture(x, y, batch[f"observation/images/{camera}"][t, i])
                frame.box(x + 8, y + TILE - 32, x + 62 - 16 * i, y + TILE - 8, fill=PAGE, radius=5)
                frame.text(x + 35 - 8 * i, y + TILE - 13, ("t - 1", "t")[i], 19, INK, "ms")
        frame.box(place(t, 0)[0] - 5, top - 6, place(t + 7, 0)[0] + 5, bottom + 6, fill=SOFT, radius=6)
        frame.text(place(t + 3.5, 0)[0], top - 14, "action: t to t + 7", 19, ACCENT, "ms")
        for value in range(low, high + 1):
            frame.line([place(0, value), place(steps - 1, value)], LINE, 1)
            frame.text(left - 10, place(0, value)[1], str(value), 18, MUTED, "rm")
        for j, (name, (color, pale)) in enumerate(CURVES.items()):
            frame.line([place(s, value) for s, value in enumerate(actions[:, j])], pale, 2)
            points = [place(t + k, value) for k, value in enumerate(batch["action"][t, :, j])]
            frame.line(points, color, 3)
            for point in points:
                frame.dot(*point, 4, color)
            frame.dot(left + 6 + j * 120, bottom + 42, 6, color)
            frame.text(left + 18 + j * 120, bottom + 49, name, 19, INK)
        yield frame


def roll_out() -> Iterator[Frame]:
    """Scene 4: the rollouts of the LeRobot tutorial (`rollout_loop.py`), with the result that it prints."""
    tutorial = (svg.PICTURES.parent / "tutorials" / "lerobot_training.md").read_text()
    ((steps, result),) = re.findall(r"after ([\d,]+) steps, (\d+ of \d+) starts succeed", tutorial)
    pages = list(ImageSequence.Iterator(Image.open(svg.PICTURES / "rollouts.webp")))
    for n, page in enumerate(pages):
        line = f"ACT, after {steps} steps of training: {result} new starts succeed, here the first eight"
        frame = Frame(3, (n + 1) / len(pages), "A policy that was trained on them moves the arm", line)
        for i in range(8):
            left, top = (side * (rollout_loop.SIZE + rollout_loop.GAP) for side in (i % 4, i // 4))
            pixels = page.convert("RGB").crop((left, top, left + rollout_loop.SIZE, top + rollout_loop.SIZE))
            frame.picture(*tile(i), np.asarray(pixels))
        yield frame


def main() -> None:
    episodes = list(example.make_episodes(8, broken=1, robot=True))
    episodes = episodes[-5:] + episodes[:-5]  # the interrupted one in the second row
    frames = [*play(episodes)]
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        path = rlds_beam.example("data", robot=True, episodes=8, broken=1)
        rlds_beam.convert(path, "converted", to="lerobot")
        batch = next(rlds_beam.open_dataset("converted", unit="steps").batches(64, history=2, chunk=8))
    frames += window(batch, int(np.flatnonzero(batch["is_first"])[1]))
    durations = [100] * len(frames)
    frames += roll_out()
    durations += [100 * rollout_loop.EVERY] * (len(frames) - len(durations) - 1) + [2400]
    size = round(WIDTH * SCALE), round(HEIGHT * SCALE)
    images = [frame.image.resize(size, Image.Resampling.LANCZOS) for frame in frames]
    motion = {"save_all": True, "append_images": images[1:], "duration": durations, "loop": 0}
    images[0].save(svg.PICTURES / "front.webp", quality=45, method=4, **motion)
    images[STILL].quantize(256).save(svg.PICTURES / "front.png", optimize=True)


if __name__ == "__main__":
    main()
