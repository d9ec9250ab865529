"""Memory that runs out, wherever it does, is one line of the command and an RldsBeamError in Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import complaints
from own_formats import options
from processes import run

import rlds_beam
from rlds_beam.errors import RldsBeamError
from rlds_beam.formats.rlds.source import RldsSource
from rlds_beam.testing import make_episode, write_dataset

OWN = "--from=own_formats:GreedySource"
COMMANDS: tuple[Sequence[str], ...] = (
    ("inspect",),
    ("validate",),
    ("validate", "--workers=2"),
    ("check",),
    ("stats",),
    ("report", "--output=OUT.html"),
    ("convert", "OUT"),
    ("convert", "OUT", "--workers=2"),
    ("convert", "OUT", "--to=rlds", "--workers=2"),
)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data", [make_episode(5, seed=i) for i in range(6)], shards=2)


@pytest.mark.parametrize("where", ["open", "decode"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_memory_runs_out(dataset: Path, tmp_path: Path, command: Sequence[str], where: str) -> None:
    name, *rest = (part.replace("OUT", str(tmp_path / "out")) for part in command)
    code, out, err = run([name, dataset, *rest, OWN], **options(GREEDY=where))
    (said,) = complaints(err)
    assert code == 1 and said.startswith("rlds-beam: there is not enough memory (Unable to allocate 1.00 EiB"), err
    assert "Traceback" not in out


@pytest.mark.parametrize("function", [rlds_beam.inspect, rlds_beam.validate, rlds_beam.check, rlds_beam.stats])
def test_memory_runs_out_in_python(dataset: Path, monkeypatch: pytest.MonkeyPatch, function: Any) -> None:
    def decode(*_: object) -> None:
        np.empty(1 << 57)

    monkeypatch.setattr(type(RldsSource.open(str(dataset)).decoder), "decode", decode)
    monkeypatch.setattr(type(RldsSource.open(str(dataset)).decoder), "decode_all", decode, raising=False)
    with pytest.raises(RldsBeamError, match=r"there is not enough memory \(Unable to allocate 1\.00 EiB"):
        function(dataset)
