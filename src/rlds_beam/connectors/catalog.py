"""The sections of all connectors, in the terminal and on the reference page."""

from __future__ import annotations

import importlib
import inspect
import re

from rlds_beam.connectors import CONNECTORS

SECTIONS = {
    "Columns of a training batch": ("learner.columns", "learner.metadata"),
    "Other observations": ("learner.observations", "learner.windows"),
    "Returns and advantages": ("learner.returns", "statistics.standardizing", "learner.truncating"),
    "Sequences and states": ("learner.sequences", "learner.states", "learner.models"),
    "Off-policy evaluation": ("statistics.importance",),
    "Normalization": ("statistics.normalizing", "learner.filtering"),
    "Other episodes": ("cleaning.editing", "cleaning.next_state", "cleaning.absorbing"),
    "Cleaning": ("cleaning.dropping", "cleaning.idle", "cleaning.selecting", "cleaning.listing", "cleaning.splitting"),
    "Images, text, grippers": (
        "cleaning.pixels",
        "cleaning.language",
        "cleaning.grippers",
        "cleaning.trajectory_functions",
    ),
    "Agents, modules, batches": ("learner.agents", "learner.batching"),
    "From a model to environments": ("learner.actions", "learner.outputs"),
    "Written for RLlib": ("learner.rllib",),
}
"""Section -> the modules whose connectors are in it. A connector of another module is an error."""


def names(modules: tuple[str, ...]) -> list[str]:
    """The connectors of modules, in the order in which they are defined."""
    found = [(modules.index(module), _line(name), name) for name, module in CONNECTORS.items() if module in modules]
    return [name for _, _, name in sorted(found)]


def connector_class(name: str) -> type:
    """The class of a connector."""
    found: type = getattr(importlib.import_module(f"rlds_beam.connectors.{CONNECTORS[name]}"), name)
    return found


def summary(name: str) -> str:
    """The first sentence of a connector's docstring."""
    text = " ".join((inspect.getdoc(connector_class(name)) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.:])\s(?=[A-Z])", text)[0].removesuffix(":")


def _line(name: str) -> int:
    return inspect.getsourcelines(connector_class(name))[1]
