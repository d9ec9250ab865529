"""Batches of a dataset at the learner's speed: threads read and decode each batch straight into its arrays.

    order ──► draw a batch ──► numbers, from the index ────────────────────────┐
                          └──► images: unique frames, a few for each thread ───┴──► batch
                               read (only their bytes), verify, decode, resize

Threads are enough: reading, decoding, and resizing release Python's lock. Without worker processes, nothing is copied
between processes, and memory does not grow with their number.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, Self, TypedDict

import numpy as np

from rlds_beam.connectors.cleaning.relative_actions import RelativeActions
from rlds_beam.connectors.fields import StepFields
from rlds_beam.datasets.base import Loadable, find_starts, prefetch
from rlds_beam.datasets.order import IS_PAD, Indices, KeptSteps, Plan, Sampler, Size, window
from rlds_beam.datasets.pixels import Buffers, Frames, stack
from rlds_beam.episodes.schema import FLAGS, SAMPLE_TIMES, SAMPLES, Field
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.formats.format_options import LastStep
from rlds_beam.platforms import count_cores
from rlds_beam.reading.last_steps import VOID, is_action
from rlds_beam.typing import Array

Arrays = Literal["numpy", "torch", "jax"]


class BatchOptions(TypedDict, total=False):
    """The options of `Dataset.batches` and `mix_batches`.

    Attributes:
      shuffle: whether to shuffle: another order for each epoch, the same for the same seed; by default only mixtures.
      seed: the seed of the order.
      epochs: how often each row is read: once by default; None for no end, as for mixtures.
      history: the number of steps of a window that ends at the row, for all fields of the observation, or by field.
      chunk: the number of steps of a window that begins at the row, for all fields of the action, or by field.
        Windows do not leave their episode: its first or last step is repeated, which `<field>_is_pad` marks.
        A signal that is faster than the steps (`imu` (k, C), if `imu_samples` and `imu_sample_times` are columns) has
        its samples of W steps in order of time, (B, W * k, C), with zeros behind the last; `imu_samples` (B,) counts
        them, without those of padding; `imu_sample_times` (B, W * k) are relative to the row.
      image_size: height and width to which images are resized (`pixels.decode_resized`); needs the extra `loading`.
      columns: the columns to read; None for all, or for those that all datasets of a mixture have.
      rank, ranks: this process, and how many share each global batch of `ranks * batch_size` rows.
      drop_last: whether a last global batch with fewer rows is left out; by default if there are several ranks. If not,
        its rows are split evenly among the ranks, and a rank for which none is left has one batch less.
      arrays: `numpy`, or `torch` or `jax`, which share the memory; text stays numpy.
      threads: threads that read and decode; None for one for each core.
      last_step: `drop` or `keep` the last step of each episode as a row. None drops void ones, which have no action;
        windows of actions, rewards, and discounts end before them. The dataset itself has all steps.
      next_step: whether to add the observation, `is_last`, and `is_terminal` of the next step, with names that begin
        with `next_`; `next_<field>_is_pad` marks those after the end of the episode. A last step that is a row, because
        its action is real, is its own next step.
      relative_actions: makes each chunk of actions relative to the state at its row, its first step. Its `inverse`
        converts predicted chunks back (`inverse.chunks`).
    """

    shuffle: bool
    seed: int
    epochs: int | None
    history: Size
    chunk: Size
    image_size: int | tuple[int, int] | None
    columns: Sequence[str] | None
    rank: int
    ranks: int
    drop_last: bool | None
    arrays: Arrays
    threads: int | None
    last_step: LastStep | None
    next_step: bool
    relative_actions: RelativeActions | None


_FRAMES = 8
"""Frames that a thread reads and decodes at a time."""

_REMOTE_FRAMES = 512
"""Frames that are requested ahead at least, if they are in a bucket."""


Part = tuple[Loadable, KeptSteps | None]
"""One of the datasets of batches, and the steps that are rows of batches; None if all rows are."""


@dataclasses.dataclass(frozen=True)
class Content:
    """The contents of a batch.

    Attributes:
      fields: the fields.
      offsets: the windows, by field (`order.make_offsets`).
      image_size: (height, width) of images; None if they keep theirs.
      arrays: the kind of the arrays.
      following: the fields of the next step: their names, and the fields that they are read from.
      relative: makes chunks of actions relative to the state of their row.
      signals: the fast signals with a window of steps.
    """

    fields: Mapping[str, Field]
    offsets: Mapping[str, Indices]
    image_size: tuple[int, int] | None
    arrays: Arrays
    following: Mapping[str, str] = dataclasses.field(default_factory=dict)
    relative: RelativeActions | None = None
    signals: Sequence[str] = ()

    def is_step(self, name: str) -> bool:
        """Whether a field with offsets is a single step instead of a window."""
        return name in self.following and self.following[name] not in self.offsets

    def image_shape(self, field: Field) -> tuple[int, int, int] | None:
        """The shape of an image in a batch; None if it is unknown."""
        height, width, channels = field.shape[-3:]
        if self.image_size is not None:
            height, width = self.image_size
        if height is None or width is None or channels is None:
            return None
        return height, width, channels

    @property
    def images(self) -> list[str]:
        """The fields of images."""
        return [path for path, field in self.fields.items() if field.holds_image_files]


class Batches(Iterator[dict[str, Any]]):
    """The batches of a dataset; made by `Dataset.batches`. An iterator, and a context manager that ends its threads.

        batches = dataset.batches(32, shuffle=True)
        for batch in batches:
            train(batch)
            checkpoint["data"] = batches.state_dict()

    Attributes:
      plan: the order.
    """

    def __init__(self, parts: Sequence[Part], content: Content, plan: Plan, threads: int | None):
        self.plan = plan
        self._parts, self._content = tuple(parts), content
        self._threads = threads or count_cores()
        self._sampler = Sampler(plan)
        self._delivered = self._sampler.state()
        self._pending: deque[tuple[Future[_Filling], dict[str, Any]]] = deque()
        self._decoding = 0  # of those pending
        self._pool: ThreadPoolExecutor | None = None
        self._starting: ThreadPoolExecutor | None = None
        frames = plan.batch_size * sum(len(content.offsets.get(path, (0,))) for path in content.images)
        tasks = max(1, frames // _FRAMES)
        self._ahead = self._requested = 2 + 2 * self._threads // tasks
        if any(getattr(dataset.rows, "is_remote", False) for dataset, _ in parts) and content.images:
            self._requested = max(self._ahead, 1 + math.ceil(_REMOTE_FRAMES / frames))
        self._buffers = Buffers((self._ahead + 2) * max(1, len(content.images)))

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        """The batches that are left; TypeError if there is no end."""
        left = self.plan.count_after(int(self._delivered["batches"]))
        if left is None:
            raise TypeError("these batches have no end (epochs=None)")
        return left

    def __next__(self) -> dict[str, Any]:
        if self._pool is None or self._starting is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="rlds-beam-batches")
            # Of its own: requests for later batches must not wait for the images of earlier ones.
            self._starting = ThreadPoolExecutor(1, thread_name_prefix="rlds-beam-batches")
        while self._prepare(self._starting, self._pool):
            pass
        if not self._pending:
            self.close()
            raise StopIteration
        future, state = self._pending.popleft()
        self._decoding -= 1
        try:
            batch = future.result().result()
        except BaseException:
            self.close()
            raise
        self._delivered = state
        return {path: _convert(array, self._content.arrays) for path, array in batch.items()}

    def state_dict(self) -> dict[str, Any]:
        """The position after the last delivered batch, as JSON; `load_state_dict` resumes there."""
        return {**self.plan.identity(), **self._delivered}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues after the batches that `state_dict` counted.

        Raises:
          UsageError: they were made from other data, or in another order.
        """
        for name, mine in self.plan.identity().items():
            if state.get(name) != mine:
                raise UsageError(f"the state is of other batches: {name} was {state.get(name)}, but is {mine}")
        self.close()
        self._sampler.restore(state)
        self._delivered = self._sampler.state()

    def close(self) -> None:
        """Ends the threads; batches that were not delivered are made again by the next `next`."""
        self._pending.clear()
        self._decoding = 0
        for pool in (self._starting, self._pool):
            if pool is not None:
                pool.shutdown(wait=True, cancel_futures=True)
        self._starting = self._pool = None
        self._sampler.restore(self._delivered)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(self, starting: ThreadPoolExecutor, pool: ThreadPoolExecutor) -> bool:
        """Starts to decode the next batch, or to fill another one; False if there is enough of both."""
        if self._decoding < min(self._ahead, len(self._pending)):
            future, state = self._pending[self._decoding]
            self._pending[self._decoding] = starting.submit(_decode, future, pool), state
            self._decoding += 1
            return True
        if len(self._pending) < self._requested and (drawn := self._sampler.draw()) is not None:
            self._pending.append((starting.submit(self._fill, *drawn), self._sampler.state()))
            return True
        return False

    def _fill(self, rows: Indices, datasets: Indices) -> _Filling:
        """Fills in what needs no decoding, and requests the rest."""
        filling = _Filling(self._content, len(rows), self._buffers)
        for number, part in enumerate(self._parts):
            slots = np.flatnonzero(datasets == number)
            if len(slots):
                filling.fill(part, rows[slots], slots)
        return filling


