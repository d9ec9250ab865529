"""Rolls out behavior policies in environments and records RLDS, with the propensity of each action."""

from __future__ import annotations

from rlds_beam import lazy

_HOMES = {
    "BasePolicy": "bases",
    "BehaviorPolicy": "policies",
    "Distribution": "policies",
    "EpsilonGreedyHead": "heads",
    "GaussianHead": "heads",
    "OnlineHead": "heads",
    "Propensity": "policies",
    "Random": "policies",
    "SoftmaxHead": "heads",
    "TruncatedGaussianHead": "heads",
    "mask_padding": "padding",
}

__getattr__, __dir__, __all__ = lazy.exports(
    __name__, {name: f"{__name__}.{module}" for name, module in _HOMES.items()}
)
