"""What is written: the options."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from rlds_beam.errors import UsageError
from rlds_beam.options import Options, option

Images = Literal["raw", "jpeg", "copy", "video"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputOptions(Options):
    """What is written."""

    to: str = option(
        "trajectories",
        "trajectories, columns, rlds, keep_ranges, lerobot, numpy, d3rlpy, minari, rllib, scope_rl, or module:Class",
    )
    images: Images | None = option(
        None, "raw (decoded) or jpeg; of LeRobot datasets copy (as they are) or video; the first of each by default"
    )
    keep: tuple[str, ...] = option(
        (), "text, fields of the episode and episode_key, to carry in each item beside the trajectory (comma separated)"
    )


def images_option(options: Any, to: str, known: tuple[str, ...] = ("raw", "jpeg")) -> Any:
    """The value of `--images` for an output: the first that it knows, where none is given.

    Raises:
      UsageError: it is for another output.
    """
    if options.images is not None and options.images not in known:
        raise UsageError(f"--images={options.images}: --to={to} takes {' or '.join(known)}")
    return options.images or known[0]
