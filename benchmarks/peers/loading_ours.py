"""`open_dataset` in torch's DataLoader, and with its own `batches`; and the bare loop."""

from __future__ import annotations

import dataclasses
import itertools
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from loading_data import BATCH, CAMERA, STATE, Array, Frames, Sample

Batch = dict[str, Any]
Loader = Callable[[Path, Frames, Sample, int], Iterator[Batch]]


def batches(name: str) -> Loader:
    """`Dataset.batches`, with as many decoding threads as workers."""

    def load(folder: Path, frames: Frames, sample: Sample, workers: int) -> Iterator[Batch]:
        from rlds_beam import open_dataset

        wanted: dict[str, Any] = {"drop_last": True}
        if sample.history:
            wanted.update(history=sample.history, chunk=sample.chunk, image_size=(sample.size, sample.size))
        dataset = open_dataset(folder / name, unit="steps", connectors=_normalizing(folder, sample))
        for batch in dataset.batches(BATCH, shuffle=True, seed=0, threads=workers, epochs=None, **wanted):
            found = {"image": batch[CAMERA], "state": batch[STATE], "action": batch["action"]}
            if sample.chunk:
                found["is_pad"] = batch["action_is_pad"]
            yield found

    return load


def column_batches(format: str) -> Loader:
    """`Dataset.batches` of columns; connectors cut the windows and normalized when they were written."""

    def load(folder: Path, frames: Frames, sample: Sample, workers: int) -> Iterator[Batch]:
        columns = Columns(folder, format, sample)
        wanted: dict[str, Any] = {"image_size": (sample.size, sample.size)} if sample.size else {}
        for batch in columns.rows.batches(
            BATCH, shuffle=True, threads=workers, epochs=None, drop_last=True, columns=list(columns.names), **wanted
        ):
            yield {name: batch[path] for path, name in columns.names.items()}

    return load


def _normalizing(folder: Path, sample: Sample) -> list[Any]:
    from rlds_beam.connectors import Normalize

    if sample.size is None:
        return []
    return [Normalize(fields=("observation/state", "action"), mode="normal", statistics=str(folder / "stats.json"))]


def torch_columns(format: str) -> Loader:
    """Columns in torch's DataLoader."""

    def load(folder: Path, frames: Frames, sample: Sample, workers: int) -> Iterator[Batch]:
        from loading_torch import forever

        return forever(Columns(folder, format, sample), workers)

    return load


class Columns:
    """A map-style dataset of columns; connectors cut the windows and normalized when they were written."""

    def __init__(self, folder: Path, format: str, sample: Sample):
        from rlds_beam import open_dataset

        kind = "policy" if sample.size else "plain"
        self.rows, self._sample = open_dataset(folder / f"columns_{kind}_{format}"), sample
        self.names = {"obs/image_0": "image", "obs/state": "state", "actions": "action"}
        if sample.chunk:
            self.names["action_is_pad"] = "is_pad"

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Batch:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Batch]:
        read = self.rows.select(np.asarray(indices), list(self.names))
        batch = {name: read[path] for path, name in self.names.items()}
        if self._sample.size:
            images = batch["image"]
            resized = _resized(images.reshape(-1, *images.shape[-3:]), self._sample.size)
            batch["image"] = resized.reshape(*images.shape[:2], *resized.shape[1:])
        return _rows(batch)


def _rows(batch: Batch) -> list[Batch]:
    return [{name: values[i] for name, values in batch.items()} for i in range(len(batch["action"]))]


def _resized(images: Array, size: int) -> Array:
    import cv2

    cv2.setNumThreads(1)
    resized = np.empty((len(images), size, size, 3), np.uint8)
    for image, target in zip(images, resized, strict=True):
        cv2.resize(image, (size, size), dst=target)
    return resized


@dataclasses.dataclass
class Bare:
    """Reads the bytes of each sampled frame, decodes and resizes them into a batch's array, and does nothing else.

    Decoding is as fast as simplejpeg allows without rougher chroma; resizing is OpenCV's default, bilinear.
    """

    frames: Frames
    sample: Sample

    def __post_init__(self) -> None:
        self.files = [os.open(name, os.O_RDONLY) for name in self.frames.files]
        size, history = self.sample.size or 256, self.sample.history
        self.shape = (BATCH, *([history] if history else []), size, size, 3)
        self.state, self.action = self.frames.state, self.frames.action
        if self.sample.size:
            self.state = self.frames.normalized("state", self.state)
            self.action = self.frames.normalized("action", self.action)

    def fill(self, numbers: Array, images: Array) -> Batch:
        """The samples at these frames."""
        import cv2
        import simplejpeg

        past = self.frames.history(numbers, self.sample.history or 1)
        ahead, padding = self.frames.chunk(numbers, self.sample.chunk or 1)
        stored = np.empty((256, 256, 3), np.uint8)
        flat, resize = images.reshape(-1, *images.shape[-3:]), self.sample.size
        for (file, offset, length), target in zip(self.frames.places[past.ravel()].tolist(), flat, strict=True):
            data = os.pread(self.files[file], length, offset)
            simplejpeg.decode_jpeg(data, fastdct=True, buffer=stored if resize else target)
            if resize:
                cv2.resize(stored, (resize, resize), dst=target)
        if not self.sample.chunk:
            return {"image": images, "state": self.state[numbers], "action": self.action[numbers]}
        return {"image": images, "state": self.state[past], "action": self.action[ahead], "is_pad": padding}


def bare(folder: Path, frames: Frames, sample: Sample, workers: int) -> Iterator[Batch]:
    """The bare loop; an array is filled again when the next batch was taken."""
    import cv2

    cv2.setNumThreads(1)
    loop, count = Bare(frames, sample), len(frames.action)
    free: queue.SimpleQueue[Array] = queue.SimpleQueue()
    ready: queue.SimpleQueue[Batch] = queue.SimpleQueue()
    for _ in range(workers + 2):
        free.put(np.empty(loop.shape, np.uint8))

    def work(worker: int) -> None:
        rng = np.random.default_rng(worker)
        for _ in itertools.count():
            ready.put(loop.fill(rng.integers(count, size=BATCH), free.get(timeout=600)))

    for worker in range(workers):
        threading.Thread(target=work, args=(worker,), daemon=True).start()
    while True:
        batch = ready.get(timeout=600)
        yield batch
        free.put(batch["image"])
