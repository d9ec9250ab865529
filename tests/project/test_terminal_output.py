"""Nothing but the places listed here writes to a terminal, so that text of a dataset cannot command it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from checkout import ROOT, parse

PACKAGES = [ROOT / "src" / "rlds_beam", *(ROOT / name for name in ("pipelines", "runners", "transforms"))]
COMMANDS = (ROOT / "pipelines", ROOT / "src" / "rlds_beam" / "cli")
"""What commands print is escaped by the streams that `cli.main` sets."""

PRINTING = {
    "src/rlds_beam/testing/conversions.py": "two numbers, from a test to its parent",
    "src/rlds_beam/terminal/tables.py": "our own colors and pictures",
    "src/rlds_beam/terminal/job_progress.py": "escaped",
    "src/rlds_beam/terminal/options.py": "what commands print",
    "src/rlds_beam/terminal/outcome.py": "what commands print",
    "src/rlds_beam/reverb/serving.py": "JSON for the process that started this one",
    "runners/worker_pool.py": "a port",
}
"""Modules outside of `pipelines` and `cli` that print, and why it is safe."""

WARNING = {f"src/rlds_beam/datasets/{name}.py" for name in ("index_builder", "mixtures", "opening")}
UNESCAPED = {
    "src/rlds_beam/text.py": "defines it",
    "src/rlds_beam/terminal/tables.py": "our own colors and pictures",
    "src/rlds_beam/terminal/job_progress.py": "the bar, whose facts are numbers",
}
RICH = {"src/rlds_beam/terminal/job_progress.py"}
CALLED = ("print", "write", "warn", "raw_stream", "print_styled")
STYLED = {"src/rlds_beam/terminal/tables.py", "src/rlds_beam/cli/commands/show.py"}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for file in sorted(package.rglob("*.py")):
            yield str(file.relative_to(ROOT)), parse(file)


def uses(tree: ast.AST) -> Iterator[str]:
    """What a module calls and imports that may write to a terminal."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in CALLED:
            yield ast.unparse(node.func).rpartition("__import__")[2]
        elif isinstance(node, ast.Import):
            yield from (f"import {alias.name.partition('.')[0]}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield f"import {node.module.partition('.')[0]}"
        elif isinstance(node, ast.Attribute) and node.attr in ("buffer", "__stdout__", "__stderr__"):
            yield node.attr if node.attr != "buffer" or ast.unparse(node.value).startswith("sys.std") else ""


def test_only_these_modules_write_to_a_terminal() -> None:
    found = {path: set(uses(tree)) for path, tree in modules()}
    assert len(found) > 400

    def using(*names: str) -> set[str]:
        return {path for path, used in found.items() if used & set(names)}

    commands = {path for path in found if any((ROOT / path).is_relative_to(folder) for folder in COMMANDS)}
    assert using("print") - commands == PRINTING.keys()
    assert using("sys.stdout.write", "sys.stderr.write", "buffer", "__stdout__", "__stderr__") == set()
    assert using("warnings.warn") == WARNING
    assert using("raw_stream") == UNESCAPED.keys()
    assert using("import rich") == RICH
    assert using("print_styled") <= STYLED
