"""All connectors by name, also those of other packages, and their sections in the help."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

from rlds_beam import plugins
from rlds_beam.connectors import CONNECTORS
from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean, shorten
from rlds_beam.user_functions import check_configurable

SECTIONS = {
    "Columns of a training batch": ("learner.columns",),
    "Other observations": ("learner.observations",),
    "Returns and advantages": ("learner.returns",),
    "Sequences and states": ("learner.sequences", "learner.models"),
    "Off-policy evaluation": ("statistics.importance",),
    "Normalization": ("statistics.normalization",),
    "Other episodes": ("cleaning.edits", "cleaning.resampling"),
    "Cleaning": ("cleaning.selection", "cleaning.idle", "cleaning.episode_lists"),
    "Action spaces, grippers": ("cleaning.rotations", "cleaning.relative_actions", "cleaning.dimensions"),
    "Images, text": ("cleaning.pixels", "cleaning.language", "cleaning.trajectory_functions"),
    "Agents, modules, batches": ("learner.agents",),
    "From a model to environments": ("learner.actions",),
    "Written for RLlib": ("learner.rllib",),
}
"""Section -> the modules whose connectors are in it. A connector of another module is an error."""


def names(modules: tuple[str, ...]) -> list[str]:
    """The connectors of modules, in the order in which they are defined."""
    loaded = [(module, importlib.import_module(f"rlds_beam.connectors.{module}")) for module in modules]
    return [name for module, loaded_module in loaded for name in vars(loaded_module) if CONNECTORS.get(name) == module]


def connector_names() -> list[str]:
    """All connectors, with those of other packages at the end."""
    return [*CONNECTORS, *(name for name in plugins.names("connectors") if name not in CONNECTORS)]


def connector_class(name: str, where: str = "help connectors") -> Any:
    """The class (or function) of a connector.

    Args:
      where: the place of the name, for messages.

    Raises:
      UsageError: there is none of that name, or another package's cannot be used.
    """
    if name in CONNECTORS:
        return getattr(importlib.import_module(f"rlds_beam.connectors.{CONNECTORS[name]}"), name)
    found = plugins.find("connectors", name)
    if found is None:
        raise UsageError(f"{where}: there is no connector {shorten(name)}{did_you_mean(name, connector_names())}")
    check_configurable(found, name, where)
    return found


def summary(name: str) -> str:
    """The first sentence of a connector's docstring."""
    text = " ".join((inspect.getdoc(connector_class(name)) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.:])\s(?=[A-Z])", text)[0].removesuffix(":")
