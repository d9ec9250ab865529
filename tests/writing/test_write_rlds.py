"""write_rlds: what TFDS reads is what was passed; errors name the episode and the field, and leave nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import rlds_beam
from rlds_beam import CheckOptions, Field, Schema
from rlds_beam.errors import FailedRuleError, UsageError
from rlds_beam.images.codecs import encode_jpeg, encode_png
from rlds_beam.reading.base import Segment
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.testing import read_rejected

NUMBERS = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
)


def episode(steps: int = 4, seed: int = 0, **more: Any) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    state, action = rng.normal(size=(steps, 3)), rng.normal(size=(steps, 2)).astype(np.float32)
    return {"observation": {"state": state}, "action": action, **more}


def first_of(directory: Path, number: int = 0) -> rlds_beam.Episode:
    source = rlds_beam.open_source(str(directory))
    shard = source.splits[0].shards[0]
    return list(EpisodeReader(source).read("train", Segment(shard)))[number]


def nothing_in(directory: Path) -> bool:
    return not directory.exists() or not any(files for _, _, files in os.walk(directory))


def test_the_rate_the_robot_and_names_are_kept(tmp_path) -> None:
    path = tmp_path / "arm/1.0.0"
    rlds_beam.write_rlds(path, [episode()], fps=10, robot_type="so101", names={"action": ["pan", "grip"]})
    source = rlds_beam.open_source(str(path))
    assert (source.fps, source.robot, source.schema.steps["action"].names) == (10, "so101", ("pan", "grip"))
    for wrong, said in (
        ({"fps": 0}, r"other: Expected `float` > 0.0 - at `\$.fps`"),
        ({"robot_type": ""}, r"length >= 1 - at `\$.robot`"),
        ({"names": {"acton": ["a"]}}, "there is no field acton"),
        ({"names": {"action": ["a"]}}, "1 names, but action"),
        ({"names": {"action": "ab"}}, "Expected `array`, got `str`"),
    ):
        with pytest.raises(UsageError, match=said):
            rlds_beam.write_rlds(tmp_path / "other", [episode()], **wrong)
        assert nothing_in(tmp_path / "other")


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_tfds_reads_the_arrays_that_were_passed(tmp_path_factory, data) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    dtypes = data.draw(st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=3))
    shapes = [data.draw(arrays.array_shapes(min_dims=0, max_dims=3, max_side=3)) for _ in dtypes]
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    finite: dict[str, Any] = {"allow_nan": False, "allow_infinity": False}
    given_episodes: list[dict[str, Any]] = []
    for number, length in enumerate(lengths):
        columns = {
            f"x{i}": data.draw(arrays.arrays(d, (length, *s), elements=arrays.from_dtype(np.dtype(d), **finite)))
            for i, (d, s) in enumerate(zip(dtypes, shapes, strict=True))
        }
        given_episodes.append({"observation": columns, "action": np.ones(length), "metadata": {"number": number}})
    directory = tmp_path_factory.mktemp("data") / "toy" / "1.0.0"
    report = rlds_beam.write_rlds(directory, given_episodes, num_shards=2)
    assert report.episodes == len(lengths)
    builder = tfds.builder_from_directory(str(directory))
    for passed, read in zip(given_episodes, builder.as_dataset("train", shuffle_files=False), strict=True):
        steps = list(read["steps"].as_numpy_iterator())
        assert int(read["episode_metadata"]["number"]) == passed["metadata"]["number"]
        for name, column in passed["observation"].items():
            for step, value in zip(steps, column, strict=True):
                got = step["observation"][name]
                assert np.asarray(got).dtype == value.dtype
                np.testing.assert_array_equal(got, value)
    assert rlds_beam.check(directory, rules=True).report.rejected == 0


def test_pixels_are_exact_as_png_and_encoded_images_are_copied(tmp_path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (3, 8, 10, 3), np.uint8)
    depth = np.random.default_rng(0).integers(0, 60000, (3, 8, 10, 1), np.uint16)
    jpegs, pngs = encode_jpeg(pixels), encode_png(pixels[..., :1])
    observation = {"a": pixels, "b": list(map(bytes, jpegs)), "c": list(map(bytes, pngs)), "d": depth, "e": pixels}
    rlds_beam.write_rlds(
        tmp_path / "d", [{"observation": observation, "action": np.ones(3)}], images={"observation/e": "raw"}
    )
    steps = first_of(tmp_path / "d").steps
    np.testing.assert_array_equal(steps["observation/a"].decode(), pixels)
    np.testing.assert_array_equal(steps["observation/d"].decode(), depth)
    np.testing.assert_array_equal(steps["observation/e"], pixels)
    assert list(steps["observation/b"]) == jpegs
    assert list(steps["observation/c"]) == list(map(bytes, pngs))
    assert steps["observation/c"].shape == (8, 10, 1)


def test_missing_fields_are_added(tmp_path) -> None:
    short = {"observation": np.arange(4.0), "action": np.arange(3), "terminated": True, "task": "open it"}
    rlds_beam.write_rlds(tmp_path / "d", [short, {**short, "observation": np.ones(4), "terminated": False}])
    steps, cut = first_of(tmp_path / "d").steps, first_of(tmp_path / "d", 1).steps
    assert steps["action"].tolist() == [0, 1, 2, 0]
    assert steps["discount"].tolist() == [1, 1, 0, 0]
    assert steps["reward"].dtype == np.float32
    assert steps["is_terminal"].tolist() == [False, False, False, True]
    assert steps["task"].tolist() == [b"open it"] * 4
    assert cut["discount"].tolist() == [1, 1, 1, 1]
    assert cut["is_last"].tolist() == [False, False, False, True]
    assert not cut["is_terminal"].any()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"observation": {"state": np.zeros((4, 2))}}, r"episode 2 of split train.*observation/state: float64\[2\]"),
        ({"observation": {}}, "missing_field in observation"),
        ({"observation": {"state": np.zeros((6, 3))}}, "unequal_lengths"),
        ({"action": np.full((4, 2), np.nan, np.float32)}, "non_finite in action"),
        ({"action": [[1.0, 2.0], [3.0], [1.0], [2.0]]}, "in action: the steps have different shapes"),
        ({"action": 1.0}, "in action: one value"),
        ({"extra": np.zeros(4)}, "in extra: not in the schema"),
        ({"is_terminal": np.ones(4, bool), "terminated": True}, "both is_terminal and terminated"),
        ({"terminated": [False, True, False, False]}, "cut the data into episodes first"),
        ({"observation": {"state": np.zeros((0, 3))}, "action": np.zeros((0, 2), np.float32)}, "empty_episode"),
        ({"metadata": {"who": object()}}, "who"),
    ],
)
def test_a_bad_episode_is_refused_or_set_aside(tmp_path, change, said) -> None:
    content = [episode(seed=0), episode(seed=1), {**episode(seed=2), **change}, episode(seed=3)]
    with pytest.raises(FailedRuleError, match=said):
        rlds_beam.write_rlds(tmp_path / "d", content)
    assert nothing_in(tmp_path / "d")
    report = rlds_beam.write_rlds(tmp_path / "d", content, strict=False)
    assert (report.episodes, report.rejected) == (3, 1)
    ((rejected, _),) = read_rejected(tmp_path / "d")
    assert "@2" in rejected["key"]
    assert rlds_beam.check(tmp_path / "d", rules=True).report.episodes == 3


@pytest.mark.parametrize("strict", [True, False])
def test_the_first_episode_gives_the_fields(tmp_path, strict) -> None:
    with pytest.raises(FailedRuleError, match=r"episode 0 of split train, which gives the fields.*missing_field"):
        rlds_beam.write_rlds(tmp_path / "d", [{"observation": 1}, episode()], strict=strict)
    with pytest.raises(UsageError, match="there are no episodes"):
        rlds_beam.write_rlds(tmp_path / "d", [], strict=strict)
    assert nothing_in(tmp_path / "d")


def test_rules_can_be_accepted(tmp_path) -> None:
    action = np.full((4, 2), np.nan, np.float32)
    accepted = CheckOptions(accept=("non_finite",))
    assert (
        rlds_beam.write_rlds(tmp_path / "d", [episode(), {**episode(), "action": action}], check=accepted).episodes == 2
    )


def test_a_generator_that_fails_leaves_nothing(tmp_path) -> None:
    def failing() -> Iterator[dict[str, Any]]:
        yield from (episode(seed=i) for i in range(5))
        raise KeyError("camera")

    with pytest.raises(KeyError, match="camera"):
        rlds_beam.write_rlds(tmp_path / "d", {"train": [episode(seed=9)], "val": failing()}, num_shards=3)
    assert nothing_in(tmp_path / "d")


def test_splits_names_and_shards(tmp_path) -> None:
    train = [episode(seed=i) for i in range(5)]
    directory = tmp_path / "my_robot" / "1.2.0"
    report = rlds_beam.write_rlds(directory, {"train": train, "val": [episode(seed=9)]}, num_shards=5)
    assert (report.records, report.valid) == (6, 6)
    assert "my_robot-train.tfrecord-00004-of-00005" in os.listdir(directory)
    dataset = rlds_beam.open_source(str(directory))
    assert dataset.dataset == "my_robot/1.2.0"
    assert [split.episodes for split in dataset.splits] == [5, 1]


def test_a_dataset_is_replaced_only_if_asked(tmp_path) -> None:
    directory = tmp_path / "d"
    rlds_beam.write_rlds(directory, [episode(seed=0)])
    with pytest.raises(UsageError, match="overwrite=True"):
        rlds_beam.write_rlds(directory, [episode(seed=1)])
    rlds_beam.write_rlds(directory, [episode(seed=1), episode(seed=2)], overwrite=True)
    assert rlds_beam.check(directory, rules=True).report.episodes == 2
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not empty"):
        rlds_beam.write_rlds(other, [episode()], overwrite=True)


def test_declared_sizes_may_vary_and_lists_take_declared_dtypes(tmp_path) -> None:
    schema = Schema(
        {
            "observation/points": Field("observation/points", "float32", (None, 3)),
            "observation/image": Field("observation/image", "uint8", (None, None, 3), "png", "Image"),
            "action": Field("action", "float32", (2,)),
        }
    )
    episodes = [
        {
            "observation": {"points": np.full((2, n, 3), n, np.float32), "image": np.zeros((2, n, 4, 3), np.uint8)},
            "action": [[0.5, 1.0]] * 2,
        }
        for n in (5, 7)
    ]
    rlds_beam.write_rlds(tmp_path / "d", episodes, schema=schema)
    steps = first_of(tmp_path / "d", 1).steps
    assert [points.shape for points in steps["observation/points"]] == [(7, 3)] * 2
    assert steps["action"].dtype == np.float32
    assert steps["observation/image"].decode().shape == (2, 7, 4, 3)


def test_episodes_of_builders_tensors_and_h5py_are_taken(tmp_path) -> None:
    h5py = pytest.importorskip("h5py")
    step = {"observation": {"state": np.zeros(2, np.float32)}, "action": np.ones(2), "reward": 0.5, "language": "go"}
    builder = {"steps": [step] * 3, "episode_metadata": {"file_path": "a.h5"}}
    rlds_beam.write_rlds(tmp_path / "a", [builder])
    read = first_of(tmp_path / "a")
    assert read.metadata == {"episode_metadata/file_path": b"a.h5"}
    assert read.steps["reward"].tolist() == [0.5] * 3
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["observation/state"], file["action"] = np.zeros((4, 2)), np.ones((4, 2), ">f4")
        rlds_beam.write_rlds(tmp_path / "b", [file])
    assert first_of(tmp_path / "b").steps["action"].dtype == np.float32
    rlds_beam.write_rlds(tmp_path / "c", [read])
    assert first_of(tmp_path / "c").metadata == read.metadata
