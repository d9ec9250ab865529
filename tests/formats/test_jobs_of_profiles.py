"""Every job on files of ALOHA, robomimic, ExoRL, and OGBench."""

from __future__ import annotations

import re
from pathlib import Path

import npz_data
import numpy as np
import pytest
from hdf5_robots import BUILDERS

from rlds_beam.cli.main import main
from rlds_beam.formats.registry import FORMATS
from rlds_beam.formats.sources import open_input
from rlds_beam.pipelines.convert import ConvertConfig

STEPS = [4, 7, 5]
OUTPUTS = [name for name, one in FORMATS.items() if one.output]
REFUSED = {"keep_ranges": "--velocity"}
"""Outputs that need more, and what."""
REFUSED_HDF5 = {**REFUSED, "scope_rl": "states must be vectors"}


@pytest.fixture(scope="module", params=["aloha", "robomimic", "exorl", "ogbench"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "exorl":
        npz_data.write_exorl(directory, len(STEPS), min(STEPS))
    elif request.param == "ogbench":
        np.savez_compressed(directory / "maze.npz", **npz_data.ogbench_arrays(tuple(STEPS)))
    else:
        pytest.importorskip("h5py")
        BUILDERS[request.param](directory, STEPS)
    return directory


def is_hdf5(files: Path) -> bool:
    return not [*files.glob("*.npz")]


def test_show_stats_check_and_report(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(files), "--episode=1"]) == 0
    assert "action" in capsys.readouterr().out
    assert main(["check", str(files), "--workers=1"]) in (0, 3)
    assert main(["stats", str(files), "--workers=1", f"--output={tmp_path / 'stats.json'}"]) == 0
    assert '"action"' in (tmp_path / "stats.json").read_text()
    assert main(["report", str(files), "--workers=1", f"--output={tmp_path / 'report.html'}"]) == 0
    assert ("image" if is_hdf5(files) else "observation") in (tmp_path / "report.html").read_text()
    assert "Traceback" not in capsys.readouterr().err


def test_browse(files: Path) -> None:
    browsing = pytest.importorskip("browsing")
    with browsing.browsing(files) as browser:
        keys = browser.list_keys()
        assert len(keys) == len(STEPS)
        shown = browser.json("/api/episode", key=keys[1])
        assert shown["violations"] == [] and shown["steps"] >= min(STEPS)


def test_push(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("reverb")
    push = ["push", str(files), "--reverb=embedded", "--table=replay", f"--checkpoint={tmp_path / 'state'}"]
    assert main([*push, "--workers=1"]) == 0
    found = re.search(r"(\d+) items", capsys.readouterr().out)
    assert found and int(found[1]) >= sum(STEPS) - len(STEPS)


@pytest.mark.parametrize("to", OUTPUTS)
def test_every_output(files: Path, to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unknown = open_input(ConvertConfig.create(str(files), str(tmp_path / "out"))).fps is None
    flags = ["--fps=20"] if to == "lerobot" and unknown else []
    code = main(["convert", str(files), str(tmp_path / "out" / "1.0.0"), f"--to={to}", "--workers=1", *flags])
    err = capsys.readouterr().err
    assert "Traceback" not in err
    refused = REFUSED_HDF5 if is_hdf5(files) else REFUSED
    if to in refused:
        assert code == 2 and refused[to] in err
        return
    assert code == 0, err
    assert main(["validate", str(tmp_path / "out" / "1.0.0"), "--workers=1"]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err
