"""`rlds_beam.open_dataset`: random access to rows of our outputs and of RLDS."""

from __future__ import annotations

import multiprocessing
import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from exchanging import export

import rlds_beam
from rlds_beam import open_dataset
from rlds_beam.encoding.tfrecord.framing import frame
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.testing import flip_byte, make_episode, shard_paths, write_dataset

LENGTHS = (5, 12, 3, 20, 8)


def episode(length: int) -> rlds_beam.Episode:
    made = make_episode(length, seed=length)
    images = np.random.default_rng(length).integers(0, 255, (length, 6, 8, 3), np.uint8)
    data = np.empty(length, object)
    data[:] = encode_jpeg(images)
    steps = {**made.steps, "camera": EncodedImages(data, (6, 8, 3)), "told": np.array([b"a", b"b"] * length, object)}
    return made.replace(steps={**steps, "told": steps["told"][:length]}, metadata={"file": f"run {length}"})


EPISODES = [episode(length) for length in LENGTHS]
ACTIONS = np.concatenate([np.asarray(e.steps["action"]) for e in EPISODES])
IMAGES = np.concatenate([e.steps["camera"].decode() for e in EPISODES])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    write_dataset(directory, EPISODES[:4], name="toy", shards=2)
    return write_dataset(directory, EPISODES[4:], name="toy", split="test")


def test_episodes(data):
    found = open_dataset(data, "train")
    assert len(found) == 4
    assert repr(found).startswith(f"Dataset {data}: 4 rows\nrow\n├── ")
    one = found[1]
    np.testing.assert_array_equal(one["steps/action"], EPISODES[1].steps["action"])
    np.testing.assert_array_equal(one["steps/camera"], EPISODES[1].steps["camera"].decode())
    assert one["steps/told"].tolist() == EPISODES[1].steps["told"].tolist()
    assert found.fields["steps/action"].shape == (None, 2)
    assert [name for name in found.fields if not name.startswith("steps/")] == ["episode_metadata/file"]
    assert found.columns["episode_metadata/file"].tolist() == [b"run 5", b"run 12", b"run 3", b"run 20"]
    assert [len(steps) for steps in found.columns["steps/reward"]] == [*LENGTHS[:4]]


def test_steps(data):
    found = open_dataset(data, "train+test", unit="steps")
    assert len(found) == sum(LENGTHS)
    np.testing.assert_array_equal(found.columns["action"], ACTIONS)
    order = np.random.default_rng(0).permutation(len(found))
    batch = found[order]
    np.testing.assert_array_equal(batch["action"], ACTIONS[order])
    np.testing.assert_array_equal(batch["camera"], IMAGES[order])
    assert [row["told"] for row in found][:5] == [b"a", b"b", b"a", b"b", b"a"]
    assert found[6]["episode_metadata/file"] == b"run 12"  # a value of the episode
    texts = ("told", "episode_metadata/file")
    assert {name: value.shape for name, value in found[0].items() if name not in texts} == {
        path: np.shape(column)[1:] if path != "camera" else (6, 8, 3)
        for path, column in EPISODES[0].steps.items()
        if path != "told"
    }


def test_indices(data):
    found = open_dataset(data, unit="steps")
    actions = found.columns["action"]
    np.testing.assert_array_equal(found[-1]["action"], actions[-1])
    np.testing.assert_array_equal(found[np.int64(3)]["action"], actions[3])
    np.testing.assert_array_equal(found[5:-5:3]["action"], actions[5:-5:3])
    np.testing.assert_array_equal(found[[7, 7, -1]]["action"], actions[[7, 7, -1]])
    mask = actions[:, 0] > 0
    np.testing.assert_array_equal(found[mask]["action"], actions[mask])
    assert found[10:10]["action"].shape == (0, 2)
    assert found[10:10]["camera"].shape == (0, 6, 8, 3)
    assert [row["action"].tolist() for row in found.__getitems__([4, 2])] == actions[[4, 2]].tolist()
    for wrong in (len(found), -len(found) - 1, [0, 99]):
        with pytest.raises(IndexError, match="is out of range"):
            found[wrong]
    with pytest.raises(TypeError, match="integer"):
        found[[0.5]]
    with pytest.raises(KeyError):
        found.columns["actions"]
    found[0]["action"][:] = 0  # the caller owns the row
    np.testing.assert_array_equal(found[0]["action"], actions[0])


