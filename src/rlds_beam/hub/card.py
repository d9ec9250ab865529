"""The card (README.md) of an output whose format writes none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlds_beam._version import __version__
from rlds_beam.output.plans import OutputPlan, holds
from rlds_beam.text import count, format_size, printable

CARD = "README.md"
_CARD = """---
tags:
- rlds-beam
- {to}
---

# {name}

{items} items in {files}, {size}: {held}, written by rlds-beam {version} from `{dataset}`. `manifest.json` lists the
files with their checksums, and `plan.json` the input and the options.

```python
import rlds_beam

{read}
```
"""


def card(directory: str, plan: OutputPlan, manifest: Mapping[str, Any], destination: str) -> str:
    """The text of the card.

    Args:
      directory: the output.
      plan: its plan.
      manifest: its manifest.
      destination: the repository that it is published in.
    """
    del directory
    to = printable(plan.content.get("to"), 40)
    readable = to in ("columns", "trajectories", "rlds")
    read = f'rows = rlds_beam.open_dataset("{destination}")' if readable else f'rlds_beam.inspect("{destination}")'
    return _CARD.format(
        to=to,
        name=manifest["name"],
        items=f"{manifest['items']:,}",
        files=count(len(manifest["shards"]), "file"),
        size=format_size(manifest["bytes"]),
        held=holds(plan),
        version=__version__,
        dataset=printable(plan.content.get("dataset"), 100).replace("`", "'"),
        read=read,
    )
