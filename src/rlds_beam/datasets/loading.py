"""Batches of one dataset, or of a mixture of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import cast, get_args

import numpy as np

from rlds_beam.datasets.base import Rows, StepRows, starts_of
from rlds_beam.datasets.batches import Arrays, Batches, Content, Part
from rlds_beam.datasets.dataset import Dataset
from rlds_beam.datasets.order import Plan
from rlds_beam.datasets.windows import KeptSteps, Size, offsets_of
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.options import LastStep
from rlds_beam.options import Options, check_names
from rlds_beam.text import did_you_mean

_IMAGES = ("png", "jpeg")


@check_names(Options)
def mix_batches(
    datasets: Mapping[Dataset, float] | Sequence[tuple[Dataset, float]],
    batch_size: int,
    *,
    shuffle: bool = True,
    seed: int = 0,
    history: Size = None,
    chunk: Size = None,
    image_size: int | tuple[int, int] | None = None,
    columns: Sequence[str] | None = None,
    rank: int = 0,
    ranks: int = 1,
    arrays: Arrays = "numpy",
    threads: int | None = None,
    last_step: LastStep | None = None,
    next_step: bool = False,
) -> Batches:
    """Batches of a weighted mixture of datasets, without an end: each row is from a dataset chosen at random by weight.

        bridge, droid = (open_dataset(path, unit="steps") for path in ("bridge", "droid"))
        for batch in mix_batches([(bridge, 0.7), (droid, 0.3)], 32, chunk=16, image_size=224):
            ...

    Each dataset is shuffled on its own, in another order each time it is read. The other arguments are those
    of `Dataset.batches`. All datasets must have the columns, with the same dtypes and shapes; None for those that all
    have.

    Raises:
      UsageError: the datasets do not fit together, or a weight is not above 0; otherwise as `Dataset.batches`.
    """
    pairs = list(datasets.items()) if isinstance(datasets, Mapping) else list(datasets)
    if not pairs:
        raise UsageError("mix_batches needs at least one dataset")
    for dataset, weight in pairs:
        if not (isinstance(weight, (int, float)) and 0 < weight < float("inf")):
            raise UsageError(f"the weight of {dataset.name} is {weight!r}: expected a number above 0")
    return batches_of(
        [dataset for dataset, _ in pairs], tuple(float(weight) for _, weight in pairs), batch_size, shuffle=shuffle,
        seed=seed, epochs=None, history=history, chunk=chunk, image_size=image_size, columns=columns, rank=rank,
        ranks=ranks, drop_last=None, arrays=arrays, threads=threads, last_step=last_step, next_step=next_step,
    )  # fmt: skip


def batches_of(
    datasets: Sequence[Dataset],
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
    parts = [Part(d.rows, d.name, d.jpeg, _kept(d.rows, last_step)) for d in datasets]
    plan = Plan(
        tuple(map(len, parts)), batch_size, bool(shuffle), seed, epochs, rank, ranks,
        ranks > 1 if drop_last is None else bool(drop_last), weights,
    )  # fmt: skip
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
    datasets: Sequence[Dataset], columns: Sequence[str] | None, size: tuple[int, int] | None
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
