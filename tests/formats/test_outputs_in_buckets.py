"""`record` and exports write the same files to a bucket as to a disk."""

from __future__ import annotations

import numpy as np
import pytest
from directories import bytes_of
from exchanging import export, open_job, read_back
from memory_store import memory_store
from recorded import WALK, recorded

from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.testing import make_episode, write_dataset


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    columns = {"propensity": np.full(5, 0.5), "action": np.arange(5) % 3}
    episodes = [make_episode(5, seed=i, observation=2, columns=columns) for i in range(4)]
    return write_dataset(tmp_path_factory.mktemp("data"), episodes, shards=2)


@pytest.fixture
def store():
    with memory_store() as store:
        yield store


def written(store):
    """The files of the output by relative path."""
    return {name.removeprefix(f"{store.root}/out/"): content for name, content in store.files.items()}


@pytest.mark.parametrize("to", ["numpy", "d3rlpy", "minari", "rllib", "scope_rl", "zarr"])
def test_an_export(data, tmp_path, store, to):
    export(data, tmp_path / "out", to)
    export(data, f"{store.root}/out", to)
    assert written(store) == bytes_of(tmp_path / "out")
    assert open_job(data, f"{store.root}/out", to).status().complete
    if to == "numpy":  # read with memory maps
        with pytest.raises(UsageError, match=r"from local disks only; copy it first"):
            open_source(f"{store.root}/out", from_=to)
    if to in ("zarr", "d3rlpy", "minari"):
        found, expected = (read_back(path, to) for path in (f"{store.root}/out", tmp_path / "out"))
        assert [episode.payload for episode in found] == [episode.payload for episode in expected]


def test_a_recording(tmp_path, store):
    recorded(tmp_path / "out", "random", env=WALK, episodes=20)
    recorded(f"{store.root}/out", "random", env=WALK, episodes=20)
    assert written(store) == bytes_of(tmp_path / "out")
