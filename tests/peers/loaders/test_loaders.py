"""Our columns in grain, pandas, Polars and Hugging Face datasets: the same values, each row once an epoch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import columns_page
import grain.python as grain
import numpy as np
import pytest

import rlds_beam

os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("folder")
    columns_page.write(path)
    source = path / "data" / "point_mass" / "1.0.0"
    for name in ("tfrecord", "array_record", "parquet"):
        connectors = path / "transitions.yaml"
        rlds_beam.convert(source, path / name, to="columns", format=name, connectors=connectors)
    return path


@pytest.fixture(scope="module")
def wanted(folder: Path) -> dict[str, Any]:
    return dict(rlds_beam.open_dataset(folder / "tfrecord").columns)


def rows_of(found: Any) -> list[tuple[bytes, int]]:
    """Identifies the rows, sorted."""
    return sorted((bytes(row["eps_id"]), int(row["t"])) for row in found)


@pytest.mark.parametrize("module", ["grain", "pandas", "polars", "datasets"])
def test_the_blocks_of_the_page_run(folder, module, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HOME", str(folder / "hf"))
    blocks = columns_page.blocks(module)
    assert blocks
    for code in blocks:
        columns_page.run(code)


@pytest.mark.parametrize("name", ["tfrecord", "array_record", "parquet"])
def test_grain_reads_each_row_once_an_epoch_in_workers(folder, wanted, name):
    dataset = rlds_beam.open_dataset(folder / name)
    everything = sorted(zip(wanted["eps_id"], wanted["t"].tolist(), strict=True))
    found: list[tuple[bytes, int]] = []
    for rank in range(2):
        sampler = grain.IndexSampler(
            len(dataset), shard_options=grain.ShardOptions(rank, 2), shuffle=True, num_epochs=1, seed=1
        )
        loader = grain.DataLoader(data_source=dataset, sampler=sampler, worker_count=2 if rank else 0)
        found += rows_of(loader)
    assert sorted(found) == everything
    mapped = grain.MapDataset.source(dataset).shuffle(seed=2).to_iter_dataset()
    assert rows_of(mapped) == everything


@pytest.mark.parametrize("rows", ["episodes", "steps"])
def test_grain_reads_rlds_in_worker_processes(folder, rows):
    """Each row appears once per epoch with the values that this process reads, also after resuming the iterator."""
    dataset = rlds_beam.open_dataset(folder / "data" / "point_mass" / "1.0.0", unit=rows)
    wanted = {digest(row) for row in dataset}
    assert len(wanted) == len(dataset)
    sampler = grain.IndexSampler(len(dataset), shard_options=grain.NoSharding(), shuffle=True, num_epochs=1, seed=3)
    loader = grain.DataLoader(data_source=dataset, sampler=sampler, worker_count=2)
    order = [digest(row) for row in loader]
    assert len(order) == len(dataset) and set(order) == wanted
    iterator = iter(loader)
    begun = [digest(next(iterator)) for _ in range(5)]
    resumed = iter(loader)
    resumed.set_state(iterator.get_state())
    assert begun + [digest(row) for row in resumed] == order


def digest(row: dict[str, Any]) -> bytes:
    """A digest of the values of a row."""
    return b"".join(path.encode() + np.asarray(row[path]).tobytes() for path in sorted(row))


def test_pandas(folder, wanted):
    import pandas

    table = pandas.read_parquet(folder / "transitions" / "default_policy")
    for path, column in wanted.items():
        values = np.stack(list(table[path])) if column.ndim > 1 else table[path].to_numpy()
        values = np.array([text.encode() for text in values], object) if column.dtype == object else values
        np.testing.assert_array_equal(values, column, path)
        assert values.dtype == column.dtype


def test_polars(folder, wanted):
    import polars

    table = polars.read_parquet(folder / "transitions" / "default_policy" / "*.parquet")
    assert table.schema["obs/position"] == polars.Array(polars.Float32, 2)
    for path, column in wanted.items():
        values = table[path].to_numpy()
        if column.dtype != object:
            np.testing.assert_array_equal(values, column, path)
            assert values.dtype == column.dtype
    assert table["eps_id"].to_list() == [text.decode() for text in wanted["eps_id"]]


def test_hugging_face_datasets(folder, wanted, monkeypatch):
    import datasets

    files = str(folder / "transitions" / "default_policy" / "*.parquet")
    table = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(folder / "cache"))
    arrays = table.with_format("numpy")[:]
    for path, column in wanted.items():
        if column.dtype != object:
            np.testing.assert_array_equal(np.asarray(arrays[path]), column, path)
    assert table["eps_id"][:] == [text.decode() for text in wanted["eps_id"]]
