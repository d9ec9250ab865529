"""The commands as fixtures: they run in this process, on Beam's in-process runner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jobs import Ran

from rlds_beam.pipelines.cli import main


@pytest.fixture
def convert(tmp_path, capsys):
    def run(source: Path | str, *flags: str, output: Path = tmp_path / "out") -> Ran:
        code = main(["convert", str(source), str(output), *flags])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err, output)

    return run


@pytest.fixture
def convert_only(convert):
    """Without the look for duplicates, which is most of what a tiny job takes."""

    def run(source: Path | str, *flags: str, **kwargs: Any) -> Ran:
        return convert(source, "--accept=duplicate_episode", *flags, **kwargs)

    return run


@pytest.fixture
def validate(tmp_path, capsys):
    def run(source: Path | str, *flags: str) -> tuple[int, dict[str, Any], str]:
        code = main(["validate", str(source), "--json", *flags])
        captured = capsys.readouterr()
        return code, json.loads(captured.out) if captured.out else {}, captured.err

    return run
