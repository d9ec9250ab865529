"""README.md of a LeRobot dataset: the card that the Hub shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rlds_beam.output.preview import SHOWN
from rlds_beam.text import count

_CARD = """---
tags:
- LeRobot
- rlds
task_categories:
- robotics
configs:
- config_name: default
  data_files: data/*/*.parquet
---

# {name}

{preview}{episodes}, {frames} at {fps} frames per second, {tasks}.

Converted from {source} by rlds-beam: `plan.json` lists the source files and options, `meta/rlds_beam.json` the original
field of each feature, and `report.json` what was read, repaired and rejected.

```json
{features}
```
"""


def card(name: str, info: Mapping[str, Any], source: str, *, preview: bool = False) -> str:
    """The text of the card.

    Args:
      source: what the dataset was converted from: ``HDF5 (`aloha`)``.
      preview: whether the dataset has a preview image.
    """
    shown = f"{SHOWN}\n\n" if preview else ""
    return _CARD.format(
        name=name, preview=shown, episodes=count(info["total_episodes"], "episode"), fps=info["fps"], source=source,
        frames=count(info["total_frames"], "frame"), tasks=count(info["total_tasks"], "task"),
        features=json.dumps(info["features"], indent=4),
    )  # fmt: skip
