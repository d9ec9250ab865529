"""From the arguments of `batches` and `mix_batches` to a plan of batches."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import cast, get_args

import numpy as np

from rlds_beam.connectors.cleaning.pixels import INTRINSICS
from rlds_beam.connectors.cleaning.relative_actions import RelativeActions
from rlds_beam.connectors.cleaning.selection import find_windows
from rlds_beam.datasets.base import (
    STEPS,
    Indices,
    Loadable,
    Rows,
    StepRows,
    episode_fields,
    find_starts,
    join_episodes,
)
from rlds_beam.datasets.batches import Arrays, Batches, Content, action_field
from rlds_beam.datasets.order import KeptSteps, Plan, Size, make_offsets
from rlds_beam.datasets.record_files import RecordFiles
from rlds_beam.encoding.example.row_decoder import RowDecoder, objects
from rlds_beam.encoding.wire import MalformedError
from rlds_beam.episodes.episode import Column, Episode, EpisodeKey
from rlds_beam.episodes.schema import SAMPLE_TIMES, SAMPLES, Field, Schema
from rlds_beam.errors import BadEpisode, RldsBeamError, UsageError
from rlds_beam.formats.format_options import LastStep
from rlds_beam.formats.merged.schemas import DatasetsDifferError, merge_representations
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import Decoder
from rlds_beam.text import did_you_mean


def plan_batches(
    datasets: Sequence[Loadable],
    weights: tuple[float, ...] | None,
    batch_size: int,
    *,
    shuffle: bool = False,
    seed: int = 0,
    epochs: int | None = 1,
    history: Size = None,
    chunk: Size = None,
    image_size: int | tuple[int, int] | None = None,
    columns: Sequence[str] | None = None,
    rank: int = 0,
    ranks: int = 1,
    drop_last: bool | None = None,
    arrays: Arrays = "numpy",
    threads: int | None = None,
    last_step: LastStep | None = None,
    next_step: bool = False,
    relative_actions: RelativeActions | None = None,
) -> Batches:
    """See `Dataset.batches` and `mix_batches`."""
    if arrays not in get_args(Arrays):
        raise UsageError(
            f"arrays={arrays}: expected {', '.join(get_args(Arrays))}{did_you_mean(arrays, get_args(Arrays))}"
        )
    if arrays != "numpy" and find_spec(arrays) is None:
        raise UsageError(f"arrays={arrays} needs {arrays}, which is not installed")
    size = _image_size(image_size)
    fields = _common_fields(datasets, columns, size)
    if last_step not in (None, *get_args(LastStep)):
        raise UsageError(
            f"last_step={last_step}: expected drop or keep{did_you_mean(str(last_step), get_args(LastStep))}"
        )
    windows = make_offsets(history, chunk, fields)
    if relative_actions is not None:
        for dataset in datasets:
            _check_relative(relative_actions, dataset, windows)
    signals = [path for path in find_windows(fields) if path in windows]
    windows |= {path + ending: windows[path] for path in signals for ending in (SAMPLES, SAMPLE_TIMES)}
    following = _next_observations(fields) if next_step else {}
    fields |= {name: fields[path] for name, path in following.items()}
    next_offsets = {name: windows.get(path, np.zeros(1, np.int64)) + 1 for name, path in following.items()}
    asked = (("history and chunk need", windows), ("next_step needs", next_step), ("last_step needs", last_step))
    needed = next((name for name, given in asked if given), None)
    for dataset in datasets:
        if needed and find_starts(dataset.rows) is None:
            raise UsageError(
                f"{needed} steps, but the rows of {dataset.name} are not: open a dataset of episodes with unit='steps'"
            )
        if signals and dataset.fps is None:
            raise UsageError(f"windows of {signals[0]} need the rate of {dataset.name}: choose other columns")
    for path, field in fields.items():
        if field.holds_image_files and None in field.shape[:-3]:
            raise UsageError(f"{path} has a different number of images in each row: choose other columns")
        if size and f"{path}{INTRINSICS}" in fields:
            raise UsageError(f"image_size does not change {path}{INTRINSICS}: leave it out, or use ResizeImages")
    parts = [(dataset, _keep(dataset.rows, last_step)) for dataset in datasets]
    plan = Plan(
        tuple(len(dataset.rows) if kept is None else len(kept) for dataset, kept in parts),
        batch_size,
        bool(shuffle),
        seed,
        epochs,
        rank,
        ranks,
        ranks > 1 if drop_last is None else bool(drop_last),
        weights,
    )
    signals += [name for name, path in following.items() if path in signals]
    content = Content(fields, {**windows, **next_offsets}, size, arrays, following, relative_actions, signals)
    return Batches(parts, content, plan, threads)


_COMPARED_EPISODES, _COMPARED_STEPS = 32, 4096


def _check_relative(relative: RelativeActions, dataset: Loadable, windows: Mapping[str, Indices]) -> None:
    """Raises UsageError if chunks of a dataset cannot be made relative."""
    path, state = action_field(relative), relative.state
    if path not in windows:
        raise UsageError(f"relative_actions needs chunks of {path}: give chunk, for example chunk=16")
    if relative.to != "state":
        raise UsageError(f"relative_actions: to={relative.to}: chunks are relative to a state")
    if state not in dataset.fields:
        raise UsageError(f"relative_actions: {dataset.name} has no column {state}{did_you_mean(state, dataset.fields)}")
    known = [dataset.fields[name] for name in (path, state)]
    action, other = (np.zeros((1, field.known_size), field.numpy_dtype) for field in known)
    relative.check(path, action, other)
    relative.check_known(path, known[0].dimensions)
    starts = find_starts(dataset.rows)
    if relative.compare_ranges and starts is not None and len(starts) > 1:
        last = starts[min(len(starts) - 1, _COMPARED_EPISODES)]
        rows = np.setdiff1d(np.arange(min(last, _COMPARED_STEPS)), starts - 1)
        read = dataset.rows.read(rows, [path, state])
        actions, states = (np.asarray(read[name], np.float64).reshape(len(rows), -1) for name in (path, state))
        finite = np.isfinite(actions).all(axis=1) & np.isfinite(states).all(axis=1)
        if finite.any():
            relative.compare(path, actions[finite], states[finite])


def _next_observations(fields: Mapping[str, Field]) -> dict[str, str]:
    """The names of the fields of the next step, and the fields that they are read from."""
    paths = [path for path in fields if path.partition("/")[0] in ("observation", "is_last", "is_terminal")]
    if taken := [path for path in paths if f"next_{path}" in fields]:
        raise UsageError(f"next_step: there is already a column next_{taken[0]}: choose other columns")
    return {f"next_{path}": path for path in paths}


def _keep(rows: Rows, last_step: LastStep | None) -> KeptSteps | None:
    """The steps that are rows of batches; None for all."""
    if last_step == "keep" or find_starts(rows) is None:
        return None
    steps = cast(StepRows, rows)
    left_out = steps.ended if last_step == "drop" else steps.void
    return KeptSteps(steps.starts, left_out) if left_out.any() else None


def _image_size(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(n, int) and 0 < n <= 1 << 14 for n in pair):
        raise UsageError(f"image_size={size}: expected a number of pixels, or (height, width)")
    return pair[0], pair[1]


def _common_fields(
    datasets: Sequence[Loadable], columns: Sequence[str] | None, size: tuple[int, int] | None
) -> dict[str, Field]:
    first, *others = datasets
    wanted = [p for p in first.fields if all(p in other.fields for other in others)] if columns is None else columns
    fields: dict[str, Field] = {}
    for path in wanted:
        for dataset in datasets:
            if path not in dataset.fields:
                raise UsageError(f"{dataset.name} has no column {path}{did_you_mean(path, dataset.fields)}")
            field = dataset.fields[path]
            known = fields.setdefault(path, field)
            image = field.holds_image_files and known.holds_image_files and size is not None
            mine, other = ((f.dtype, (*f.shape[:-3], f.shape[-1]) if image else f.shape) for f in (field, known))
            if mine != other:
                hint = ", or give image_size" if field.holds_image_files and size is None else ""
                raise UsageError(
                    f"{path} is {_describe(known)} in {first.name}, but {_describe(field)} in {dataset.name}: choose "
                    f"other columns, or edit it with connectors{hint}"
                )
        _check_same_meaning(path, datasets)
    if not fields:
        raise UsageError(f"{first.name} and {others[0].name if others else ''} have no column in common")
    return fields


def _check_same_meaning(path: str, datasets: Sequence[Loadable]) -> None:
    """Raises UsageError if the names, or the representations, of a column's values contradict each other."""
    for one, other in itertools.combinations(datasets, 2):
        known, field = one.fields[path], other.fields[path]
        if field.holds_images:
            continue
        said = f"the values of {path} mean something else in {one.name} than in {other.name}"
        try:
            merge_representations([known, field])
        except DatasetsDifferError:
            kinds = f"{known.representation or 'unknown'} and {field.representation or 'unknown'}"
            raise UsageError(
                f"{said} ({kinds}): convert one with RelativeActions, AbsoluteActions, or ConvertRotation"
            ) from None
        if known.names and field.names and known.names != field.names:
            names = (f"{a} and {b}" for a, b in zip(known.names, field.names, strict=True) if a != b)
            raise UsageError(f"{said} ({next(names)}): use the connector ArrangeDimensions, or RenameDimensions")


