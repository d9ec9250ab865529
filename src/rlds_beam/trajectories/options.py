"""Options for converting episodes to items of TF-Agents trajectories."""

from __future__ import annotations

import dataclasses
from typing import Literal

from rlds_beam.errors import UsageError
from rlds_beam.options import Options, option

CASTS = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16")
"""The dtypes that TF-Agents can read from trajectory records (example_encoding._validate_dtype)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrameOptions(Options):
    """How to convert the steps of an episode to TF-Agents frames (one `Trajectory` per step)."""

    terminal_discount: Literal["transition", "boundary"] = option(
        "transition",
        "where a terminal state's discount 0 is: on the frame that steps into it, which TF-Agents trains on, or on the "
        "boundary frame, as in TF-Agents' rlds_to_reverb",
    )
    last_step: Literal["drop", "keep", "absorbing"] | None = option(
        None,
        "drop: the last step's action and reward are invalid, as in RLDS; keep: they are valid, and an added step with "
        "the last observation keeps them; absorbing: as keep, but the step added to a terminal episode is zeros "
        "(default: keep if the data says that last actions are real, else drop)",
    )
    policy_info_fn: str | None = option(
        None, "module:function(current_steps, next_steps) that computes policy_info", code=True, metavar="FUNCTION"
    )
    policy_info_fields: tuple[str, ...] = option((), "numeric step fields to add to policy_info", metavar="FIELDS")
    observation_fields: tuple[str, ...] = option((), "observation fields to keep (default: all)", metavar="FIELDS")
    cast: tuple[str, ...] = option(
        (),
        "cast leaves: observation/grip=uint8,reward=float32; a value that would change rejects, unless ! follows",
        metavar="LEAF=DTYPE",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for path, dtype in self.casts.items():
            if not path or dtype.removesuffix("!") not in CASTS:
                raise UsageError(f"--cast={path}={dtype}: expected LEAF=DTYPE or LEAF=DTYPE!, of {', '.join(CASTS)}")

    @property
    def casts(self) -> dict[str, str]:
        """Trajectory leaf path -> dtype, followed by `!` if values may change."""
        return {path: dtype for path, _, dtype in (text.partition("=") for text in self.cast)}


Images = Literal["raw", "jpeg"]
ItemKind = Literal["pairs", "sequences", "episodes", "frames"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ItemOptions(Options):
    """Which frames form one training item; names follow TF-Agents' Reverb observers."""

    items: ItemKind = option("pairs", "what one item holds")
    sequence_length: int = option(2, "frames per item", least=1, needs="items=sequences")
    stride_length: int = option(1, "frames between the starts of two items", least=1, needs="items=sequences")
    pad_end_of_episodes: bool = option(False, "pad shorter episodes with boundary frames", needs="items=sequences")
    tile_end_of_episodes: bool = option(
        False, "start an item at every frame, pad the tail", needs="pad_end_of_episodes"
    )
    across_episodes: bool = option(False, "continue in the next episode of the shard", needs="items=sequences")
    max_sequence_length: int | None = option(None, "most frames per item", least=1, needs="items=episodes")
    bypass_partial_episodes: bool = option(False, "skip longer episodes, do not reject", needs="max_sequence_length")

    @property
    def length(self) -> int | None:
        """The number of frames in an item; None for whole episodes; 1 for single frames (no time axis on disk)."""
        return {"pairs": 2, "sequences": self.sequence_length, "frames": 1, "episodes": None}[self.items]

    @property
    def stride(self) -> int:
        return self.stride_length if self.items == "sequences" else 1
