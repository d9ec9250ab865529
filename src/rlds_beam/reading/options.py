"""What to read: the options."""

from __future__ import annotations

import dataclasses

from rlds_beam.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceOptions(Options):
    """What to read."""

    from_: str = option(
        "rlds",
        "what the input is: rlds, merged, lerobot, numpy, minari, d3rlpy, d4rl, trajectories, envlogger, module:Class",
    )
    split: str | None = option(
        None, "split or slice, in TFDS's notation: train, train[:10%], train+test, all (all splits)"
    )
    features: str | None = option(None, "path of a features.json, if it is not in the input's directory")