def _describe(field: Field) -> str:
    return f"{field.dtype} {tuple('?' if n is None else n for n in field.shape)}"


@dataclasses.dataclass(frozen=True)
class EpisodeRows:
    """Episodes as rows (`base.Rows`): `steps/...` are columns [T, ...], the others are metadata.

    Attributes:
      records: the stored records.
      schema: the schema of the episodes.
      decoder: decodes a record into an episode.
      first, count: the slice of the split's episodes.
    """

    records: RecordFiles
    schema: Schema
    decoder: Decoder
    first: int = 0
    count: int | None = None

    def __len__(self) -> int:
        there = max(0, len(self.records) - self.first)
        return there if self.count is None else min(self.count, there)

    @functools.cached_property
    def fields(self) -> Mapping[str, Field]:
        return episode_fields(self.schema.steps.values(), self.schema.metadata.values())

    def read(self, indices: Indices, wanted: Sequence[str]) -> dict[str, Column]:
        numbers, episodes = indices + self.first, list[Episode]()
        for index, payload in zip(numbers.tolist(), self.records.read(numbers), strict=True):
            try:
                episodes.append(self.decoder.decode(payload, EpisodeKey("dataset/1.0.0", "all", 0, index)))
            except BadEpisode as bad:
                path, number = self.records.place(index)
                raise RldsBeamError(
                    f"{path}, record {number}: {bad}; `rlds-beam check` lists such records, `convert` leaves them out"
                ) from bad
        return {path: self._column(path, episodes) for path in wanted}

    def _column(self, path: str, episodes: Sequence[Episode]) -> Column:
        field = self.fields[path]
        if path.startswith(STEPS):
            return join_episodes(field, [episode.steps[path.removeprefix(STEPS)] for episode in episodes])
        values = [episode.metadata[path] for episode in episodes]
        if field.holds_image_files:
            return EncodedImages(objects(values), field.shape, field.dtype)
        if None in field.shape or field.dtype == "string":
            return objects(values)
        return np.array(values, field.numpy_dtype).reshape(len(values), *field.closed_shape)


