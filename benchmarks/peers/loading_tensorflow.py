"""Loaders that need TensorFlow or TFDS: tf.data as Octo and OpenVLA build it, and TFDS' `as_data_source`."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from loading_data import BATCH, Array, Frames, Sample

BUFFER = 10_000
"""Steps in the shuffle buffer of tf.data: the whole dataset (Octo's and OpenVLA's are larger)."""
EPISODES = 10
"""Decoded episodes to choose samples from, of `as_data_source`."""

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


def as_data_source(folder: Path, frames: Frames, sample: Sample, workers: int) -> Iterator[Batch]:
    """TFDS' random access: a row is an episode, whose steps are decoded one by one (by OpenCV), in threads.

    A batch is drawn from the samples of some episodes, because decoding an episode for each sample takes longer.
    """
    import cv2
    import tensorflow_datasets as tfds

    cv2.setNumThreads(1)
    source = tfds.builder_from_directory(str(folder / "rlds_array_record")).as_data_source("train")
    rng = np.random.default_rng(0)

    def decode(number: int) -> dict[str, Array]:
        steps = list(source[number]["steps"])
        images = [step["observation"]["image_0"] for step in steps]
        if sample.size:
            images = [cv2.resize(image, (sample.size, sample.size)) for image in images]
        values = {
            "state": np.stack([step["observation"]["state"] for step in steps]),
            "action": np.stack([step["action"] for step in steps]),
        }
        if sample.size:
            values = {name: frames.normalized(name, value) for name, value in values.items()}
        return {"image": np.stack(images), **values}

    with ThreadPoolExecutor(workers) as pool:
        order = _forever(rng, len(source))
        waiting: collections.deque[Future[dict[str, Array]]] = collections.deque(
            pool.submit(decode, next(order)) for _ in range(2 * workers)
        )
        room: list[tuple[dict[str, Array], int]] = []
        while True:
            while len(room) < EPISODES * 100 - BATCH:
                episode = waiting.popleft().result(timeout=600)
                waiting.append(pool.submit(decode, next(order)))
                room += [(episode, step) for step in range(len(episode["action"]))]
            chosen = []
            for _ in range(BATCH):
                place = int(rng.integers(len(room)))
                room[place], room[-1] = room[-1], room[place]
                chosen.append(room.pop())
            rows = [_window(episode, step, sample) for episode, step in chosen]
            yield {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def _window(episode: dict[str, Array], step: int, sample: Sample) -> dict[str, Array]:
    if not (sample.history and sample.chunk):
        return {name: values[step] for name, values in episode.items()}
    past = np.maximum(np.arange(step + 1 - sample.history, step + 1), 0)
    ahead, count = np.arange(step, step + sample.chunk), len(episode["action"])
    return {
        "image": episode["image"][past],
        "state": episode["state"][past],
        "action": episode["action"][np.minimum(ahead, count - 1)],
        "is_pad": ahead >= count,
    }


def _forever(rng: np.random.Generator, count: int) -> Iterator[int]:
    while True:
        yield from rng.permutation(count).tolist()
