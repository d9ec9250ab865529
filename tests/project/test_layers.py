"""Checks every import, also inside functions, against one table of which package may import which."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
from collections.abc import Iterator
from typing import NamedTuple

from checkout import ROOT, parse

CORE = ROOT / "src" / "rlds_beam"
FOLDERS = {"rlds_beam": CORE, **{f"rlds_beam.{top}": ROOT / top for top in ("transforms", "pipelines", "runners")}}

FLOOR = {
    "_version",
    "errors",
    "lazy",
    "naming",
    "options",
    "platforms",
    "plugins",
    "remote",
    "storage",
    "text",
    "typing",
    "user_functions",
    "worker_status",
}
"""Top-level modules that every package may import; they import each other, and no package."""

TESTING = "testing"
"""The package for tests, which no other package imports."""

BELOW = {
    "images": "",
    "episodes": "images",
    "encoding": "episodes",
    "reading": "encoding",
    "checking": "reading",
    "connectors": "checking",
    "trajectories": "checking",
    "processing": "connectors trajectories",
    "output": "processing",
    "formats": "output",
    "terminal": "output",
    "datasets": "formats terminal",
    "reverb": "formats",
    "recording": "datasets",
    "jobs": "reverb recording",
    "writing": "formats",
    "viewing": "jobs writing",
    "drop_in": "jobs",
    "transforms": "reverb viewing",
    "runners": "terminal transforms",
    "pipelines": "runners transforms",
    "cli": "pipelines",
    TESTING: "jobs",
    # A module that belongs to no package.
    "__main__": "cli",
}
"""Package -> the packages right below it. It may import these, all below them, and FLOOR (docs/architecture.md)."""

LAYERS: dict[str, set[str]] = {}
"""Package -> the packages that it may import, besides FLOOR."""
for package, below in BELOW.items():
    LAYERS[package] = {*below.split()}.union(*(LAYERS[name] for name in below.split()))

ALIASES = {"rlds_beam"}
"""Aliases that keep documented import paths: they import from anywhere, and our code never imports from them."""

AS_USERS = {"rlds_beam.pipelines.rlds_to_reverb", "rlds_beam.pipelines.rlds_to_trajectories"}
"""Pipelines written as a user would: they import public names only (test_public.py), which are aliases."""

LAZY_NAMES = {*ALIASES, "rlds_beam.options"}
"""Modules that may export names of other packages lazily (`lazy.exports`)."""

PATH = re.compile(r"(rlds_beam(\.\w+)+)(\.|:\w+)?")
"""A module name in a string, with an optional `:Class` (`user_functions.resolve`); an f-string may end in a dot."""


class Import(NamedTuple):
    """One import: its location, and the full name of the imported module or object."""

    module: str
    line: int
    target: str

    def __str__(self) -> str:
        return f"{self.module}, line {self.line}: {self.target}"


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package by name, parsed."""
    found = {}
    for package, folder in FOLDERS.items():
        for file in sorted(folder.rglob("*.py")):
            parts = (package, *file.relative_to(folder).with_suffix("").parts)
            found[".".join(parts).removesuffix(".__init__")] = parse(file)
    return found


def imports_of(module: str, tree: ast.Module) -> Iterator[Import]:
    """Yields imports of our modules anywhere in a module, and module names in its strings."""
    skipped = {id(node) for call in lazy_exports(tree) for node in ast.walk(call)} if module in LAZY_NAMES else set()
    for node in ast.walk(tree):
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}, line {node.lineno}: a relative import"
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            match = PATH.fullmatch(node.value)
            targets = [] if match is None else [match[1]]
        yield from (Import(module, node.lineno, target) for target in targets if target.startswith("rlds_beam."))


def lazy_exports(tree: ast.Module) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "exports"
    ]


def package_of(name: str) -> str:
    """The package of a module: `encoding` for `rlds_beam.encoding.wire`."""
    return name.split(".")[1]


def is_allowed(found: Import) -> bool:
    own, other = package_of(found.module), package_of(found.target)
    below = LAYERS.get(own, set())
    return own == other or other in FLOOR | below


@functools.cache
def all_imports() -> list[Import]:
    return [one for name, tree in modules().items() if name not in ALIASES | AS_USERS for one in imports_of(name, tree)]


def test_no_circles() -> None:
    """Also counts imports in functions, and those for type checking only."""
    graph: dict[str, set[str]] = {}
    for found in all_imports():
        target = found.target if found.target in modules() else found.target.rpartition(".")[0]
        shows_its_module = target.startswith(f"{found.module}.")  # a package, in its __init__
        if target in modules() and target not in (found.module, "rlds_beam") and not shows_its_module:
            graph.setdefault(found.module, set()).add(target)
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def test_every_import_points_down() -> None:
    assert [str(found) for found in all_imports() if not is_allowed(found)] == []


def test_every_package_is_in_the_table() -> None:
    packages = {folder.parent.name for folder in CORE.glob("*/__init__.py")} | {top.name for top in FOLDERS.values()}
    assert packages - {"rlds_beam"} - LAYERS.keys() == set()
