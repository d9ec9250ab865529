"""How episodes become the items of a TF-Agents trajectory: the options."""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

from rlds_beam.errors import UsageError
from rlds_beam.options import Options, option

CASTS = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16")
"""The dtypes that trajectory records can hold: those that TF-Agents reads (example_encoding._validate_dtype)."""


class Cast(NamedTuple):
    """How a leaf is cast: to which dtype, and whether values may change (`!`)."""

    dtype: str
    lossy: bool = False

    def __str__(self) -> str:
        return self.dtype + ("!" if self.lossy else "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrameOptions(Options):
    """How the steps of an episode become TF-Agents frames (one `Trajectory` a step)."""

    terminal_discount: Literal["transition", "boundary"] = option(
        "transition",
        "where a terminal state's discount 0 goes: on the frame that steps into it (what TF-Agents trains on), "
        "or on the boundary frame only (bit for bit what TF-Agents' rlds_to_reverb writes)",
    )
    last_step: Literal["drop", "absorbing"] = option(
        "drop",
        "the last step's action and reward: invalid, as RLDS says (drop), or valid, and kept by an added zero step "
        "(absorbing)",
    )
    policy_info_fn: str | None = option(
        None,
        "module:function, called with the columns (current_steps, next_steps) of an episode",
        code=True,
        metavar="FUNCTION",
    )
    policy_info_fields: tuple[str, ...] = option(
        (), "extra numeric step fields to carry in policy_info", metavar="FIELDS"
    )
    observation_fields: tuple[str, ...] = option(
        (), "observation fields to keep (all, if none is named)", metavar="FIELDS"
    )
    cast: tuple[str, ...] = option(
        (),
        "leaves to write as another dtype: observation/grip=uint8,reward=float32; an episode with a value that would "
        "change is rejected, unless a ! follows: observation/grip=uint8!",
        metavar="LEAF=DTYPE",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for text in self.cast:
            path, _, dtype = text.partition("=")
            if not path or dtype.removesuffix("!") not in CASTS:
                raise UsageError(
                    f"--cast={text}: expected LEAF=DTYPE, or LEAF=DTYPE! where values may change, the dtype one of "
                    f"{', '.join(CASTS)}"
                )

    @property
    def casts(self) -> dict[str, Cast]:
        """From a trajectory leaf's path to how it is cast."""
        pairs = (text.split("=") for text in self.cast)
        return {path: Cast(dtype.removesuffix("!"), dtype.endswith("!")) for path, dtype in pairs}


ItemKind = Literal["pairs", "sequences", "episodes", "frames"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ItemOptions(Options):
    """Which frames make one training item; the names are those of TF-Agents' Reverb observers."""

    items: ItemKind = option("pairs", "what one item is")
    sequence_length: int = option(2, "frames in an item (sequences)", least=1)
    stride_length: int = option(1, "frames between the starts of two items (sequences)", least=1)
    pad_end_of_episodes: bool = option(False, "fill an episode shorter than an item with boundary frames")
    tile_end_of_episodes: bool = option(False, "start an item at every frame, filling the tail (needs padding)")
    across_episodes: bool = option(False, "let sequences run over the end of an episode into the next of the shard")
    max_sequence_length: int | None = option(None, "frames in an item at most (episodes)", least=1)
    bypass_partial_episodes: bool = option(False, "leave out longer episodes instead of rejecting them (episodes)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tile_end_of_episodes and not self.pad_end_of_episodes:
            raise UsageError("--tile_end_of_episodes needs --pad_end_of_episodes")
        if self.bypass_partial_episodes and self.max_sequence_length is None:
            raise UsageError("--bypass_partial_episodes needs --max_sequence_length")
        self._only_for(
            "sequences", "sequence_length", "stride_length", "pad_end_of_episodes", "tile_end_of_episodes",
            "across_episodes",
        )  # fmt: skip
        self._only_for("episodes", "max_sequence_length", "bypass_partial_episodes")

    def _only_for(self, items: str, *names: str) -> None:
        """Refuses options that would do nothing: those of another kind of items."""
        for field in dataclasses.fields(ItemOptions):
            if self.items != items and field.name in names and getattr(self, field.name) != field.default:
                raise UsageError(f"--{field.name} is for --items={items}, not --items={self.items}")

    @property
    def length(self) -> int | None:
        """Frames in an item; None for whole episodes; 1 for single frames (no time axis on disk)."""
        return {"pairs": 2, "sequences": self.sequence_length, "frames": 1, "episodes": None}[self.items]

    @property
    def stride(self) -> int:
        return self.stride_length if self.items == "sequences" else 1


Images = Literal["raw", "jpeg"]
