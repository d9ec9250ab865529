"""Reading whole episodes, compared with reading single steps; and when each is used."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

pytest.importorskip("tensorflow_datasets")

import tensorflow as tf
import tensorflow_datasets as tfds

from rlds_beam.drop_in import frame_blocks
from rlds_beam.drop_in.frame_blocks import whole_episodes
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.testing import make_episode, write_dataset

Change = Callable[[tf.data.Dataset], tf.data.Dataset]

LENGTHS = (3, 1, 0, 7, 2, 5)


@pytest.fixture(autouse=True)
def no_global_seed() -> None:
    """Resets the global seed: seeded shuffles are not rebuilt, and other tests may have set a seed."""
    tf.random.set_seed(None)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TFDS dataset with two shards, a nested observation, and text."""
    episodes = [
        make_episode(
            length,
            seed=seed,
            observation={"state": 3, "joints": (2, 2)},
            action=(),
            columns={"language": np.array([b"step %d" % step for step in range(length)], object)},
            metadata={"episode_id": f"episode {seed}"},
        )
        for seed, length in enumerate(LENGTHS)
        if length
    ]
    return write_dataset(tmp_path_factory.mktemp("recorded"), episodes, shards=2)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    images = np.empty(4, object)
    images[:] = [cv2.imencode(".png", np.full((4, 4, 3), 9 * step, np.uint8))[1].tobytes() for step in range(4)]
    columns = {"observation/image": EncodedImages(images, (4, 4, 3), "uint8")}
    episode = make_episode(4, observation={"state": 3}, columns=columns)
    return write_dataset(tmp_path_factory.mktemp("pictures"), [episode])


def read(directory: Path, **arguments: Any) -> tf.data.Dataset:
    return tfds.builder_from_directory(directory).as_dataset(split="train", **arguments)


def made(lengths: Any = LENGTHS, of: Callable[..., Any] = tf.data.Dataset.from_tensor_slices) -> tf.data.Dataset:
    """Episodes created from their number and length; `of` creates the dataset of steps."""

    def episode(number: Any, length: Any) -> Any:
        step = 100 * number + tf.range(length)
        return {
            "number": number,
            "steps": of(
                {
                    "observation": {"a": tf.stack([step, -step], 1), "b": tf.as_string(step)},
                    "action": tf.cast(step, tf.float64),
                    "reward": tf.cast(step, tf.float32),
                    "discount": tf.ones([length]),
                    "is_first": tf.range(length) == 0,
                    "is_last": tf.range(length) == length - 1,
                    "is_terminal": tf.fill([length], False),
                }
            ),
        }

    numbers = tf.data.Dataset.from_tensor_slices((tf.range(len(lengths)), tf.constant(lengths, tf.int32)))
    return numbers.map(episode)


def outcome(data: tf.data.Dataset) -> tuple[Any, list[Any], str | None]:
    """The spec, the blocks of up to four steps, and the error that ends them."""
    found: list[Any] = []
    blocks = frame_blocks._step_blocks(data, 4)
    try:
        for block in blocks.as_numpy_iterator():
            found.append([(leaf.dtype.str, leaf.shape, leaf.tolist()) for leaf in tf.nest.flatten(block)])
    except tf.errors.OpError as error:
        return blocks.element_spec, found, f"{type(error).__name__} {re.sub('{{.*?}}|.Op:.*', '', error.message)}"
    return blocks.element_spec, found, None


