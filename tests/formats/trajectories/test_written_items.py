"""Reading converted trajectories back: the same bits, or an error that locates the damage."""

from __future__ import annotations

import itertools
import json
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
from converted_items import KEY, assert_same, expected_of, list_leaves, make_frames, read, write
from hypothesis import given, settings
from hypothesis import strategies as st
from outputs import commit_dataset, commit_range, open_output, plan, shard_path

from rlds_beam.episodes.columns import concatenate
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.formats.trajectories.loaders import load_trajectories
from rlds_beam.formats.trajectories.written_items import is_converted, open_converted
from rlds_beam.output.shards import ShardWriter
from rlds_beam.reading.base import WorkRange
from rlds_beam.testing import (
    cut,
    flip_byte,
    make_episode,
    record_offsets,
    shard_paths,
    write_dataset,
)
from rlds_beam.trajectories.items import ItemMaker
from rlds_beam.trajectories.options import CASTS, ItemOptions
from rlds_beam.trajectories.record_encoding import TrajectoryEncoder
from rlds_beam.trajectories.spec import SpecLeaf, TrajectorySpec

CAMERA = SpecLeaf("observation/camera", "uint8", (8, 16, 3), "jpeg")
DEPTH = SpecLeaf("observation/depth", "uint8", (8, 8, 1))
TILED = ItemOptions(
    items="sequences", sequence_length=4, stride_length=3, pad_end_of_episodes=True, tile_end_of_episodes=True
)
KINDS = {
    "pairs": ItemOptions(),
    "frames": ItemOptions(items="frames"),
    "episodes": ItemOptions(items="episodes"),
    "padded": ItemOptions(items="sequences", sequence_length=5, pad_end_of_episodes=True),
    "tiled": TILED,
    "across": ItemOptions(items="sequences", sequence_length=3, stride_length=2, across_episodes=True),
}


