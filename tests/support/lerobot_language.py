"""Annotations of LeRobot datasets: `language_persistent` and `language_events`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Rows = list[dict[str, Any]]


def persistent(episode: int) -> Rows:
    """The rows of an episode; the first one has none."""
    return [
        {
            "role": "assistant",
            "content": f'reach {i} é\n"x"',
            "style": "subtask",
            "timestamp": i / 10,
            "camera": None,
            "tool_calls": None,
        }
        for i in range(episode)
    ]


def events(episode: int, frame: int) -> Rows:
    """The rows of a frame: a spoken sentence in the second frame, and a question about a camera in the third."""
    call = {"type": "function", "function": {"name": "say", "arguments": {"text": f"episode {episode}"}}}
    if frame == 1:
        return [{"role": "assistant", "content": None, "style": None, "camera": None, "tool_calls": [call]}]
    if frame == 2:
        return [
            {
                "role": "user",
                "content": "what is that?",
                "style": "vqa",
                "camera": "observation.images.top",
                "tool_calls": None,
            }
        ]
    return []


def annotate(root: Path, materialize: Any = None) -> None:
    """Adds both columns to a v3.0 dataset, as LeRobot's annotation pipeline does.

    Args:
      materialize: LeRobot's own function that adds them to a table.
    """
    for file in sorted(root.glob("data/*/*.parquet")):
        table = pq.read_table(file)
        places = list(zip(table["episode_index"].to_pylist(), table["frame_index"].to_pylist(), strict=True))
        of_episodes, of_frames = [persistent(e) for e, _ in places], [events(e, t) for e, t in places]
        if materialize is not None:
            table = materialize(table, of_episodes, of_frames)
        else:
            table = table.append_column("language_persistent", pa.array(of_episodes))
            table = table.append_column("language_events", pa.array(of_frames))
        pq.write_table(table.replace_schema_metadata(None), file)
    info = json.loads((root / "meta/info.json").read_text())
    for name in ("language_persistent", "language_events"):
        info["features"][name] = {"dtype": "language", "shape": [1], "names": None}
    (root / "meta/info.json").write_text(json.dumps(info))
