"""Field names that become names of files or objects are checked; paths of files to write are tried first."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from exchanging import export, open_job, read_back

from rlds_beam.cli.main import main
from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.formats.registry import OUTPUTS
from rlds_beam.testing import make_episode, write_dataset

NAMES = {
    "newline": "two\nlines",
    "long": "x" * 300,
    "dot": ".",
    "dots": "..",
    "NUL": "a\0b",
    "dot below": "observation/.",
    "nothing below": "observation//x",
    "plain": "observation/more é",
}
REFUSED = {
    "numpy": {"newline", "long", "dot", "dots", "NUL"},
    "minari": {*NAMES} - {"plain"},
    "lerobot": {"newline", "long", "dot", "dots", "NUL"},
    "zarr": {"newline", "long", "NUL"},
}


def named(tmp_path: Path, *names: str) -> Path:
    episodes = [make_episode(3, seed=i, observation={"state": 2}, action=2) for i in range(2)]
    more = {name: np.arange(3, dtype=np.float32) + i for i, name in enumerate(names)}
    return write_dataset(tmp_path / "data", [e.replace(steps={**e.steps, **more}) for e in episodes])


@pytest.mark.parametrize(("to", "name"), [(to, name) for to, names in REFUSED.items() for name in sorted(names)])
def test_a_name_that_cannot_be_stored_is_refused_before_any_work(tmp_path, to, name):
    data = named(tmp_path, NAMES[name])
    with pytest.raises(UsageError, match=f"--to={to}: the field .* cannot be stored: "):
        open_job(data, tmp_path / "out", to, **({"fps": 10} if to == "lerobot" else {}))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", [to for to in OUTPUTS if to != "keep_ranges"])
def test_all_other_names_are_stored(tmp_path, to):
    names = [NAMES[name] for name in sorted({*NAMES} - REFUSED.get(to, set()))]
    data = named(tmp_path, *names)
    report = export(data, tmp_path / "out", to, **({"fps": 10} if to == "lerobot" else {}))
    assert report.rejected == 0 and report.items_written
    if to == "minari":
        pytest.importorskip("h5py")
    if to in ("numpy", "minari", "lerobot", "rlds", "zarr"):
        root = next((file.parent for file in (tmp_path / "out").rglob("features.json")), tmp_path / "out")
        for episode in read_back(root, to):
            for i, name in enumerate(names):
                (path,) = {name, f"info/{name}"} & {*episode.steps}
                assert episode.steps[path].tolist() == [i, 1 + i, 2 + i]


@pytest.mark.parametrize("to", ["numpy", "lerobot"])
def test_two_fields_with_one_stored_name_are_refused(tmp_path, to):
    data = named(tmp_path, "more/x", "more.x")
    with pytest.raises(UsageError, match="more"):
        open_job(data, tmp_path / "out", to, **({"fps": 10} if to == "lerobot" else {}))


def test_two_features_with_one_path_are_refused(tmp_path):
    """LeRobot's `more.x` and `more/x` are both more/x here."""
    export(named(tmp_path, "more/x"), tmp_path / "out", "lerobot", fps=10)
    (tmp_path / "out/meta/rlds_beam.json").unlink()
    info = tmp_path / "out/meta/info.json"
    content = json.loads(info.read_text())
    content["features"]["more/x"] = content["features"]["more.x"]
    info.write_text(json.dumps(content))
    with pytest.raises(UsageError, match="more/x is declared twice"):
        open_source(str(tmp_path / "out"), from_="lerobot")


@pytest.mark.parametrize(("command", "flag"), [("validate", "--report"), ("stats", "--output")])
@pytest.mark.parametrize("place", ["missing/x.json", "file/x.json", "directory"])
def test_an_unwritable_file_is_reported_before_the_dataset_is_read(tmp_path, capsys, command, flag, place):
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    # There is no such dataset, so the error about the file comes first.
    assert main([command, str(tmp_path / "nothing"), f"{flag}={tmp_path / place}"]) == 2
    assert f"{flag}={tmp_path / place}" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "directory").iterdir()] == []


def test_trying_a_file_leaves_nothing_behind(tmp_path, capsys):
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/old.json").write_text("old")
    assert main(["validate", str(tmp_path / "nothing"), f"--report={tmp_path / 'reports/old.json'}"]) == 2
    assert "nothing" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in (tmp_path / "reports").iterdir()] == [("old.json", "old")]
