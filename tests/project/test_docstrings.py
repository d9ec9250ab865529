"""Docstrings name what exists."""

from __future__ import annotations

import importlib
import importlib.util
import re
from types import ModuleType

from checkout import ROOT

PACKAGES = {path.parent.name for path in (ROOT / "src" / "rlds_beam").glob("*/__init__.py")}
PACKAGES |= {"transforms", "pipelines", "runners"}
NAME = re.compile(r"(?<!`)`(?:rlds_beam\.)?([a-z_]+\.[a-z_.]+\.\w+)`")


def exists(name: str) -> bool:
    """Whether `package.module.name` is a module, or something in a module."""
    module, _, last = name.rpartition(".")
    try:
        found: ModuleType = importlib.import_module(f"rlds_beam.{module}")
    except ModuleNotFoundError as error:
        return not str(error.name).startswith("rlds_beam")  # an extra that is not installed
    return hasattr(found, last) or importlib.util.find_spec(f"rlds_beam.{name}") is not None


def test_names_in_docstrings_exist() -> None:
    files = [path for top in ("src", "transforms", "pipelines", "runners") for path in (ROOT / top).rglob("*.py")]
    names = {(name, path) for path in files for name in NAME.findall(path.read_text())}
    ours = {(name, path) for name, path in names if name.partition(".")[0] in PACKAGES}
    assert len(ours) > 30
    assert not {f"{path}: {name}" for name, path in ours if not exists(name)}
