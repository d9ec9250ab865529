"""Reading converted trajectories back: the same values, or an error that locates the damage."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from exchanging import export
from lerobot_data import images

from rlds_beam.episodes.columns import concatenate
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.formats.trajectories.loaders import load_trajectories
from rlds_beam.formats.trajectories.written_items import is_converted, open_converted
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.testing import cut, flip_byte, make_episode, record_offsets, shard_paths, write_dataset


def camera_episode(length: int) -> Episode:
    """An episode with a camera, an integer, and a vector."""
    pixels = np.random.default_rng(length).integers(0, 255, (length, 8, 16, 3), np.uint8)
    columns = {
        "observation/camera": images(encode_jpeg(pixels), (8, 16, 3)),
        "observation/count": np.arange(length) - (1 << 40),
    }
    return make_episode(length, seed=length, observation={"state": 3}, columns=columns)


@pytest.mark.parametrize("stored", ["raw", "jpeg"])
@pytest.mark.parametrize("kind", ["pairs", "episodes", "frames"])
def test_items_equal_those_of_load_trajectories(tmp_path: Path, kind: str, stored: str) -> None:
    pytest.importorskip("tf_agents")
    dataset = write_dataset(tmp_path / "data", [camera_episode(length) for length in (4, 9, 2)], shards=2)
    export(dataset, tmp_path / "out", "trajectories", items=kind, images=stored)
    replay = open_converted(str(tmp_path / "out"))
    found = [
        {path: items.gather(path)[k] for path in items.frames.columns}
        for work in replay.ranges
        for items in replay.read_items(work)
        for k in range(len(items))
    ]
    elements = list(load_trajectories(str(tmp_path / "out")).as_numpy_iterator())
    assert len(elements) == len(found) == replay.items > 0
    for element, item in zip(elements, found, strict=True):
        nested = {**element._asdict(), **{f"observation/{name}": v for name, v in element.observation.items()}}
        for leaf in replay.spec.leaves:
            expected = np.asarray(nested[leaf.path])[(None,) if kind == "frames" else ...]
            assert (item[leaf.path].dtype, item[leaf.path].shape) == (expected.dtype, expected.shape), leaf.path
            assert item[leaf.path].tobytes() == expected.tobytes(), leaf.path


# Files that changed


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    data = write_dataset(tmp_path / "data", [make_episode(9, seed=i, observation=3) for i in range(4)], shards=2)
    export(data, tmp_path / "out", "trajectories", shards=2)
    return tmp_path / "out"


@pytest.mark.parametrize("record", [0, 5, 15])
def test_a_damaged_record_is_never_returned(converted: Path, record: int) -> None:
    shard = shard_paths(converted)[0]
    offset = record_offsets(shard)[record]
    flip_byte(shard, record, "payload", at=30)
    replay = open_converted(str(converted))
    given_before = []
    with pytest.raises(RldsBeamError, match="the data does not match its checksum") as raised:
        given_before += replay.read_items(replay.ranges[0])
    assert f"{replay.ranges[0].path}, byte {offset}: " in str(raised.value)
    assert not isinstance(raised.value, UsageError)
    assert given_before == []


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


def test_splits(tmp_path: Path) -> None:
    for split, count in (("train", 2), ("val", 1), ("none", 0)):
        episodes = [make_episode(5 + i, seed=i) for i in range(count)]
        data = write_dataset(tmp_path / "data", episodes or [make_episode("F M")], split=split)
    export(data, tmp_path / "out", "trajectories", split="train+val+none")
    output = str(tmp_path / "out")
    assert [(one.split, one.items) for one in open_converted(output, "val+train").ranges] == [("val", 4), ("train", 9)]
    assert open_converted(output, "val").items == 4
    for split, hint in [("none", "it has train, val"), ("val+dev", "split dev"), ("val[:1]", "slice when converting")]:
        with pytest.raises(UsageError, match=hint):
            open_converted(output, split)


def test_conversions_of_one_dataset_are_told_apart(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", [make_episode(9)])
    prints = []
    for name, items in (("a", "pairs"), ("b", "pairs"), ("c", "frames")):
        export(data, tmp_path / name, "trajectories", items=items)
        prints.append(open_converted(str(tmp_path / name)).fingerprint)
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
