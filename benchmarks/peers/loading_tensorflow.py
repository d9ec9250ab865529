"""The loader that needs TensorFlow: tf.data as Octo and OpenVLA build it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loading_data import BATCH, Frames, Sample

BUFFER = 10_000
"""Steps in the shuffle buffer of tf.data: the whole dataset (Octo's and OpenVLA's are larger)."""

Batch = dict[str, Any]


def tf_data(folder: Path, frames: Frames, sample: Sample, workers: int) -> Iterator[Batch]:
    """The graph of Octo's `make_interleaved_dataset` (`octo/data/dataset.py`), which OpenVLA copied.

    Images stay encoded through chunking, flattening and shuffling. AUTOTUNE would use all cores.
    """
    import tensorflow as tf
    import tensorflow_datasets as tfds

    scales = {name: tf.constant(value) for name, value in frames.scales.items()}

    def restructure(episode: Any) -> Any:
        steps = episode["steps"]
        observation = {"image": steps["observation"]["image_0"], "state": steps["observation"]["state"]}
        action = steps["action"]
        if sample.size:
            observation["state"] = _scaled(observation["state"], scales["state"])
            action = _scaled(action, scales["action"])
        return {**observation, "action": action}

    def windows(episode: Any) -> Any:
        if not (sample.history and sample.chunk):
            return episode
        count = tf.shape(episode["action"])[0]
        past = tf.maximum(tf.range(count)[:, None] + tf.range(1 - sample.history, 1), 0)
        ahead = tf.range(count)[:, None] + tf.range(sample.chunk)
        gathered = {name: tf.gather(episode[name], past) for name in ("image", "state")}
        return {
            **gathered,
            "action": tf.gather(episode["action"], tf.minimum(ahead, count - 1)),
            "is_pad": ahead >= count,
        }

    def decode(image: Any) -> Any:
        pixels = tf.io.decode_image(image, expand_animations=False, dtype=tf.uint8)
        if sample.size:
            pixels = tf.image.resize(pixels, (sample.size, sample.size), method="lanczos3", antialias=True)
            pixels = tf.cast(tf.clip_by_value(tf.round(pixels), 0, 255), tf.uint8)
        return pixels

    def decoded(step: Any) -> Any:
        image = step["image"]
        if not sample.history:
            return {**step, "image": decode(image)}
        images = tf.data.Dataset.from_tensor_slices(image).map(decode)  # dlimp's vmap
        return {**step, "image": images.batch(sample.history).get_single_element()}

    builder = tfds.builder_from_directory(str(folder / "rlds"))
    reading = tfds.ReadConfig(
        skip_prefetch=True, num_parallel_calls_for_interleave_files=workers, interleave_cycle_length=workers
    )
    skip = {"steps": tfds.decode.SkipDecoding()}
    episodes = builder.as_dataset("train", shuffle_files=True, decoders=skip, read_config=reading)
    options = tf.data.Options()
    options.autotune.enabled = True
    options.deterministic = False
    options.experimental_optimization.apply_default_optimizations = True
    options.experimental_optimization.map_fusion = True
    options.experimental_optimization.inject_prefetch = True
    options.experimental_warm_start = True
    options.threading.private_threadpool_size = workers
    options.autotune.ram_budget = 1 << 30
    steps = episodes.with_options(options).map(restructure, workers).repeat().map(windows, workers)
    steps = steps.interleave(tf.data.Dataset.from_tensor_slices, cycle_length=workers, num_parallel_calls=workers)
    batches = steps.shuffle(BUFFER).map(decoded, workers).batch(BATCH)
    yield from batches.prefetch(2).as_numpy_iterator()


def _scaled(values: Any, scale: Any) -> Any:
    return (values - scale[0]) / (scale[1] + 1e-8)
