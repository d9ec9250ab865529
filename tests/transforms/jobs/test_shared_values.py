"""Values that are sent as names of files, and the directory that holds them."""

from __future__ import annotations

import contextlib
import pickle
import tempfile
from pathlib import Path

import pytest

import rlds_beam
from rlds_beam.jobs.example import make_episodes
from rlds_beam.testing import write_dataset
from rlds_beam.transforms.jobs.shared_values import Shared

VALUE = {"values": bytes(100_000)}


def test_a_value_is_sent_as_the_name_of_a_file_written_once(tmp_path: Path) -> None:
    shared = Shared(VALUE, str(tmp_path))
    assert shared.value is VALUE
    sent = pickle.dumps(shared)
    assert len(sent) < 1000
    again = pickle.loads(pickle.dumps(pickle.loads(sent)))
    assert again.value == shared.value == VALUE
    assert len(list(tmp_path.iterdir())) == 1


def test_without_a_directory_the_value_itself_is_sent() -> None:
    assert pickle.loads(pickle.dumps(Shared(VALUE))).value == VALUE


@pytest.mark.parametrize(("job", "workers"), [("check", 1), ("report", 1), ("stats", 1), ("report", 2)])
def test_a_job_gives_the_same_with_and_without_a_directory_and_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, workers: int
) -> None:
    data = write_dataset(tmp_path, make_episodes(20, broken=2), name="toy", shards=4)
    output = tmp_path / {"check": "x.parquet", "report": "x.html", "stats": "x.json"}[job]
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    pages = []
    for _ in range(2):
        getattr(rlds_beam, job)(data, output=output, workers=workers)
        pages.append(output.read_bytes())
        assert not list((tmp_path / "temporary").iterdir())
        monkeypatch.setattr("rlds_beam.pipelines.base.shared_directory", lambda _: contextlib.nullcontext())
    assert pages[0] == pages[1]
