"""TFDS's own builders of robomimic and this source read the same file; each difference is explained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from exchanging import read_back
from hdf5_robots import robomimic

from rlds_beam.images.encoded_images import EncodedImages


@pytest.mark.parametrize("builder", ["robomimic_ph", "robomimic_mh", "robomimic_mg"])
def test_every_field_is_that_of_tfds(tmp_path: Path, builder: str) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    pytest.importorskip("h5py")
    robomimic(tmp_path, [4, 7, 5])
    kind = builder.removeprefix("robomimic_")
    theirs = tfds.builder(f"{builder}/lift_{kind}_low_dim", data_dir=str(tmp_path / "tfds"))
    examples = dict(theirs._generate_examples({"file_path": str(tmp_path / "low_dim.hdf5")}))
    ours = read_back(tmp_path, "hdf5")
    # TFDS takes the groups in the order of their names as text, we in the order of their numbers, within each split.
    assert sorted(examples) == sorted(e.metadata["group"].decode().removeprefix("data/") for e in ours)
    for episode in ours:
        example = examples[episode.metadata["group"].decode().removeprefix("data/")]
        steps = example["steps"]
        for name, values in steps["observation"].items():
            column = episode.steps[f"observation/{name}"]
            column = column.decode() if isinstance(column, EncodedImages) else column
            assert column.dtype == values.dtype and np.array_equal(column, values), name
        for name in ("action", "reward", "states", "is_first", "is_last", "is_terminal"):
            assert np.array_equal(episode.steps[name], steps[name]), name
            assert episode.steps[name].dtype == steps[name].dtype, name
        # TFDS's discount is 0 at the last step alone. By RLDS, the discount belongs to the action: that which leads to
        # the terminal state has 0.
        assert steps["discount"].tolist() == [1] * (len(episode) - 1) + [0]
        assert episode.steps["discount"].tolist() == [1] * (len(episode) - 2) + [0, 0]
        # `horizon` is a constant of TFDS, not in the file; episode_id is the name of the group.
        assert example.keys() - {"steps", "horizon", "episode_id"} == {"20_percent", "train", "valid"}
        for mask in ("20_percent", "train", "valid"):
            assert episode.metadata[f"mask/{mask}"] == example[mask]
        assert set(episode.steps) == {f"observation/{o}" for o in steps["observation"]} | set(steps) - {"observation"}


def test_ends_within_an_episode_differ_from_tfds(tmp_path: Path) -> None:
    """With done_mode=0, `dones` is 1 while the task is solved. TFDS copies that.

    In RLDS only the last step may be terminal.
    """
    h5py = pytest.importorskip("h5py")
    robomimic(tmp_path, [6])
    with h5py.File(tmp_path / "low_dim.hdf5", "a") as root:
        root["data/demo_0/dones"][...] = [0, 0, 1, 1, 1, 1]
    (episode,) = read_back(tmp_path, "hdf5")
    assert episode.steps["is_terminal"].tolist() == [False] * 6 + [True]
    with h5py.File(tmp_path / "low_dim.hdf5", "a") as root:
        root["data/demo_0/dones"][...] = 0
    (episode,) = read_back(tmp_path, "hdf5")
    assert not episode.steps["is_terminal"].any() and episode.steps["is_last"][-1]  # truncated
    assert (episode.steps["discount"] == 1).all()
