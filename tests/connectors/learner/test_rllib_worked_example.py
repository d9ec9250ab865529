"""The worked example of RLlib's learner pipeline: the command writes the arrays that RLlib 2.60 computes."""

from __future__ import annotations

import numpy as np
import pytest

import rlds_beam
from rlds_beam.cli.main import main
from rlds_beam.testing import make_episode, write_dataset

LEARNER = """
- AddObservationsFromEpisodesToBatch
- AddColumnsFromEpisodesToTrainBatch
- AddNextObservationsFromEpisodesToTrainBatch
- AddTimeDimToBatchAndZeroPad: {max_seq_len: 4}
- AddStatesFromEpisodesToBatch: {initial_state: {h: [-1.0]}}
- BatchIndividualItems
"""
T, F = True, False


def episode(first: int, transitions: int, *, terminal: bool):
    """Observations first, first + 1, ...; actions 0, 1, ...; the reward is the observation, the state half more."""
    observation = np.arange(first, first + transitions + 1, dtype=np.float32)
    columns = {
        "observation": observation[:, None],
        "action": np.arange(transitions + 1),
        "reward": observation,
        "state_out/h": observation[:, None] + np.float32(0.5),
    }
    return make_episode(transitions + 1, terminal=terminal, columns=columns)


@pytest.mark.parametrize("format", ["tfrecord", "parquet"])
def test_the_command_writes_rllibs_arrays(tmp_path, capsys, format):
    if format == "parquet":
        pytest.importorskip("pyarrow")
    data = write_dataset(tmp_path, [episode(0, 5, terminal=True), episode(10, 3, terminal=False)], name="worked")
    (tmp_path / "learner.yaml").write_text(LEARNER)
    command = ["convert", str(data), str(tmp_path / "out"), "--to=columns", f"--format={format}"]
    assert main([*command, f"--connectors={tmp_path / 'learner.yaml'}"]) == 0, capsys.readouterr().err
    columns = {name: np.asarray(c) for name, c in rlds_beam.open_dataset(tmp_path / "out").columns.items()}
    expected = {
        "obs": [[0, 1, 2, 3], [4, 0, 0, 0], [10, 11, 12, 0]],
        "actions": [[0, 1, 2, 3], [4, 0, 0, 0], [0, 1, 2, 0]],
        "rewards": [[0, 1, 2, 3], [4, 0, 0, 0], [10, 11, 12, 0]],
        "terminateds": [[F, F, F, F], [T, F, F, F], [F, F, F, F]],
        "truncateds": [[F, F, F, F], [F, F, F, F], [F, F, T, F]],
        "new_obs": [[1, 2, 3, 4], [5, 0, 0, 0], [11, 12, 13, 0]],
        "loss_mask": [[T, T, T, T], [T, F, F, F], [T, T, T, F]],
        "seq_lens": [4, 1, 3],
        "state_in/h": [-1, 3.5, -1],
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(columns[name].reshape(np.shape(values)), values, err_msg=name)
    assert columns.keys() >= expected.keys()
