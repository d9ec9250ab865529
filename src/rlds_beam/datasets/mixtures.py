"""Batches of a weighted mixture of datasets."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from rlds_beam.connectors.cleaning.relative_actions import RelativeActions
from rlds_beam.connectors.configuration import Configuration
from rlds_beam.datasets.batch_plan import plan_batches
from rlds_beam.datasets.batches import Arrays, Batches
from rlds_beam.datasets.dataset import Dataset
from rlds_beam.datasets.opening import open_dataset
from rlds_beam.datasets.windows import Size
from rlds_beam.errors import UsageError
from rlds_beam.formats.format_options import LastStep
from rlds_beam.formats.merged.inputs import MergeMapping
from rlds_beam.text import shorten


def mix_batches(
    datasets: Mapping[Dataset, float] | Sequence[tuple[Dataset, float]] | str,
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
    relative_actions: RelativeActions | None = None,
) -> Batches:
    """Batches of a weighted mixture of datasets, without an end: each row is from a dataset chosen at random by weight.

        bridge, droid = (open_dataset(path, unit="steps") for path in ("bridge", "droid"))
        for batch in mix_batches([(bridge, 0.7), (droid, 0.3)], 32, chunk=16, image_size=224):
            ...

    A file of `--merge_fields` names the datasets, their connectors, and their weights: `mix_batches("it.yaml", 32)`.

    Each dataset is shuffled on its own, in another order each time it is read. The other arguments are those
    of `Dataset.batches`. All datasets must have the columns, with the same dtypes and shapes; None for those that all
    have. Datasets whose rates are known and differ are mixed with a warning if there are windows.

    Raises:
      UsageError: the datasets do not fit together, or a weight is not above 0; otherwise as `Dataset.batches`.
    """
    if isinstance(datasets, str):
        pairs = _open_all(datasets)
    else:
        pairs = list(datasets.items()) if isinstance(datasets, Mapping) else list(datasets)
    if not pairs:
        raise UsageError("mix_batches needs at least one dataset")
    for dataset, weight in pairs:
        if not (isinstance(weight, (int, float)) and 0 < weight < float("inf")):
            raise UsageError(f"the weight of {dataset.name} is {weight!r}: expected a number above 0")
    if history or chunk:
        _warn_of_rates([dataset for dataset, _ in pairs])
    return plan_batches(
        [dataset for dataset, _ in pairs],
        tuple(float(weight) for _, weight in pairs),
        batch_size,
        shuffle=shuffle,
        seed=seed,
        epochs=None,
        history=history,
        chunk=chunk,
        image_size=image_size,
        columns=columns,
        rank=rank,
        ranks=ranks,
        drop_last=None,
        arrays=arrays,
        threads=threads,
        last_step=last_step,
        next_step=next_step,
        relative_actions=relative_actions,
    )


def _warn_of_rates(datasets: Sequence[Dataset]) -> None:
    """Warns if windows of as many steps last longer in some datasets than in others."""
    rates = {dataset.fps: f"{dataset.fps:g} in {dataset.name}" for dataset in datasets if dataset.fps is not None}
    if len(rates) > 1:
        said = (
            f"steps per second differ ({shorten(', '.join(rates.values()))}), so windows of as many steps last longer "
            "in some datasets: connectors=[Resample(fps=...)] of open_dataset makes them equal"
        )
        warnings.warn(said, stacklevel=3)


def _open_all(file: str) -> list[tuple[Dataset, float]]:
    """The steps of the datasets of a file of `--merge_fields`, after their connectors, and their weights."""
    pairs = []
    for i, entry in enumerate(MergeMapping.load(file).inputs):
        if entry.input is None:
            raise UsageError(f"--merge_fields={file}: inputs[{i}] has no input, the path of its dataset")
        given: dict[str, Any] = {"from_": entry.from_, "split": entry.split, **entry.options}
        given |= {"connectors": entry.connectors} if entry.connectors != Configuration() else {}
        given = {name: value for name, value in given.items() if value is not None}
        pairs.append((open_dataset(entry.input, unit="steps", **given), float(entry.weight)))
    return pairs
