"""Our columns in PyTorch's `DataLoader` and in Ray Data: the same values, each row once an epoch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import columns_page
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

import rlds_beam

KINDS = ["tfrecord", "array_record", "parquet", "rlds"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("folder")
    columns_page.write(path)
    return path


@pytest.fixture(scope="module", params=KINDS)
def dataset(request: pytest.FixtureRequest, folder: Path) -> rlds_beam.Dataset:
    source = folder / "data" / "point_mass" / "1.0.0"
    if request.param == "rlds":
        return rlds_beam.open_dataset(source, unit="steps")
    if request.param == "array_record":
        pytest.importorskip("array_record")
    rlds_beam.convert(source, folder / request.param, to="columns", format=request.param)
    return rlds_beam.open_dataset(folder / request.param)


def rows_of(batches: Iterable[Any], path: str) -> list[list[float]]:
    return sorted(torch.cat([batch[path].reshape(len(batch[path]), -1) for batch in batches]).tolist())


@pytest.mark.parametrize("workers", [0, 2])
def test_each_row_once_an_epoch(dataset, workers):
    path = next(name for name in dataset.fields if name.endswith("position"))
    expected = sorted(dataset.columns[path].tolist())
    loader = DataLoader(dataset, batch_size=50, shuffle=True, num_workers=workers)
    assert rows_of(loader, path) == expected
    found: list[list[float]] = []
    for rank in range(2):
        sampler = DistributedSampler(dataset, num_replicas=2, rank=rank, shuffle=True, drop_last=False)
        found += rows_of(DataLoader(dataset, batch_size=50, sampler=sampler, num_workers=workers), path)
    assert len(dataset) % 2 == 0  # otherwise the sampler repeats a row
    assert sorted(found) == expected


def test_batches_are_tensors_of_the_dtypes_of_the_columns(dataset):
    batch = next(iter(DataLoader(dataset, batch_size=7)))
    rows = dataset[:7]
    for name, values in batch.items():
        if rows[name].dtype != object:
            np.testing.assert_array_equal(values.numpy(), rows[name])
            assert values.numpy().dtype == rows[name].dtype


@pytest.mark.parametrize("module", ["torch", "ray"])
def test_the_blocks_of_the_page_run(folder, module, monkeypatch):
    monkeypatch.chdir(folder)
    blocks = columns_page.blocks(module)
    assert blocks
    for code in blocks:
        columns_page.run(code)


def test_ray_data_reads_the_same_values(folder):
    import ray.data

    wanted = rlds_beam.open_dataset(folder / "transitions").columns
    table = ray.data.read_parquet(str(folder / "transitions" / "default_policy"))
    batch = table.take_batch(table.count())
    order = np.lexsort((batch["t"], batch["eps_id"]))
    own = np.lexsort((wanted["t"], wanted["eps_id"].astype(bytes)))
    for name, column in wanted.items():
        values = batch[name][order]
        values = np.stack(list(values)) if column.ndim > 1 else values  # Ray returns an array of arrays
        values = np.array([text.encode() for text in values], object) if column.dtype == object else values
        np.testing.assert_array_equal(values, column[own], name)
