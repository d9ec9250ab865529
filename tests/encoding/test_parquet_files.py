"""Row groups of Parquet files whose dictionaries repeat large values."""

from __future__ import annotations

import io
from typing import Any

import pytest

from rlds_beam.encoding import parquet_files
from rlds_beam.encoding.parquet_files import open_parquet, read_all, read_group


def opened(values: list[bytes | None], struct: bool, groups: int = 1) -> Any:
    """A Parquet file of these values, which it stores once each in every row group."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    column = pa.array(values, pa.binary())
    if struct:
        column = pa.StructArray.from_arrays([column, pa.array(["a"] * len(values))], ["bytes", "path"])
    file = io.BytesIO()
    table = pa.table({"image": column, "number": range(len(values))})
    parquet.write_table(table, file, dictionary_pagesize_limit=1 << 30, row_group_size=max(1, len(values) // groups))
    return open_parquet(file, len(file.getvalue())), table


@pytest.mark.parametrize("struct", [False, True])
def test_a_value_in_every_row(monkeypatch: pytest.MonkeyPatch, struct: bool) -> None:
    monkeypatch.setattr(parquet_files, "_MAX_REPEATED_BYTES", 10_000_000)
    bomb, _ = opened([bytes(range(256)) * 1000] * 1000, struct)
    for read in (lambda: read_group(bomb, 0, ["image"]), lambda: read_all(bomb)):
        with pytest.raises(OSError, match=r"row group 0 repeats values to more than 10,\d+,\d+ bytes"):
            read()
    assert read_group(bomb, 0, ["number"]).num_rows == 1000


@pytest.mark.parametrize("most", [0, 1 << 30])
@pytest.mark.parametrize("struct", [False, True])
def test_other_values_are_read_alike(monkeypatch: pytest.MonkeyPatch, struct: bool, most: int) -> None:
    """In pieces or at once: the same table, also without rows."""
    monkeypatch.setattr(parquet_files, "_MAX_REPEATED_BYTES", most)
    values = [None if i % 7 == 0 else bytes([i % 256]) * (i * 10) for i in range(300)]
    file, table = opened(values, struct, groups=3)
    assert read_all(file).equals(table)
    assert read_group(file, 1, ["number", "image"]).equals(table.slice(100, 100).select(["number", "image"]))
    empty, nothing = opened([], struct)
    assert read_all(empty).equals(nothing)
