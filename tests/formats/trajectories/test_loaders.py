"""Loading a converted dataset as trajectories, ready for an agent."""

from __future__ import annotations

import numpy as np
import pytest
from outputs import commit_dataset, commit_range, open_output, plan, shard_path

from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.formats.trajectories.loaders import decoder, load_trajectories
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.output.shards import ShardWriter
from rlds_beam.reading.base import WorkRange
from rlds_beam.trajectories.frames import Frames
from rlds_beam.trajectories.items import Items, Windows
from rlds_beam.trajectories.options import ItemOptions
from rlds_beam.trajectories.record_encoding import TrajectoryEncoder
from rlds_beam.trajectories.spec import SpecLeaf, TrajectorySpec

KEY = EpisodeKey("testing/1.0.0", "train", 0, 0)
LEAVES = (
    SpecLeaf("step_type", "int32", ()),
    SpecLeaf("observation/camera", "uint8", (8, 16, 3), "jpeg"),
    SpecLeaf("observation/nested/count", "int64", ()),
    SpecLeaf("observation/nested/state", "float32", (3,)),
    SpecLeaf("action", "float64", (2,)),
    SpecLeaf("next_step_type", "int32", ()),
    SpecLeaf("reward", "float32", ()),
    SpecLeaf("discount", "float32", ()),
)
SEQUENCES = ItemOptions(
    items="sequences", sequence_length=3, stride_length=2, pad_end_of_episodes=True, tile_end_of_episodes=True
)
LENGTHS = (4, 1, 6, 3, 5)


def make_frames(n: int, seed: int) -> Frames:
    rng = np.random.default_rng(seed)
    columns = {leaf.path: rng.integers(0, 200, (n, *leaf.shape)).astype(leaf.dtype) for leaf in LEAVES}
    jpegs = np.empty(n, object)
    jpegs[:] = encode_jpeg(columns["observation/camera"])
    columns["observation/camera"] = EncodedImages(jpegs, (8, 16, 3))
    columns["step_type"] = np.array([0, *[1] * (n - 2), 2][-n:], np.int32)
    return Frames(columns, KEY)


def write_dataset(output, options, images="raw", splits=("train",), lengths=LENGTHS):
    """Writes two shards for each split; returns the items of the first split, gathered by items.py."""
    item_shape = () if options.items == "frames" else (options.length,)
    encoder = TrajectoryEncoder(TrajectorySpec(LEAVES, item_shape), images)
    open_output(str(output), plan(options=str(options)))
    episodes = [make_frames(n, seed) for seed, n in enumerate(lengths)]
    batches = [Items(frames, Windows.of(len(frames), options)) for frames in episodes]
    ranges = [WorkRange(split, i, 2, ()) for split in splits for i in range(2)]
    for work in ranges:
        path = shard_path(output, work)
        with ShardWriter(path) as writer:
            for items in batches[work.index :: 2]:
                encoded = encoder.encode(items)
                writer.write(encoded.buffers, encoded.count, KEY)
            shard = writer.commit()
        commit_range(output, work, shard, encoder.fields)
    commit_dataset(output, ranges, encoder.fields)
    expected = []
    for items in batches:
        decoded = Frames(
            {**items.frames.columns, "observation/camera": items.frames["observation/camera"].decode()}, KEY
        )
        columns = {leaf.path: Items(decoded, items.windows).gather(leaf.path) for leaf in LEAVES}
        if options.items == "frames":
            columns = {path: column[:, 0] for path, column in columns.items()}
        expected += [{path: column[k] for path, column in columns.items()} for k in range(len(items))]
    return expected


def list_leaves(element):
    observation = element.observation
    return {
        "step_type": element.step_type,
        "observation/camera": observation["camera"],
        "observation/nested/count": observation["nested"]["count"],
        "observation/nested/state": observation["nested"]["state"],
        "action": element.action,
        "next_step_type": element.next_step_type,
        "reward": element.reward,
        "discount": element.discount,
    }


def assert_same_items(read, expected, images="raw"):
    """Shards are interleaved, so items are compared in sorted order."""
    assert len(read) == len(expected)

    def order(item):
        return tuple(np.concatenate([item[p].ravel() for p in ("observation/nested/state", "step_type")]))

    for got, want in zip(sorted(read, key=order), sorted(expected, key=order), strict=True):
        for path, value in want.items():
            assert got[path].dtype == value.dtype
            assert got[path].shape == value.shape
            if path == "observation/camera" and images == "jpeg":  # padding images are also JPEGs
                assert np.abs(got[path].astype(int) - value).max() <= 1
            else:
                np.testing.assert_array_equal(got[path], value, err_msg=path)


