"""Sources of other programs: files of another kind, and names with special characters."""

from __future__ import annotations

import pytest
from exchanging import export, read_back

from rlds_beam.testing import make_episode, write_dataset

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