def _decode(future: Future[_Filling], pool: ThreadPoolExecutor) -> _Filling:
    filling = future.result()
    filling.decode(pool)
    return filling


class _Filling:
    """A batch that is being filled."""

    def __init__(self, content: Content, rows: int, buffers: Buffers):
        self._content, self._rows, self._buffers = content, rows, buffers
        self._arrays: dict[str, Array] = {}
        self._images: dict[str, tuple[tuple[int, ...], list[Frames]]] = {}
        self._tasks: list[Future[None]] = []

    def result(self) -> dict[str, Array]:
        """The batch, once it is complete."""
        for task in self._tasks:
            task.result()
        for path, array in self._arrays.items():
            if array.dtype == object and self._content.fields.get(path, _NO_FIELD).holds_image_files:
                self._arrays[path] = stack(array, path)
        for path in self._content.signals:
            self._join_samples(path)
        return self._arrays

    def _join_samples(self, path: str) -> None:
        """Joins the windows (B, W, k, ...) of a signal, and their times, to (B, W * k, ...), and adds up the counts."""
        counts = self._arrays[path + SAMPLES] * ~self._arrays[path + IS_PAD]
        total = self._arrays[path + SAMPLES] = counts.sum(axis=1, dtype=counts.dtype)
        for name in (path, path + SAMPLE_TIMES):
            windows = self._arrays[name]
            rows, steps, size = windows.shape[:3]
            joined = np.zeros((rows, steps * size, *windows.shape[3:]), windows.dtype)
            joined[np.arange(steps * size) < total[:, None]] = windows[np.arange(size) < counts[..., None]]
            self._arrays[name] = joined

    def decode(self, pool: ThreadPoolExecutor) -> None:
        """Starts to decode the images."""
        for path, (shape, images) in self._images.items():
            field = self._content.fields[path]
            size = self._content.image_shape(field)
            empty = np.empty(shape, object) if size is None else self._buffers.take((*shape, *size), field.dtype)
            self._arrays[path] = empty
            frames = empty.reshape(-1, *empty.shape[len(shape) :])
            self._tasks += [pool.submit(some.decode, frames) for some in images]

    def fill(self, part: Part, rows: Indices, slots: Indices) -> None:
        """Fills rows of one dataset into these places of the batch, but for images, which are requested."""
        plain = [
            p for p, f in self._content.fields.items() if p not in self._content.offsets and not f.holds_image_files
        ]
        dataset, kept = part
        rows = rows if kept is None else kept.steps(rows)
        for path, column in dataset.rows.read(rows, plain).items():
            self._put(path, np.asarray(column), slots)
        for path, field in self._content.fields.items():
            offsets = self._content.offsets.get(path)
            wanted = rows
            if offsets is not None:
                starts = find_starts(dataset.rows)
                assert starts is not None  # checked by `plan_batches`
                void = path.partition("/")[0] in VOID and kept is not None
                wanted, padding = window(rows, starts, offsets, kept.left_out if kept is not None and void else None)
                if self._content.is_step(path):
                    wanted, padding = wanted[:, 0], padding[:, 0]
                self._put(path + IS_PAD, padding, slots)
            if field.holds_image_files:
                self._request_images(dataset, path, wanted, slots)
            elif offsets is not None:
                column_name = self._content.following.get(path, path)
                flat = np.asarray(dataset.rows.read(wanted.ravel(), [column_name])[column_name])
                values = flat.reshape(*wanted.shape, *flat.shape[1:])
                if column_name != path and column_name in FLAGS and any(map(is_action, dataset.fields)):
                    ends = padding  # a next step that is a row is no end
                    if kept is not None:
                        ends = padding | kept.left_out[np.searchsorted(kept.starts, rows, side="right") - 1]
                    values = values & ends
                if self._content.relative is not None and path == action_field(self._content.relative):
                    values = _relative(self._content.relative, dataset, rows, wanted, values)
                if column_name in [f"{signal}{SAMPLE_TIMES}" for signal in self._content.signals] and dataset.fps:
                    values = values + (self._content.offsets[column_name] / dataset.fps)[:, None].astype(values.dtype)
                self._put(path, values, slots)

    def _put(self, path: str, values: Array, slots: Indices) -> None:
        if len(slots) == self._rows:
            self._arrays[path] = values
            return
        if path not in self._arrays:
            self._arrays[path] = np.empty((self._rows, *values.shape[1:]), values.dtype)
        self._arrays[path][slots] = values

    def _request_images(self, dataset: Loadable, path: str, wanted: Indices, slots: Indices) -> None:
        field, per_row = self._content.fields[path], wanted.size // len(wanted)
        column = self._content.following.get(path, path)
        shape = (self._rows, *wanted.shape[1:], *field.closed_shape[:-3])
        _, images = self._images.setdefault(path, (shape, []))
        several = math.prod(field.closed_shape[:-3])  # images of a row
        places = (slots[:, None] * per_row + np.arange(per_row)).reshape(-1, 1) * several + np.arange(several)
        # Overlapping windows have frames in common: each is decoded once, and copied.
        unique, first, inverse = np.unique(wanted.ravel(), return_index=True, return_inverse=True)
        prefetch(dataset.rows, unique, column)
        copies = np.flatnonzero(first[inverse] != np.arange(wanted.size))
        resized = self._content.image_size is not None
        for start in range(0, len(unique), _FRAMES):
            some = slice(start, start + _FRAMES)
            mine = copies[(inverse[copies] >= start) & (inverse[copies] < start + _FRAMES)]
            originals = places[first[inverse[mine]]]
            images.append(Frames(dataset, column, resized, unique[some], places[first[some]], places[mine], originals))