def singly(data: tf.data.Dataset) -> tuple[Any, list[Any], str | None]:
    """The result of reading single steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_blocks, "whole_episodes", lambda _: None)
        return outcome(data)


def with_options(data: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.autotune.enabled = False
    return data.with_options(options)


AFTER_THE_MAP: dict[str, Change] = {
    "nothing": lambda data: data,
    "take": lambda data: data.take(2),
    "skip": lambda data: data.skip(2),
    "repeat": lambda data: data.repeat(2),
    "shard": lambda data: data.shard(2, 1),
    "prefetch": lambda data: data.prefetch(2),
    "options": with_options,
    "cache": lambda data: data.cache(),
    "shuffle of no seed": lambda data: data.shuffle(1),
    "many": lambda data: data.cache().skip(1).shuffle(1).repeat(3).take(7).prefetch(tf.data.AUTOTUNE).shard(2, 0),
}


@pytest.mark.parametrize("change", AFTER_THE_MAP.values(), ids=AFTER_THE_MAP)
def test_a_transformation_after_the_map_keeps_its_meaning(change: Change, recorded: Path) -> None:
    for data in (read(recorded), made()):
        changed = change(data)
        assert whole_episodes(changed) is not None
        expected = singly(changed)
        assert expected[1]
        assert outcome(changed) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        {"read_config": tfds.ReadConfig(add_tfds_id=True, interleave_cycle_length=1)},
        {"read_config": tfds.ReadConfig(try_autocache=False, num_parallel_calls_for_decode=1)},
        {"read_config": tfds.ReadConfig(skip_prefetch=True)},
        {"read_config": tfds.ReadConfig(shuffle_seed=3, try_autocache=False), "shuffle_files": True},
        {"decoders": {"steps": {"observation": {"state": tfds.decode.SkipDecoding()}}}},
    ],
    ids=["id of the episode", "one thread", "no prefetch", "shuffled files", "decoders"],
)
def test_as_tfds_is_asked_to_read(arguments: dict[str, Any], recorded: Path) -> None:
    data = read(recorded, **arguments)
    assert whole_episodes(data) is not None
    found, expected = outcome(data), singly(data)
    assert found[0] == expected[0]
    assert found[1]
    assert _steps(found[1]) == _steps(expected[1])


def _steps(blocks: list[Any]) -> list[str]:
    """Compares in any order, because each iteration may shuffle the files again."""
    return sorted(str(step) for block in blocks for step in zip(*(leaf[2] for leaf in block), strict=True))


def test_each_iteration_starts_again(recorded: Path) -> None:
    whole = whole_episodes(read(recorded))
    assert whole is not None
    lengths = [[len(steps["reward"]) for steps in whole.as_numpy_iterator()] for _ in range(2)]
    assert lengths[0] == lengths[1]
    assert sorted(lengths[0]) == sorted(length for length in LENGTHS if length)


def test_images_are_decoded_step_by_step_or_stay_encoded(pictures: Path) -> None:
    decoded = read(pictures)
    assert whole_episodes(decoded) is None
    assert [block[0][1][0] for block in outcome(decoded)[1]] == [4]
    encoded = read(pictures, decoders={"steps": {"observation": {"image": tfds.decode.SkipDecoding()}}})
    assert whole_episodes(encoded) is not None
    assert outcome(encoded) == singly(encoded)


def test_fields_that_a_map_of_steps_picks_and_renames() -> None:
    def of(steps: Any) -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices(steps | {"void": steps["reward"] + 1})
        return data.map(lambda s: {k: s[k] for k in s if k != "void"} | {"reward": s["void"], "old": s["reward"]})

    data = made(of=of)
    assert whole_episodes(data) is not None
    assert outcome(data) == singly(data)
    assert outcome(data)[1][0][-1][2] == [1, 2, 3, 101]


def uneven(steps: Any) -> Any:
    """Only the third episode has one reward too many."""
    reward = tf.concat([steps["reward"], tf.zeros([tf.cast(tf.size(steps["reward"]) == 7, tf.int32)])], 0)
    return tf.data.Dataset.from_tensor_slices(steps | {"reward": reward})


def test_an_error_in_an_episode_is_raised_at_the_same_place() -> None:
    data = made((1024, 1024, 7, 3), of=uneven)
    assert whole_episodes(data) is not None
    found, expected = outcome(data), singly(data)
    assert expected[2] is not None and "InvalidArgumentError" in expected[2]
    assert found == expected


def _map_steps(change: Callable[[tf.data.Dataset], tf.data.Dataset]) -> Change:
    return lambda data: data.map(lambda episode: {"steps": change(episode["steps"])})


def _halved(step: Any) -> Any:
    return step | {"reward": step["reward"] / 2}


SINGLY: dict[str, Change] = {
    "steps mapped": _map_steps(lambda steps: steps.map(_halved)),
    "steps left out": _map_steps(lambda steps: steps.take(2)),
    "steps shuffled": _map_steps(lambda steps: steps.shuffle(1)),
    "episodes mapped": lambda data: data.map(lambda episode: {"steps": episode["steps"]}),
    "filter": lambda data: data.filter(lambda episode: episode["steps"].cardinality() != 1),
    "concatenate": lambda data: data.concatenate(data),
    "shuffle with a seed": lambda data: data.shuffle(3, seed=5),
    "one order for all iterations": lambda data: data.shuffle(3, seed=5, reshuffle_each_iteration=False),
    "ignore_errors": lambda data: data.ignore_errors(),
}


@pytest.mark.parametrize("change", SINGLY.values(), ids=SINGLY)
def test_unknown_datasets_are_read_step_by_step(change: Change, recorded: Path) -> None:
    for data in (read(recorded), made()):
        assert whole_episodes(change(data)) is None
    assert outcome(change(made()))[1]


def _ragged(steps: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(steps | {"ragged": tf.RaggedTensor.from_tensor(steps["reward"][:, None])})


def test_datasets_that_only_have_single_steps(recorded: Path, tmp_path: Path) -> None:
    steps = next(iter(made().take(1)))["steps"]
    loaded = made(
        of=lambda steps: tf.data.Dataset.from_tensor_slices(steps).map(lambda s: s | {"reward": -s["reward"]})
    )
    state = tf.Variable(1.0)
    counted = made(of=lambda steps: tf.data.Dataset.from_tensor_slices(steps | {"reward": steps["reward"] + state}))
    python = made(
        of=lambda steps: tf.data.Dataset.from_tensor_slices(
            steps | {"reward": tf.ensure_shape(tf.numpy_function(lambda x: x, [steps["reward"]], tf.float32), [None])}
        )
    )
    for data in (
        tf.data.Dataset.from_tensor_slices({"steps": [steps, steps]}),
        tf.data.Dataset.from_tensors({"steps": steps}),
        loaded,
        counted,
        python,
        made().shuffle(2).cache(),
        made().cache(str(tmp_path / "cache")),
        made(of=_ragged),
    ):
        assert whole_episodes(data) is None
