"""dlimp (OpenVLA, Octo, openpi) reads the output of `--to=rlds`.

dlimp is on GitHub only, not on PyPI, so it is not installed: `calls_of_dlimp` makes the calls to TFDS and tf.data that
its `DLataset.from_rlds`, `frame_map` and `flatten` make (commit ad72ce3). If dlimp is installed, it is also tested
directly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchanging import export

import rlds_beam
from rlds_beam.connectors import MinimumLength
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.testing import make_episode, write_dataset

tfds = pytest.importorskip("tensorflow_datasets")
tf = pytest.importorskip("tensorflow")
LENGTHS = (4, 2, 6)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """Edited RLDS with images, text, and episode fields."""
    episodes = []
    for seed, length in enumerate(LENGTHS):
        pixels = np.random.default_rng(seed).integers(0, 255, (length, 16, 24, 3), np.uint8)
        images = EncodedImages(np.fromiter(encode_jpeg(pixels), object, length), (16, 24, 3))
        columns = {"observation/image": images, "language_instruction": [f"task {seed}".encode()] * length}
        metadata = {"file_path": f"/data/{seed}.h5"}
        episodes.append(make_episode(length, seed=seed, observation={"state": 3}, columns=columns, metadata=metadata))
    data = write_dataset(tmp_path_factory.mktemp("data"), episodes, shards=2, name="toy")
    output = tmp_path_factory.mktemp("written") / "toy" / "1.1.0"
    export(data, output, "rlds", connectors=[MinimumLength(3)])
    return output


def calls_of_dlimp(builder: Any) -> tuple[Any, Any]:
    """The trajectories and their frames."""
    trajectories = builder.as_dataset(
        split="train",
        shuffle_files=False,
        decoders={"steps": tfds.decode.SkipDecoding()},
        read_config=tfds.ReadConfig(
            skip_prefetch=True, num_parallel_calls_for_interleave_files=1, interleave_cycle_length=1
        ),
    )

    def broadcast(i: Any, trajectory: dict[str, Any]) -> dict[str, Any]:
        steps = trajectory.pop("steps")
        length = tf.shape(tf.nest.flatten(steps)[0])[0]
        metadata = tf.nest.map_structure(lambda x: tf.repeat(x, length), trajectory)
        return {
            **steps,
            "traj_metadata": metadata,
            "_len": tf.repeat(length, length),
            "_traj_index": tf.repeat(i, length),
            "_frame_index": tf.range(length),
        }

    trajectories = trajectories.enumerate().map(broadcast)
    frames = trajectories.interleave(tf.data.Dataset.from_tensor_slices, cycle_length=1).map(decoded)
    return trajectories, frames


def dlimp_itself(builder: Any) -> tuple[Any, Any]:
    dlimp = pytest.importorskip("dlimp")
    trajectories = dlimp.DLataset.from_rlds(builder, shuffle=False, num_parallel_reads=1)
    return trajectories, trajectories.frame_map(decoded).flatten(num_parallel_calls=1)


def decoded(frame: dict[str, Any]) -> dict[str, Any]:
    """Decodes the images of a frame, as in OpenVLA's and Octo's loaders."""
    image = tf.io.decode_image(frame["observation"]["image"], expand_animations=False, dtype=tf.uint8)
    return {**frame, "observation": {**frame["observation"], "image": image}}


@pytest.mark.parametrize("opened", [calls_of_dlimp, dlimp_itself])
def test_dlimp_opens_the_output(written, opened):
    trajectories, frames = opened(tfds.builder_from_directory(str(written)))
    expected = list(rlds_beam.open_dataset(written))
    found = list(trajectories.as_numpy_iterator())
    assert [len(one["action"]) for one in found] == [length for length in LENGTHS if length >= 3]
    for one, row in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one["observation"]["state"], row["steps/observation/state"])
        np.testing.assert_array_equal(one["is_last"], row["steps/is_last"])
        assert set(one["traj_metadata"]["episode_metadata"]["file_path"]) == {row["episode_metadata/file_path"]}
    whole = list(frames.as_numpy_iterator())
    assert [int(frame["_frame_index"]) for frame in whole] == [*range(4), *range(6)]
    pixels = np.concatenate([row["steps/observation/image"] for row in expected])
    np.testing.assert_array_equal([frame["observation"]["image"] for frame in whole], pixels)
    assert [frame["language_instruction"] for frame in whole] == [b"task 0"] * 4 + [b"task 2"] * 6
