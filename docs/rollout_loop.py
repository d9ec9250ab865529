"""Makes the loop of the LeRobot tutorial: the arm under the control of the trained policy.

    python docs/rollout_loop.py SCRATCH/run/checkpoints/last/pretrained_model

Run it in the tutorial's scratch directory and environment, after the long training: it rolls the policy out
as the tutorial's `roll_out.py` does. The first starts are shown, successes and failures; a failure gets a red frame.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

ROWS, COLUMNS, SIZE, GAP = 2, 4, 160, 8
EVERY, STILL = 2, 12
"""Every how many steps are shown, and for how many the last one stays."""


def draw(images: list[Any], colors: list[str | None]) -> Image.Image:
    page = Image.new("RGB", (COLUMNS * (SIZE + GAP) - GAP, ROWS * (SIZE + GAP) - GAP), "white")
    pen = ImageDraw.Draw(page)
    for i, (image, color) in enumerate(zip(images, colors, strict=True)):
        x, y = i % COLUMNS * (SIZE + GAP), i // COLUMNS * (SIZE + GAP)
        page.paste(Image.fromarray(image).resize((SIZE, SIZE), Image.Resampling.BICUBIC), (x, y))
        if color:
            pen.rectangle((x, y, x + SIZE - 1, y + SIZE - 1), outline=color, width=5)
    return page


def main() -> None:
    sys.path.insert(0, "")
    sys.argv = ["roll_out.py", sys.argv[1], "0"]
    roll_out = runpy.run_path("roll_out.py")["roll_out"]
    rollouts = [roll_out(seed) for seed in range(1000, 1000 + ROWS * COLUMNS)]
    pages = []
    for t in range(max(len(frames) for _, frames in rollouts) + STILL)[::EVERY]:
        ended = [t >= len(frames) - 1 for _, frames in rollouts]
        colors = [
            ("#1a7f37" if arm.success else "#cf222e") if end else None
            for end, (arm, _) in zip(ended, rollouts, strict=True)
        ]
        pages.append(draw([frames[min(t, len(frames) - 1)] for _, frames in rollouts], colors))
    motion: dict[str, Any] = {"save_all": True, "append_images": pages[1:], "duration": 100 * EVERY, "loop": 0}
    pictures = Path(__file__).parent / "pictures"
    pages[0].save(pictures / "rollouts.webp", quality=25, method=4, **motion)
    Image.fromarray(np.array(pages[-1])).quantize(128).save(pictures / "rollouts.png", optimize=True)


if __name__ == "__main__":
    main()
