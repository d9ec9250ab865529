"""From the arguments of `batches` and `mix_batches` to a plan of batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Protocol, cast, get_args

import numpy as np

from rlds_beam.datasets.base import Rows, StepRows, starts_of
from rlds_beam.datasets.batches import Arrays, Batches, Content, MixedDataset
from rlds_beam.datasets.order import Plan
from rlds_beam.datasets.windows import KeptSteps, Size, offsets_of
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.options import LastStep
from rlds_beam.images.decoding import Jpeg
from rlds_beam.text import did_you_mean

_IMAGES = ("png", "jpeg")


class Loadable(Protocol):
    """A dataset whose rows become batches."""

    @property
    def name(self) -> str: ...
    @property
    def fields(self) -> Mapping[str, Field]: ...
    @property
    def rows(self) -> Rows: ...
    @property
    def jpeg(self) -> Jpeg: ...


def batches_of(
    datasets: Sequence[Loadable],
    weights: tuple[float, ...] | None,
    batch_size: int,
    *,
    shuffle: bool,
    seed: int,
    epochs: int | None,
    history: Size,
    chunk: Size,
    image_size: int | tuple[int, int] | None,
    columns: Sequence[str] | None,
    rank: int,
    ranks: int,
    drop_last: bool | None,
    arrays: Arrays,
    threads: int | None,
    last_step: LastStep | None,
    next_step: bool,
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
    windows = offsets_of(history, chunk, fields)
    following = _next_observations(fields) if next_step else {}
    fields |= {name: fields[path] for name, path in following.items()}
    next_offsets = {name: windows.get(path, np.zeros(1, np.int64)) + 1 for name, path in following.items()}
    asked = (("history and chunk need", windows), ("next_step needs", next_step), ("last_step needs", last_step))
    needed = next((name for name, given in asked if given), None)
    for dataset in datasets:
        if needed and starts_of(dataset.rows) is None:
            raise UsageError(
                f"{needed} steps, but the rows of {dataset.name} are not: open a dataset of episodes with unit='steps'"
            )
    for path, field in fields.items():
        if field.encoding in _IMAGES and None in field.shape[:-3]:
            raise UsageError(f"{path} has a different number of images in each row: choose other columns")
    parts = [MixedDataset(d.rows, d.name, d.jpeg, _kept(d.rows, last_step)) for d in datasets]
    plan = Plan(
        tuple(map(len, parts)),
        batch_size,
        bool(shuffle),
        seed,
        epochs,
        rank,
        ranks,
        ranks > 1 if drop_last is None else bool(drop_last),
        weights,
    )
    content = Content(fields, {**windows, **next_offsets}, size, arrays, following)
    return Batches(parts, content, plan, threads)


def _next_observations(fields: Mapping[str, Field]) -> dict[str, str]:
    """The names of the fields of the next step, and the fields that they are read from."""
    paths = [path for path in fields if path.partition("/")[0] in ("observation", "is_last", "is_terminal")]
    if taken := [path for path in paths if f"next_{path}" in fields]:
        raise UsageError(f"next_step: there is already a column next_{taken[0]}: choose other columns")
    return {f"next_{path}": path for path in paths}


def _kept(rows: Rows, last_step: LastStep | None) -> KeptSteps | None:
    """The steps that are rows of batches; None for all."""
    if last_step == "keep" or starts_of(rows) is None:
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
            image = field.encoding in _IMAGES and known.encoding in _IMAGES and size is not None
            mine, other = ((f.dtype, (*f.shape[:-3], f.shape[-1]) if image else f.shape) for f in (field, known))
            if mine != other:
                hint = ", or give image_size" if field.encoding in _IMAGES and size is None else ""
                raise UsageError(
                    f"{path} is {_described(known)} in {first.name}, but {_described(field)} in {dataset.name}: choose "
                    f"other columns, or edit it with connectors{hint}"
                )
    if not fields:
        raise UsageError(f"{first.name} and {others[0].name if others else ''} have no column in common")
    return fields


def _described(field: Field) -> str:
    return f"{field.dtype} {tuple('?' if n is None else n for n in field.shape)}"