OBSERVATIONS = st.lists(
    st.builds(
        lambda d, s, n: SpecLeaf(f"observation/{n}/{d}", d, s),
        st.sampled_from(CASTS),
        st.sampled_from([(), (1,), (3,), (2, 2)]),
        st.sampled_from(["a", "b"]),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda leaf: leaf.path,
)


@settings(max_examples=60, deadline=None)
@given(
    observation=OBSERVATIONS,
    kind=st.sampled_from([*KINDS]),
    episodes=st.lists(st.tuples(st.integers(1, 7), st.sampled_from([1, 8, 30, 63, 64])), min_size=1, max_size=5),
    images=st.sampled_from(["none", "raw", "jpeg"]),
    shards=st.integers(1, 2),
)
def test_encoded_items_are_read_back(observation, kind, episodes, images, shards):
    options = KINDS[kind]
    # With --images=jpeg, TF-Agents would treat [L, H, W] as a JPEG; here no leaf has this shape.
    cameras = () if images == "none" else (CAMERA, DEPTH)
    leaves = list_leaves(*sorted((*cameras, *observation), key=lambda leaf: leaf.path.split("/")))
    if images == "jpeg":
        leaves = tuple(leaf for leaf in leaves if leaf.dtype != "uint8" or len(leaf.shape) != 2)
    stored = "jpeg" if images == "jpeg" else "raw"
    frames = [make_frames(leaves, n, i, most) for i, (n, most) in enumerate(episodes)]
    with tempfile.TemporaryDirectory() as directory:
        made = write(Path(directory), leaves, options, frames, stored, shards=shards)
        if not sum(map(len, made)):
            with pytest.raises(UsageError, match="holds no items"):
                open_converted(directory)
            return
        replay = pickle.loads(pickle.dumps(open_converted(directory)))
        assert [(leaf.path, leaf.dtype, leaf.shape) for leaf in replay.spec.leaves] == [
            (leaf.path, leaf.dtype, leaf.shape) for leaf in leaves
        ]
        assert replay.items == sum(map(len, made)) == sum(work.items for work in replay.ranges)
        assert_same(read(replay), expected_of(made, leaves, stored))


@pytest.mark.parametrize("most", [7, 64])
def test_batches_are_the_same_on_every_run(tmp_path, most):
    """Batches are 256 records from the start of the shard, whatever their lengths."""
    leaves = list_leaves(SpecLeaf("observation", "int64", (3,)))
    bits = [7 if i % 3 else most for i in range(30)]
    episodes = [make_frames(leaves, 21, i, some) for i, some in enumerate(bits)]
    made = write(tmp_path, leaves, ItemOptions(), episodes)
    replay = open_converted(str(tmp_path))
    assert replay.dataset == "data/1.0.0"
    (work,) = replay.ranges
    batches = list(replay.read_items(work))
    assert [len(items) for items in batches] == [256, 256, 88]
    offsets = record_offsets(work.path)
    assert [items.frames.key for items in batches] == [
        EpisodeKey("data/1.0.0", "train", 0, offsets[i]) for i in (0, 256, 512)
    ]
    assert len({stop - start for start, stop in itertools.pairwise(offsets)}) == (1 if most == 7 else 2)
    assert_same(read(replay), expected_of(made, leaves))


@pytest.mark.parametrize("images", ["raw", "jpeg"])
@pytest.mark.parametrize("kind", ["pairs", "episodes", "frames"])
def test_items_equal_those_of_load_trajectories(tmp_path, kind, images):
    pytest.importorskip("tf_agents")
    leaves = list_leaves(
        CAMERA, SpecLeaf("observation/count", "int64", ()), SpecLeaf("observation/state", "float64", (3,))
    )
    write(tmp_path, leaves, KINDS[kind], [make_frames(leaves, n, n) for n in (4, 9, 2)], images)
    theirs = []
    for element in load_trajectories(str(tmp_path)).as_numpy_iterator():
        nested = {**element._asdict(), **{f"observation/{name}": v for name, v in element.observation.items()}}
        lead = (None,) if kind == "frames" else ...
        theirs.append({leaf.path: np.asarray(nested[leaf.path])[lead] for leaf in leaves})
    assert_same(read(open_converted(str(tmp_path))), theirs)


# Reading rows


# Files that changed


@pytest.fixture
def converted(tmp_path):
    leaves = list_leaves(SpecLeaf("observation", "float32", (3,)))
    write(tmp_path / "out", leaves, ItemOptions(), [make_frames(leaves, 9, i) for i in range(4)], shards=2)
    return tmp_path / "out"


def fails_at(output: Path, record: int, message: str) -> None:
    replay = open_converted(str(output))
    offset = record_offsets_of_sound(output)[record]
    given_before = []
    with pytest.raises(RldsBeamError, match=message) as raised:
        given_before += replay.read_items(replay.ranges[0])
    assert f"{replay.ranges[0].path}, byte {offset}: " in str(raised.value)
    assert not isinstance(raised.value, UsageError)
    assert given_before == []


def record_offsets_of_sound(output: Path) -> list[int]:
    return record_offsets(shard_paths(output)[2])  # the second shard, which is intact


@pytest.mark.parametrize("record", [0, 5, 15])
def test_a_damaged_record_is_never_returned(converted, record):
    flip_byte(shard_paths(converted)[0], record, "payload", at=30)
    fails_at(converted, record, "the data does not match its checksum")


def test_a_manifest_that_describes_other_records(converted):
    path = converted / "manifest.json"
    content = json.loads(path.read_text())
    for field in content["fields"]:
        if field["path"] == "observation":
            field["shape"] = [2, 4]
    path.write_text(json.dumps(content))
    replay = open_converted(str(converted))
    with pytest.raises(RldsBeamError, match=r"from byte 0: observation .*the manifest describes other records"):
        list(replay.read_items(replay.ranges[0]))


def test_a_missing_or_truncated_shard_is_reported_before_any_work(converted):
    shard = shard_paths(converted)[2]
    cut(shard, 3)
    with pytest.raises(UsageError, match=rf"{shard.name} has \d+ bytes, expected \d+: fetch it again"):
        open_converted(str(converted))
    shard.unlink()
    with pytest.raises(UsageError, match=f"{shard.name} is missing"):
        open_converted(str(converted))


def test_other_directories(tmp_path, converted):
    assert is_converted(str(converted))
    dataset = write_dataset(tmp_path / "data", [make_episode(3)])
    for other in (dataset, tmp_path / "nothing", shard_paths(dataset)[0]):
        assert not is_converted(str(other))
        with pytest.raises(UsageError, match="rlds-beam did not write"):
            open_converted(str(other))
    (converted / "manifest.json").unlink()
    assert is_converted(str(converted))
    with pytest.raises(UsageError, match=r"is not finished.*run its `rlds-beam convert` again"):
        open_converted(str(converted))


def test_splits(tmp_path):
    leaves = list_leaves(SpecLeaf("observation", "float32", (3,)))
    work = [WorkRange(split, i, 2, ()) for split in ("train", "val", "none") for i in range(2)]
    encoder = TrajectoryEncoder(TrajectorySpec(leaves, (2,)))
    open_output(str(tmp_path), plan())
    for i, one in enumerate(work):
        path = shard_path(tmp_path, one)
        with ShardWriter(path) as writer:
            if one.split != "none" and one.index == 1:  # the first shard of each is empty
                items = ItemMaker(ItemOptions()).push(make_frames(leaves, 5 + i, i))
                encoded = encoder.encode(items)
                writer.write(encoded.buffers, encoded.count, KEY)
            shard = writer.commit()
        commit_range(tmp_path, one, shard, encoder.fields)
    commit_dataset(tmp_path, work, encoder.fields)
    output = str(tmp_path)
    assert [(str(r), r.items) for r in open_converted(output).ranges] == [("train-00001", 5), ("val-00001", 7)]
    assert [str(r) for r in open_converted(output, "val+train").ranges] == ["val-00001", "train-00001"]
    assert open_converted(output, "val").items == 7
    for split, hint in [("none", "it has train, val"), ("val+dev", "split dev"), ("val[:1]", "slice when converting")]:
        with pytest.raises(UsageError, match=hint):
            open_converted(output, split)


def test_conversions_of_one_dataset_are_told_apart(tmp_path):
    leaves = list_leaves(SpecLeaf("observation", "float32", (3,)))
    episodes = [make_frames(leaves, 9, 0)]
    for name, options in [("a", ItemOptions()), ("b", ItemOptions()), ("c", TILED)]:
        write(tmp_path / name, leaves, options, episodes)
    prints = [open_converted(str(tmp_path / name)).fingerprint for name in "abc"]
    assert prints[0] == prints[1] != prints[2]


def test_from_the_command_to_items(tmp_path, convert_only):
    """The output of `rlds-beam convert` has the dataset's values, including policy_info and nested fields."""
    episodes = [
        make_episode(n, seed=n, observation={"b": 2, "a": ()}, columns={"td_error": np.arange(n, dtype=np.float64)})
        for n in (6, 3, 8)
    ]
    dataset = write_dataset(tmp_path / "data", episodes, shards=2)
    assert convert_only(dataset, "--policy_info_fields=td_error").code == 0
    replay = open_converted(str(tmp_path / "out"))
    assert [leaf.path for leaf in replay.spec.leaves] == [
        "step_type",
        "observation/a",
        "observation/b",
        "action",
        "policy_info/td_error",
        "next_step_type",
        "reward",
        "discount",
    ]
    read_back = [items for work in replay.ranges for items in replay.read_items(work)]
    for path, source in [("observation/b", "observation/b"), ("policy_info/td_error", "td_error")]:
        got = concatenate([items.frames[path] for items in read_back])
        want = [np.stack([e.steps[source][:-1], e.steps[source][1:]], axis=1) for e in episodes]
        np.testing.assert_array_equal(got, np.concatenate([pairs.reshape(-1, *pairs.shape[2:]) for pairs in want]))
