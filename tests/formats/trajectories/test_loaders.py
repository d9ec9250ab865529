"""Loading a converted dataset as trajectories, ready for an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchanging import export
from lerobot_data import images

from rlds_beam.errors import UsageError
from rlds_beam.formats.trajectories.loaders import decoder, load_trajectories
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.testing import make_episode, write_dataset

LENGTHS = (4, 2, 6, 3, 5)


def write(directory: Path, *splits: str, **options: Any) -> str:
    """Converts episodes with a camera; returns the output."""
    for split in splits or ("train",):
        episodes = []
        for length in LENGTHS:
            pixels = np.random.default_rng(length).integers(0, 255, (length, 8, 16, 3), np.uint8)
            columns = {"observation/camera": images(encode_jpeg(pixels), (8, 16, 3))}
            observation = {"nested/count": (), "nested/state": 3}
            episodes.append(make_episode(length, seed=length, observation=observation, columns=columns))
        data = write_dataset(directory / "data", episodes, split=split, shards=2)
    export(data, directory / "out", "trajectories", shards=2, split="+".join(splits) or None, **options)
    return str(directory / "out")


def leaves_of(element: Any) -> dict[str, Any]:
    observation = element.observation
    return {
        "camera": observation["camera"],
        "count": observation["nested"]["count"],
        "state": observation["nested"]["state"],
        **{name: getattr(element, name) for name in ("step_type", "action", "next_step_type", "reward", "discount")},
    }


@pytest.mark.parametrize("stored", ["raw", "jpeg"])
@pytest.mark.parametrize("items", ["pairs", "episodes", "frames"])
def test_elements_are_trajectories_in_the_same_order_every_time(tmp_path: Path, items: str, stored: str) -> None:
    """Their values are tested in `test_written_items.py`."""
    pytest.importorskip("tf_agents")
    dataset = load_trajectories(write(tmp_path, items=items, images=stored))
    assert type(dataset.element_spec).__name__ == "Trajectory"
    assert dataset.element_spec.policy_info == ()
    lead = {"pairs": [2], "episodes": [None], "frames": []}[items]
    assert dataset.element_spec.observation["camera"].shape.as_list() == [*lead, 8, 16, 3]
    first, second = ([leaves_of(e) for e in dataset.as_numpy_iterator()] for _ in range(2))
    assert len(first) == {"pairs": sum(LENGTHS) - len(LENGTHS), "episodes": 5, "frames": sum(LENGTHS)}[items]
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a["state"], b["state"])


@pytest.mark.parametrize("stored", ["raw", "jpeg"])
def test_batches_contain_the_same_items(tmp_path: Path, stored: str) -> None:
    pytest.importorskip("tf_agents")
    output = write(tmp_path, images=stored)
    single = [leaves_of(e) for e in load_trajectories(output).as_numpy_iterator()]
    batches = [leaves_of(e) for e in load_trajectories(output, batch_size=4).as_numpy_iterator()]
    assert batches[0]["camera"].shape == (4, 2, 8, 16, 3)
    for path in single[0]:
        joined = np.concatenate([batch[path] for batch in batches])
        np.testing.assert_array_equal(joined, np.stack([item[path] for item in single]))


@pytest.mark.parametrize("stored", ["raw", "jpeg"])
def test_tf_agents_reads_episodes_with_our_decoder(tmp_path: Path, stored: str) -> None:
    from tf_agents.utils import example_encoding_dataset

    output = write(tmp_path, items="episodes", images=stored)
    files = sorted(str(path) for path in Path(output).glob("*.tfrecord-?????-of-?????"))
    theirs = example_encoding_dataset.load_tfrecord_dataset(files, decoder=decoder(output)).as_numpy_iterator()
    read = {len(one["action"][0]): one for one in map(leaves_of, theirs)}  # TF-Agents adds the batch axis
    assert sorted(read) == sorted(LENGTHS)
    for ours in map(leaves_of, load_trajectories(output).as_numpy_iterator()):
        for path, values in ours.items():
            np.testing.assert_array_equal(read[len(ours["action"])][path][0], values, path)


def test_splits(tmp_path: Path) -> None:
    pytest.importorskip("tf_agents")
    output = write(tmp_path, "train", "val")
    assert len(list(load_trajectories(output, "val"))) == sum(LENGTHS) - len(LENGTHS)
    with pytest.raises(UsageError, match="has the splits train, val: choose one"):
        load_trajectories(output)
    with pytest.raises(UsageError, match="no items in a split test; it has train, val"):
        load_trajectories(output, "test")


def test_errors_say_why_a_dataset_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="rlds-beam did not write"):
        load_trajectories(str(tmp_path))
    output = write(tmp_path, items="episodes")
    with pytest.raises(UsageError, match="whole episodes differ in length"):
        load_trajectories(output, batch_size=2)
    (Path(output) / "manifest.json").unlink()
    with pytest.raises(UsageError, match="is not finished"):
        load_trajectories(output)


@pytest.fixture(scope="module")
def agent():
    """A `DqnAgent` for observations (3,) and four actions."""
    import tensorflow as tf
    from tf_agents.agents.dqn import dqn_agent
    from tf_agents.networks import q_network
    from tf_agents.specs import tensor_spec
    from tf_agents.trajectories import time_step

    observation_spec = tf.TensorSpec((3,), tf.float32)
    action_spec = tensor_spec.BoundedTensorSpec((), tf.int64, 0, 3)
    agent = dqn_agent.DqnAgent(
        time_step.time_step_spec(observation_spec),
        action_spec,
        q_network=q_network.QNetwork(observation_spec, action_spec, fc_layer_params=(4,)),
        optimizer=tf.keras.optimizers.Adam(),
    )
    agent.initialize()
    return agent


def test_an_agent_trains_on_it(tmp_path: Path, agent: Any) -> None:
    """With our loader and TF-Agents' own, the batch and time axes are as `train` expects."""
    from tf_agents.utils import example_encoding_dataset

    data = write_dataset(tmp_path / "data", [make_episode(9, observation=3, columns={"action": np.arange(9) % 4})])
    export(data, tmp_path / "out", "trajectories")
    (path,) = (tmp_path / "out").glob("*.tfrecord-?????-of-?????")
    ours = next(iter(load_trajectories(str(tmp_path / "out"), batch_size=4)))
    theirs = next(iter(example_encoding_dataset.load_tfrecord_dataset([str(path)], as_trajectories=True)))
    assert ours.observation.shape == (4, 2, 3)
    assert theirs.observation.shape == (1, 2, 3)
    for experience in (ours, theirs):
        assert np.isfinite(agent.train(experience).loss.numpy())
