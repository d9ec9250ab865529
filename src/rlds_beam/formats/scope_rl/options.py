"""Options of the SCOPE-RL output."""

from __future__ import annotations

import dataclasses
from typing import Literal

from rlds_beam.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScopeRlOptions(Options):
    """SCOPE-RL output."""

    step_per_trajectory: int | None = option(
        None, "steps per trajectory (default: the longest episode)", least=1, shared=True
    )
    ragged: Literal["pad", "reject"] = option("pad", "what to do with shorter episodes")
    behavior_policy: str | None = option(None, "name of the behavior policy (default: the episodes' `policy`)")
    n_actions: int | None = option(None, "number of discrete actions (default: the largest recorded, plus 1)", least=1)
