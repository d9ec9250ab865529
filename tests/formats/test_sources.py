"""Sources of other programs: files of another kind, and names with special characters."""

from __future__ import annotations

import numpy as np
import pytest
from exchanging import export, read_back

from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.testing import make_episode, write_dataset


def test_files_of_another_kind(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["rewards"] = np.ones(3)
    with pytest.raises(UsageError, match=r"x.h5: no shipped profile fits"):
        open_source(str(tmp_path / "x.h5"), from_="hdf5")
    with pytest.raises(UsageError, match=r"--features=f: --from=hdf5 takes no features.json"):
        open_source(str(tmp_path / "x.h5"), from_="hdf5", features="f")


FROM = {
    "lerobot": {"fps": 10},
    "lerobot 2.1": {"fps": 10, "lerobot_version": "2.1"},
    "rlds": {},
    "zarr": {},
}


@pytest.mark.parametrize("of", FROM)
def test_special_characters_in_a_directory_name(tmp_path, of):
    data = write_dataset(tmp_path / "data[1]", [make_episode(4, seed=i, observation={"x": 2}) for i in range(2)])
    to = of.split()[0]
    made = tmp_path / "a*b[12]?"
    export(data, made, to, **FROM[of])
    assert [len(episode) for episode in read_back(made, to)] == [4, 4]