def action_field(relative: RelativeActions) -> str:
    """The field of the actions that are made relative."""
    return relative.action or StepFields().actions


def _relative(relative: RelativeActions, dataset: Loadable, rows: Indices, wanted: Indices, chunks: Array) -> Array:
    """Chunks of actions, (B, W, ...), relative to the states of their rows, (B,); void last actions stay zeros."""
    flat = chunks.reshape(*wanted.shape, -1)
    states = np.asarray(dataset.rows.read(rows, [relative.state])[relative.state])
    starts = find_starts(dataset.rows)
    assert starts is not None  # checked by `plan_batches`
    void = np.isin(wanted + 1, starts) & ~flat.any(axis=2) & (relative.last_action != "real")
    try:
        return relative.chunks(flat, states.reshape(len(rows), -1), void).reshape(chunks.shape)
    except RldsBeamError as error:
        raise RldsBeamError(f"{dataset.name}: among {len(rows)} rows from {rows[0]} on: {error}") from error


_NO_FIELD = Field("", "bool")


def _convert(array: Array, arrays: Arrays) -> Any:
    """The array for a library; text stays numpy, and so do 64 bits in JAX unless `jax_enable_x64` is set."""
    if arrays == "numpy" or array.dtype == object:
        return array
    if arrays == "torch":
        import torch

        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)
    import jax

    if array.dtype.itemsize == 8 and not jax.config.jax_enable_x64:
        return array  # JAX would cut the values to 32 bits
    return jax.numpy.asarray(array) if array.dtype.name == "bfloat16" else jax.dlpack.from_dlpack(array)
