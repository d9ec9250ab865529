"""The worker processes of the local runner."""

from __future__ import annotations

import os
from pathlib import Path

from processes import run

from rlds_beam.testing import make_episode, write_dataset

CONNECTORS = """
import atexit, os, pathlib

home = pathlib.Path(os.environ["EXITS"])
(home / f"{os.getpid()}.began").touch()
atexit.register((home / f"{os.getpid()}.ended").touch)


def unchanged(batch):
    return batch


CONNECTORS = [unchanged]
"""


def test_exit_functions_run_in_every_worker(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", [make_episode(20, seed=i) for i in range(8)], shards=2)
    (tmp_path / "with_exit.py").write_text(CONNECTORS)
    (home := tmp_path / "exits").mkdir()
    flags = ["--connectors=with_exit:CONNECTORS", "--workers=2", "--shards=8"]
    environment = {**os.environ, "EXITS": str(home), "PYTHONPATH": str(tmp_path)}
    code, _, err = run(["convert", data, tmp_path / "out", *flags], env=environment)
    assert code == 0, err
    began, ended = ({path.stem for path in home.glob(f"*.{what}")} for what in ("began", "ended"))
    assert began == ended and len(began) >= 2