@pytest.mark.parametrize("images", ["raw", "jpeg"])
@pytest.mark.parametrize(
    "options",
    [ItemOptions(), SEQUENCES, ItemOptions(items="episodes"), ItemOptions(items="frames")],
    ids=lambda o: o.items,
)
def test_items_are_read_back(tmp_path, options, images):
    pytest.importorskip("tf_agents")
    expected = write_dataset(tmp_path, options, images)
    dataset = load_trajectories(str(tmp_path))
    assert type(dataset.element_spec).__name__ == "Trajectory"
    assert dataset.element_spec.policy_info == ()
    lead = () if options.items == "frames" else (options.length,)
    assert dataset.element_spec.observation["camera"].shape.as_list() == [*lead, 8, 16, 3]
    first, second = ([list_leaves(e) for e in dataset.as_numpy_iterator()] for _ in range(2))
    assert_same_items(first, expected, images)
    for a, b in zip(first, second, strict=True):  # the same order every time
        np.testing.assert_array_equal(a["observation/nested/state"], b["observation/nested/state"])


@pytest.mark.parametrize("images", ["raw", "jpeg"])
def test_batches_contain_the_same_items(tmp_path, images):
    pytest.importorskip("tf_agents")
    write_dataset(tmp_path, ItemOptions(), images)
    single = [list_leaves(e) for e in load_trajectories(str(tmp_path)).as_numpy_iterator()]
    batches = [list_leaves(e) for e in load_trajectories(str(tmp_path), batch_size=4).as_numpy_iterator()]
    assert batches[0]["observation/camera"].shape == (4, 2, 8, 16, 3)
    for path in single[0]:
        joined = np.concatenate([batch[path] for batch in batches])
        np.testing.assert_array_equal(joined, np.stack([item[path] for item in single]))


@pytest.mark.parametrize("images", ["raw", "jpeg"])
def test_tf_agents_reads_episodes_with_our_decoder(tmp_path, images):
    from tf_agents.utils import example_encoding_dataset

    expected = write_dataset(tmp_path, ItemOptions(items="episodes"), images)
    files = sorted(str(p) for p in tmp_path.glob("*.tfrecord-?????-of-?????"))
    dataset = example_encoding_dataset.load_tfrecord_dataset(files, decoder=decoder(str(tmp_path)))
    read = [list_leaves(e) for e in dataset.as_numpy_iterator()]
    assert {item["action"].shape[0] for item in read} == {1}  # TF-Agents adds the batch axis
    assert_same_items([{path: v[0] for path, v in item.items()} for item in read], expected, images)


def test_splits(tmp_path):
    pytest.importorskip("tf_agents")
    write_dataset(tmp_path, ItemOptions(), splits=("train", "val"))
    assert len(list(load_trajectories(str(tmp_path), "val"))) == 14
    with pytest.raises(UsageError, match="has the splits train, val: choose one"):
        load_trajectories(str(tmp_path))
    with pytest.raises(UsageError, match="no items in a split test; it has train, val"):
        load_trajectories(str(tmp_path), "test")


def test_errors_say_why_a_dataset_cannot_be_loaded(tmp_path):
    with pytest.raises(UsageError, match="rlds-beam did not write"):
        load_trajectories(str(tmp_path))
    open_output(str(tmp_path / "unfinished"), plan())
    with pytest.raises(UsageError, match="is not finished"):
        load_trajectories(str(tmp_path / "unfinished"))
    write_dataset(tmp_path / "empty", ItemOptions(), lengths=(1, 1))
    with pytest.raises(UsageError, match="holds no items"):
        load_trajectories(str(tmp_path / "empty"))
    write_dataset(tmp_path / "episodes", ItemOptions(items="episodes"))
    with pytest.raises(UsageError, match="whole episodes differ in length"):
        load_trajectories(str(tmp_path / "episodes"), batch_size=2)


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


def test_an_agent_trains_on_it(tmp_path, agent):
    """With our loader and TF-Agents' own, the batch and time axes are as `train` expects."""
    from tf_agents.utils import example_encoding_dataset

    leaves = (
        SpecLeaf("step_type", "int32", ()),
        SpecLeaf("observation", "float32", (3,)),
        SpecLeaf("action", "int64", ()),
        SpecLeaf("next_step_type", "int32", ()),
        SpecLeaf("reward", "float32", ()),
        SpecLeaf("discount", "float32", ()),
    )
    columns = {leaf.path: np.ones((9, *leaf.shape), leaf.dtype) for leaf in leaves}
    encoder = TrajectoryEncoder(TrajectorySpec(leaves, (2,)))
    open_output(str(tmp_path), plan())
    work = WorkRange("train", 0, 1, ())
    path = shard_path(tmp_path, work)
    with ShardWriter(path) as writer:
        encoded = encoder.encode(Items(Frames(columns, KEY), Windows.of(9, ItemOptions())))
        writer.write(encoded.buffers, encoded.count, KEY)
        shard = writer.commit()
    commit_range(tmp_path, work, shard, encoder.fields, predicted=8)
    commit_dataset(tmp_path, [work], encoder.fields)

    ours = next(iter(load_trajectories(str(tmp_path), batch_size=4)))
    theirs = next(iter(example_encoding_dataset.load_tfrecord_dataset([path], as_trajectories=True)))
    assert ours.observation.shape == (4, 2, 3)
    assert theirs.observation.shape == (1, 2, 3)
    for experience in (ours, theirs):
        assert np.isfinite(agent.train(experience).loss.numpy())
