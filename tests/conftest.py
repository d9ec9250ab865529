"""The commands as fixtures: they run in this process, on Beam's in-process runner."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from jobs import Ran

from rlds_beam.pipelines.cli import main

pytest_plugins = ["optional"]

# No test is to depend on how fast the machine is.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


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


@pytest.fixture
def table():
    """Starts a Reverb server in this process with the tables that are given; its address."""
    import reverb

    with contextlib.ExitStack() as stack:

        def serve(*tables: Any) -> str:
            server = reverb.Server(list(tables))
            stack.callback(server.stop)
            return f"127.0.0.1:{server.port}"

        yield serve