@dataclasses.dataclass(frozen=True)
class ExampleRows:
    """Rows stored as tf.Examples (`base.Rows`).

    Attributes:
      records: the stored records.
      stored: the fields of a record.
      stacks: columns stored in several fields, one per element: `camera` in `camera/0`, `camera/1`.
    """

    records: RecordFiles
    stored: tuple[Field, ...]
    stacks: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.records)

    @functools.cached_property
    def fields(self) -> Mapping[str, Field]:
        parts = {part for names in self.stacks.values() for part in names}
        known = {field.path: field for field in self.stored}
        stacked = {
            path: dataclasses.replace(known[names[0]], path=path, shape=(len(names), *known[names[0]].shape))
            for path, names in self.stacks.items()
        }
        return {**{path: field for path, field in known.items() if path not in parts}, **stacked}

    @functools.cached_property
    def _decoder(self) -> RowDecoder:
        return RowDecoder(self.stored)

    def read(self, indices: Indices, wanted: Sequence[str]) -> dict[str, Column]:
        payloads = self.records.read(indices)
        stored = [name for path in wanted for name in self.stacks.get(path, (path,))]
        try:
            columns = self._decoder.decode(payloads, stored)
        except MalformedError as error:
            path, number = self.records.place(int(indices[0]))
            raise RldsBeamError(
                f"{path}, among {len(payloads)} records from number {number} on: {error}; the manifest describes "
                "different records: convert the dataset again"
            ) from error
        return {path: _stack(columns, self.stacks[path]) if path in self.stacks else columns[path] for path in wanted}


def _stack(columns: Mapping[str, Column], names: Sequence[str]) -> Column:
    """Stacks the images of several fields into one column, [k, len(names)]."""
    parts = [columns[name] for name in names]
    first = parts[0]
    assert isinstance(first, EncodedImages)
    rows = np.stack([part.data for part in parts if isinstance(part, EncodedImages)], axis=1)
    return first.with_data(objects(list(rows)))


def find_stacks(fields: Sequence[Field]) -> dict[str, tuple[str, ...]]:
    """The trajectory columns stored as a JPEG per frame: `camera` in `camera/0`, `camera/1`."""
    stacks: dict[str, dict[int, str]] = {}
    for field in fields:
        match = re.fullmatch(r"(.+)/(\d+)", field.path)
        if match and field.encoding == "jpeg":
            stacks.setdefault(match[1], {})[int(match[2])] = field.path
    return {
        path: tuple(names[i] for i in range(len(names)))
        for path, names in stacks.items()
        if [*sorted(names)] == [*range(len(names))]
    }
