"""The options of a job, in groups that jobs mix: each is Python API, flag and JSON at once.

Plain frozen dataclasses and nothing heavy, so that `--help` answers at once. A job's config
inherits the groups it needs (`class ConvertConfig(SourceOptions, CheckOptions, ...)`), and the
core functions take the group they need, so a config can be handed to them as it is.
The text in a field's metadata (`help`) is the flag's help.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from rlds_beam.errors import UsageError
from rlds_beam.rules import POLICIES, RULES, Policy


def option(default: Any, help: str, **metadata: Any) -> Any:
    """A dataclass field with a help text."""
    return dataclasses.field(default=default, metadata={"help": help, **metadata})


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What is done with an episode that breaks a rule. Later groups win: accept, repair, fail."""

    accept: tuple[str, ...] = option((), "rules whose breach is let through (comma separated)")
    repair: tuple[str, ...] = option((), "rules whose breach is mended where it can be (comma separated)")
    fail: tuple[str, ...] = option((), "rules whose first breach ends the job (comma separated)")
    max_image_pixels: int = option(1 << 26, "an image of more pixels is image_too_large")

    def __post_init__(self) -> None:
        for policy in ("accept", "repair", "fail"):
            for rule in getattr(self, policy):
                if rule not in RULES:
                    raise UsageError(f"--{policy}={rule}: there is no such rule; the rules are {', '.join(RULES)}")
                if policy not in POLICIES[rule]:
                    can = ", ".join(r for r in RULES if policy in POLICIES[r])
                    raise UsageError(f"--{policy}={rule}: {rule} cannot be {policy}ed; these can: {can}")

    def policy(self, rule: str) -> Policy:
        """What happens to an episode that breaks `rule`."""
        if rule in self.fail:
            return "fail"
        if rule in self.repair:
            return "repair"
        if rule in self.accept:
            return "accept"
        return "reject"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrameOptions:
    """How the steps of an episode become TF-Agents frames (one `Trajectory` a step)."""

    terminal_discount: Literal["transition", "boundary"] = option(
        "transition",
        "where a terminal state's discount 0 goes: on the frame that steps into it (what TF-Agents trains on), "
        "or on the boundary frame only (bit for bit what TF-Agents' rlds_to_reverb writes)",
    )
    last_step: Literal["drop", "absorbing"] = option(
        "drop",
        "the last step's action and reward: void, as RLDS says (drop), or meant, and kept by an added zero step "
        "(absorbing)",
    )
    policy_info_fn: str | None = option(
        None, "module:function, called with the columns (current_steps, next_steps) of an episode"
    )
    policy_info_fields: tuple[str, ...] = option((), "extra numeric step fields to carry in policy_info")
    observation_fields: tuple[str, ...] = option((), "observation fields to keep (all, if none is named)")


ItemKind = Literal["pairs", "sequences", "episodes", "frames"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ItemOptions:
    """Which frames make one training item; the names are those of TF-Agents' Reverb observers."""

    items: ItemKind = option("pairs", "what one item is")
    sequence_length: int = option(2, "frames in an item (sequences)")
    stride_length: int = option(1, "frames between the starts of two items (sequences)")
    pad_end_of_episodes: bool = option(False, "fill an episode shorter than an item with boundary frames")
    tile_end_of_episodes: bool = option(False, "start an item at every frame, filling the tail (needs padding)")
    across_episodes: bool = option(False, "let sequences run over the end of an episode into the next of the shard")
    max_sequence_length: int | None = option(None, "frames in an item at most (episodes)")
    bypass_partial_episodes: bool = option(False, "leave out longer episodes instead of rejecting them (episodes)")

    def __post_init__(self) -> None:
        if self.sequence_length < 1 or self.stride_length < 1:
            raise UsageError("--sequence_length and --stride_length must be at least 1")
        if self.tile_end_of_episodes and not self.pad_end_of_episodes:
            raise UsageError("--tile_end_of_episodes needs --pad_end_of_episodes")
        if self.items != "sequences":
            unused = [
                n
                for n in ("across_episodes", "pad_end_of_episodes")
                if getattr(self, n)
            ]
            if unused:
                raise UsageError(f"--{unused[0]} is for --items=sequences, not --items={self.items}")
        if self.items != "episodes" and (self.max_sequence_length is not None or self.bypass_partial_episodes):
            raise UsageError(f"--max_sequence_length is for --items=episodes, not --items={self.items}")

    @property
    def length(self) -> int | None:
        """Frames in an item; None for whole episodes; 1 for single frames (no time axis on disk)."""
        return {"pairs": 2, "sequences": self.sequence_length, "frames": 1, "episodes": None}[self.items]

    @property
    def stride(self) -> int:
        return self.stride_length if self.items == "sequences" else 1
