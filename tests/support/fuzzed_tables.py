"""Damages tables and arrays: columns, datasets and headers that are well-formed but not what is expected."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np


def damage_table(kind: str, path: Path, rng: random.Random) -> None:
    """Changes one column or dataset of a file."""
    {"hdf5": _hdf5, "npy": _npy, "parquet": _arrow, "arrow": _arrow}[kind](path, rng)


def _hdf5(path: Path, rng: random.Random) -> None:
    import h5py

    with h5py.File(path, "a") as file:
        names: list[str] = []
        file.visit(names.append)
        name = rng.choice(names)
        old = file[name]
        how = rng.randrange(12)
        shape = old.shape if hasattr(old, "shape") else (3,)
        dtype = old.dtype if hasattr(old, "dtype") else np.dtype("f4")
        if how == 0:
            del file[name]
            return
        if how == 1 and hasattr(old, "dtype") and shape == ():
            value = rng.choice([10**9, 10**18, -1, 0, np.inf, np.nan, 2**64 - 1, "many", b"\xff", [1, 2], 1.5])
            del file[name]
            file[name] = value
            return
        del file[name]
        if how == 2:
            file.create_group(name)
        elif how == 3:  # never filled
            file.create_dataset(name, (10 ** rng.randrange(4, 12), *shape[1:]), dtype, chunks=(100, *shape[1:]))
        elif how == 4:
            file.create_dataset(name, (10 ** rng.randrange(4, 10), 1000), "f4", fillvalue=1, chunks=(100, 10))
        elif how == 5:
            file.create_dataset(name, data=np.zeros((2_000_000, 20), np.uint8), compression="gzip", chunks=(20000, 20))
        elif how == 6:
            file[name] = rng.choice([0, np.nan, b"a", "a", np.zeros(0), np.zeros((0, 3)), h5py.Empty("f4")])
        elif how == 7:
            file.create_dataset(name, shape, h5py.string_dtype())
        elif how == 8:
            file[name] = np.zeros(max(1, shape[0]) if shape else 1, [("a", "f4"), ("b", "i8", 3)])
        elif how == 9:
            file.create_dataset(name, data=np.zeros((*shape, 1)), dtype=rng.choice(["c8", "f2", "u8", "i1", "S3"]))
        elif how == 10:
            file[name] = h5py.SoftLink("/" + rng.choice(["nowhere", name, ""]))
        else:
            file.create_dataset(name, tuple(reversed(shape)) or (2, 2), dtype)


def _npy(path: Path, rng: random.Random) -> None:
    array = np.load(path)
    how = rng.randrange(9)
    if how == 0:
        np.save(path, np.array(rng.choice([0, np.nan, 10**18])))
    elif how == 1:
        np.save(path, np.full(array.shape, rng.choice([np.nan, np.inf, -1.0, 1e18])))
    elif how == 2:
        np.save(path, np.zeros(0, array.dtype))
    elif how == 3:
        np.save(path, np.array([None, {}, "a"], object), allow_pickle=True)
    elif how == 4:
        with open(path, "wb") as file:
            np.savez_compressed(file, a=np.zeros((1000, 1000)))
    elif how == 5:
        np.save(path, array[..., None])
    elif how == 6:
        np.save(path, array.astype(rng.choice(["c8", "U3", "i1", "f8", "datetime64[s]"])))
    else:  # a header with a larger size than the data
        content = path.read_bytes()
        shape = str(array.shape).encode()
        other = rng.choice([b"(999999999999,)", b"(10**9,)", b"(-1,)", b"(2, 2)", b"()", b"(1e9,)", b"(" * 60])
        at = content.find(shape)
        path.write_bytes(
            content[:at] + other + content[at + len(shape) : 128 - len(other) + len(shape)] + content[128:]
        )


def _arrow(path: Path, rng: random.Random) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    table = parquet.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(pa.OSFile(str(path))).read_all()
    name = rng.choice(table.column_names)
    at, rows = table.column_names.index(name), table.num_rows
    how = rng.randrange(9)
    if how == 0:
        table = table.remove_column(at)
    elif how == 1:
        table = table.rename_columns(
            [rng.choice(["", "a", "episode_index", ".."]) if n == name else n for n in table.column_names]
        )
    elif how == 2:
        table = table.slice(0, rng.choice([0, 1, max(0, rows - 1)]))
    elif how == 3:
        table = pa.concat_tables([table, table])
    elif how == 4:
        table = table.append_column(name, table[name])
    else:
        values: list[Any] = [
            None, 10**11, -1, 2**62, 0, 1.5, float("nan"), float("inf"), "", "a", "x" * 300, b"\xff", [], [1, 2],
            [None], {"a": 1}, True, "../a", "1e9",
        ]  # fmt: skip
        one = rng.choice(values)
        made = [one] * rows
        if rng.random() < 0.5 and rows:
            made = table[name].to_pylist()
            made[rng.randrange(rows)] = one
        try:
            column = pa.array(made, table.schema.field(name).type)
        except (pa.ArrowException, TypeError, ValueError):
            column = pa.array([one] * rows)
        about = table.schema.field(name).metadata
        table = table.set_column(at, pa.field(name, column.type, metadata=about), column)
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
