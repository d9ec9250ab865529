"""The types of keyword arguments that editors and type checkers see."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT
from processes import DEADLINE

PROGRAM = """\
import rlds_beam

rlds_beam.convert("data", "out", items="sequences", sequence_length=3, to="lerobot", fps=10, connectors=[len])
rlds_beam.convert("data", "out", itmes="pairs")
rlds_beam.convert("data", "out", items="pair")
rlds_beam.push("data", reverb="localhost:8000", table="t", tabel="t")
rlds_beam.open_dataset("data", unit="steps", accept="non_finite").batches(3, shuffle=True)
rlds_beam.open_dataset("data", untis="steps")
rlds_beam.open_dataset("data").batches(3, suffle=True)
rlds_beam.show("data", 3, from_="zarr", raw_images="png")
"""
WRONG = {4: "itmes", 5: "items", 6: "tabel", 8: "untis", 9: "suffle"}
"""Lines with an error, and the argument that it names."""


def test_a_type_checker_knows_the_arguments_of_the_jobs(tmp_path: Path) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    package = tmp_path / "path" / "rlds_beam"
    package.mkdir(parents=True)
    folders = (ROOT / top for top in ("pipelines", "runners", "transforms"))
    for inner in (*(ROOT / "src" / "rlds_beam").iterdir(), *folders):
        (package / inner.name).symlink_to(inner)
    (tmp_path / "path" / "program.py").write_text(PROGRAM)
    modules = ["", ".datasets.dataset", ".datasets.opening", ".keywords", ".options", ".pipelines.functions"]
    modules = [*(f"--module=rlds_beam{module}" for module in (*modules, ".viewing.show")), "--module=program"]
    command = [sys.executable, "-m", "mypy", "--follow-imports=skip", "--ignore-missing-imports", *modules]
    command += ["--config-file=", f"--cache-dir={tmp_path / 'cache'}"]
    environment = {**os.environ, "MYPYPATH": str(tmp_path / "path")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    errors = [line for line in done.stdout.splitlines() if "program.py" in line and "error:" in line]
    assert [int(line.split(":")[1]) for line in errors] == [*WRONG], done.stdout + done.stderr
    assert all(f'"{name}"' in line for name, line in zip(WRONG.values(), errors, strict=True)), errors
