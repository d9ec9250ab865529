"""How logged datasets are written for SCOPE-RL: the options."""

from __future__ import annotations

import dataclasses
from typing import Literal

from rlds_beam.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScopeRlOptions(Options):
    """How logged datasets are written."""

    step_per_trajectory: int | None = option(
        None, "steps of a trajectory (by default, of the longest episode)", least=1, shared=True
    )
    ragged: Literal["pad", "reject"] = option("pad", "what is done with a shorter episode")
    behavior_policy: str | None = option(None, "its name (by default, the `policy` of the episodes)")
    n_actions: int | None = option(
        None, "number of discrete actions (by default, up to the largest one recorded)", least=1
    )
