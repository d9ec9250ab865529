"""Public names: each module declares its own, each name is documented and exists, and no other claims to be public."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from checkout import ROOT

LAZY = ("rlds_beam", "rlds_beam.connectors", "rlds_beam.transforms", "rlds_beam.recording")
"""Packages whose names are imported when they are first used."""
MODULES = (
    *LAZY,
    "rlds_beam.checking.signals",
    "rlds_beam.output",
    "rlds_beam.reading",
    *(
        f"rlds_beam.pipelines.{job}"
        for job in (
            "check",
            "compare",
            "convert",
            "index",
            "push",
            "record",
            "report",
            "rlds_to_reverb",
            "rlds_to_trajectories",
            "stats",
        )
    ),
    *(f"rlds_beam.cli.commands.{name}" for name in ("browse", "example", "inspect", "serve", "show", "upload")),
    "rlds_beam.formats",
    "rlds_beam.options",
    "rlds_beam.reverb.serving",
    "rlds_beam.drop_in.scope_rl",
    "rlds_beam.testing",
)
IN_PLACE_OF_AGENTS = ("rlds_beam.drop_in.reverb_observers", "rlds_beam.drop_in.rlds_to_reverb")
"""Public modules that import TensorFlow, or whose users have it installed."""


def objects(module: str) -> Iterator[tuple[str, Any]]:
    """The public objects of a module, by full name."""
    imported = importlib.import_module(module)
    yield from ((f"{module}.{name}", getattr(imported, name)) for name in imported.__all__)


def own_docstring(thing: Any) -> str:
    """The docstring written for an object, not an inherited or generated one (dataclasses, named tuples)."""
    text = (vars(thing) if isinstance(thing, type) else {"__doc__": thing.__doc__}).get("__doc__") or ""
    return "" if isinstance(thing, type) and text.startswith(f"{thing.__name__}(") else text


@pytest.mark.parametrize("module", MODULES)
def test_each_public_name_resolves_and_has_a_docstring(module: str) -> None:
    assert [name for name, thing in objects(module) if not own_docstring(thing).strip()] == []
    assert own_docstring(importlib.import_module(module))
    assert len(set(importlib.import_module(module).__all__)) == len(importlib.import_module(module).__all__)


def documented(modules: tuple[str, ...]) -> dict[int, str]:
    """Maps the identity of each object described in the API reference of these modules to its name."""
    found: dict[int, str] = {}
    for page in sorted((ROOT / "docs" / "reference" / "api").glob("*.rst")):
        for kind, name, options in re.findall(r"^\.\. auto(\w+):: (\S+)\n((?:   :.*\n)*)", page.read_text(), re.M):
            module = name if kind == "module" else name.rpartition(".")[0]
            if module not in modules:
                continue
            if kind != "module":
                found[id(getattr(importlib.import_module(module), name.rpartition(".")[2]))] = name
            elif ":no-members:" not in options:
                found |= {id(thing): full_name for full_name, thing in objects(name)}
    return found


@pytest.mark.parametrize("modules", [MODULES, IN_PLACE_OF_AGENTS], ids=["core", "agents"])
def test_the_api_reference_describes_the_public_names_and_no_others(modules: tuple[str, ...]) -> None:
    if modules == IN_PLACE_OF_AGENTS:
        pytest.importorskip("tf_agents")
    public = {
        id(thing): name
        for module in modules
        for name, thing in objects(module)
        if not isinstance(thing, ModuleType)  # a job's module is a public module itself
    }
    found = documented(modules)
    assert {name for thing, name in public.items() if thing not in found} == set()
    assert {name for thing, name in found.items() if thing not in public} == set()
