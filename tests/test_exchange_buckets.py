"""`record` and the exports write into a bucket what they write on a disk."""

from __future__ import annotations

import json

import numpy as np
import pytest
from exchanging import export, open_job
from recorded import WALK, bytes_of, recorded

from rlds_beam.errors import UsageError
from rlds_beam.exchange.sources import open_source
from rlds_beam.testing import make_episode, write_dataset

pytest.importorskip("apache_beam")
from memory_store import ROOT, below


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    columns = {"propensity": np.full(5, 0.5), "action": np.arange(5) % 3}
    episodes = [make_episode(5, seed=i, observation=2, columns=columns) for i in range(4)]
    return write_dataset(tmp_path_factory.mktemp("data"), episodes, shards=2)


@pytest.mark.parametrize("to", ["numpy", "d3rlpy", "minari", "rllib", "scope_rl"])
def test_an_export(data, tmp_path, to):
    export(data, tmp_path / "out", to)
    export(data, f"{ROOT}/{to}/out", to)
    there = below(f"{ROOT}/{to}/out")
    assert there == bytes_of(tmp_path / "out")
    assert json.loads(there["manifest.json"])["name"] == "testing"
    assert open_job(data, f"{ROOT}/{to}/out", to).look().complete
    if to in ("numpy", "d3rlpy", "minari"):  # which are read through memory maps, or h5py
        with pytest.raises(UsageError, match=r"from local disks only; copy it first"):
            open_source(f"{ROOT}/{to}/out", from_=to)


def test_a_recording(tmp_path):
    recorded(tmp_path / "out", "random", env=WALK, episodes=20)
    recorded(f"{ROOT}/recorded/out", "random", env=WALK, episodes=20)
    assert below(f"{ROOT}/recorded/out") == bytes_of(tmp_path / "out")