def test_slices_of_splits_select_episodes(data):
    found = open_dataset(data, "train[1:3]", unit="steps")
    np.testing.assert_array_equal(found.columns["action"], ACTIONS[5:20])
    assert len(open_dataset(data, "train[50%:]")) == 2


def test_encoded_images(data):
    found = open_dataset(data, "train", unit="steps", images="encoded")
    assert found[7]["camera"] == EPISODES[1].steps["camera"].data[2]


@pytest.mark.parametrize(
    "flags", [{}, {"items": "episodes"}, {"items": "frames", "images": "jpeg"}, {"images": "jpeg"}]
)
def test_trajectories(data, tmp_path, flags):
    rlds_beam.convert(data, tmp_path / "out", split="train", keep="told", **flags)
    found = open_dataset(tmp_path / "out")
    items = list(rlds_beam.load_items(tmp_path / "out"))
    assert len(found) == len(items)
    for one, other in zip(found, items, strict=True):
        assert np.isin(one.pop("told"), [b"a", b"b"]).all()
        assert one.keys() == other.keys()
        for path, value in other.items():
            np.testing.assert_array_equal(one[path], value, path)
            assert one[path].dtype == value.dtype


def _sum_of_rows(found: rlds_beam.Dataset, part: int, parts: int) -> float:
    return float(sum(row["action"].sum(dtype=np.float64) for row in (found[i] for i in range(part, len(found), parts))))


@pytest.mark.parametrize("workers", ["processes", "threads"])
def test_processes_and_threads_read_at_once(data, workers):
    found = open_dataset(data, unit="steps")
    found[0]  # other processes do not use the files opened here
    expected = float(found.columns["action"].sum(dtype=np.float64))
    if workers == "processes":
        assert len(pickle.dumps(found)) < 20_000
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            sums = pool.starmap_async(_sum_of_rows, [(found, i, 2) for i in range(2)]).get(timeout=120)
    else:
        with ThreadPoolExecutor(4) as pool:
            sums = list(pool.map(_sum_of_rows, [found] * 4, range(4), [4] * 4))
    assert sum(sums) == pytest.approx(expected)


def test_memory_holds_only_the_index(tmp_path):
    output = write_dataset(tmp_path, [make_episode(200, seed=i) for i in range(100)], name="many")
    found = open_dataset(output)
    found[3]
    tracemalloc.start()
    for _ in range(2):
        for i in range(len(found)):
            found[i]
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 200_000
    assert peak < 500_000  # the file has 1 MB


def test_a_damaged_record_is_an_error_that_names_it(tmp_path):
    data = write_dataset(tmp_path, EPISODES, name="toy")
    (shard,) = shard_paths(data)
    flip_byte(shard, record=2, at=30)
    found = open_dataset(data)
    found[1]
    with pytest.raises(RldsBeamError, match=r"toy-train.tfrecord-00000-of-00001: byte \d+: the record does not match"):
        found[2]
    shard.write_bytes(frame(b"\x0a\x00"))
    with pytest.raises(RldsBeamError, match="holds 1 records, but 5 are expected"):
        open_dataset(data)[0]


def test_what_cannot_be_opened(data, tmp_path):
    export(data, tmp_path / "out", "trajectories")
    export(data, tmp_path / "columns", "columns")
    for arguments, said in (
        ({"path": data, "split": "validation"}, "validation"),
        ({"path": data, "module": "walker"}, "is for the output of"),
        ({"path": data, "unit": "step"}, "did you mean steps"),
        ({"path": data, "images": "jpeg"}, "expected pixels or encoded"),
        ({"path": tmp_path / "out", "unit": "steps"}, "unit is for datasets of episodes"),
        ({"path": tmp_path / "out", "module": "walker"}, "has no columns"),
        ({"path": tmp_path / "out", "split": "train[:3]"}, "rows are sliced when they are read"),
        ({"path": tmp_path / "columns", "module": "default_polic"}, "did you mean default_policy"),
        ({"path": tmp_path / "nothing"}, "nothing"),
    ):
        with pytest.raises(UsageError, match=said):
            open_dataset(**arguments)
    assert len(open_dataset(tmp_path / "columns" / "default_policy", "test")) == LENGTHS[4] - 1
    (tmp_path / "columns/manifest.json").unlink()
    with pytest.raises(UsageError, match="is not finished"):
        open_dataset(tmp_path / "columns")
