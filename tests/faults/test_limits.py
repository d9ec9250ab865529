"""A system that cannot start more threads or processes: the job ends with one line, whatever it was doing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import ALL
from jobs import complaints
from processes import RLDS_BEAM, end_of, start

from rlds_beam.testing import make_episode, write_dataset

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user whose threads are limited")
USER = 50_000
CAPABILITIES = "+dac_override,+dac_read_search"
"""Capabilities of a non-root user (so that the limit applies) who can read what root reads."""


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that every user can enter."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize(
    ("workers", "limit"),
    [(workers, limit) for workers in (1, 2) for limit in range(6, 31, 4 if ALL else 8)],
)
def test_no_more_threads(home: Path, workers: int, limit: int) -> None:
    data = write_dataset(home / "data", [make_episode(20, seed=i) for i in range(8)], shards=2)
    become = ["setpriv", f"--reuid={USER + limit + 100 * workers}", f"--regid={USER}", "--clear-groups"]
    limited = [f"--inh-caps={CAPABILITIES}", f"--ambient-caps={CAPABILITIES}", "prlimit", f"--nproc={limit}"]
    command = [*RLDS_BEAM, "convert", str(data), str(home / "out"), f"--workers={workers}", "--progress=none"]
    environment = {**os.environ, "TMPDIR": str(home), "PYTHONFAULTHANDLER": "1"}
    with start([*become, *limited, *command], env=environment) as process:
        code, out, err = end_of(process)
    if code == 0:  # the limit was high enough
        return
    assert (code, out) == (1, "")
    assert len(complaints(err)) == 1 and err.startswith("rlds-beam: "), err
    assert "start" in err, err
