"""The blocks of docs/how_to/rl_libraries.md, run on arrays with every kind of last step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import readme
from checkout import ROOT

import rlds_beam
from rlds_beam.episodes.episode import Episode
from rlds_beam.testing import make_episode, write_dataset

PAGE = ROOT / "docs" / "how_to" / "rl_libraries.md"
LENGTHS = (6, 4, 5)


def write_arrays(folder: Path) -> list[Episode]:
    """Writes `arrays` and the page's module into a folder; the second of the episodes is truncated."""
    episodes = [
        make_episode(length, seed=i, terminal=i != 1, observation={"velocity": 2}, action=2)
        for i, length in enumerate(LENGTHS)
    ]
    rlds_beam.convert(write_dataset(folder / "data", episodes), folder / "arrays", to="numpy", workers=1)
    module = next(block.code for block in readme.blocks(PAGE) if block.code.startswith("# recorded.py"))
    (folder / "recorded.py").write_text(module)
    return episodes


def run_block(heading: str, last_action: str, until: str = "\0") -> dict[str, Any]:
    """Runs the first Python block below a heading, up to a line, in this directory; returns its names."""
    block = next(b for b in readme.blocks(PAGE) if b.heading == heading and b.language == "python")
    code = block.code.partition(until)[0].replace('"arrays/train")', f'"arrays/train", "{last_action}")')
    names: dict[str, Any] = {}
    exec(compile(code, heading, "exec"), names)
    return names


def expected(episode: Episode, last_action: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """The observations, the actions and rewards that can be learned from, and whether it was terminated."""
    terminal = bool(episode.steps["is_terminal"][-1])
    transitions = len(episode) - (not (last_action == "real" and terminal))
    observations = np.asarray(episode.steps["observation/velocity"])
    return observations, episode.steps["action"][:transitions], episode.steps["reward"][:transitions], terminal
