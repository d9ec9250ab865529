"""The row groups of a Parquet file without a footer, as pyarrow wrote them."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlds_beam.encoding.parquet_footer import restore_footer

SCHEMA = pa.schema(
    {
        "flag": pa.bool_(),
        "vector": pa.list_(pa.float32(), 3),
        "matrix": pa.list_(pa.list_(pa.float64())),
        "image": pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        "text": pa.string(),
        "index": pa.int64(),
    }.items()
)
SIZES = [1, 3, 4, 1, 1, 1, 1]


def table(rows: int, image_bytes: int) -> pa.Table:
    rng = np.random.default_rng(rows)
    columns = {
        "flag": [bool(i % 2) for i in range(rows)],
        "vector": rng.normal(size=(rows, 3)).astype(np.float32).tolist(),
        "matrix": rng.normal(size=(rows, 2, 2)).tolist(),
        "image": [{"bytes": rng.bytes(image_bytes), "path": None} for _ in range(rows)],
        "text": ["push" if i < rows // 2 else "pull" for i in range(rows)],
        "index": range(rows),
    }
    return pa.table(columns, SCHEMA)


@pytest.mark.parametrize("image_bytes", [20, 60_000], ids=["a page for each column", "several pages"])
def test_complete_row_groups_are_read_wherever_the_file_ends(image_bytes):
    tables = [table(rows, image_bytes) for rows in (5, 1, 120, 40)]
    whole, ends = io.BytesIO(), []
    writer = pq.ParquetWriter(whole, SCHEMA, compression="snappy", use_dictionary=True)
    for one in tables:
        writer.write_table(one)
        ends.append(whole.tell())
    content = whole.getvalue()  # the footer is written by close()
    for stop in (ends[0], ends[0] + 1, ends[1] - 1, ends[2], ends[2] + (ends[3] - ends[2]) // 2, ends[3] - 1, ends[3]):
        found = pq.read_table(io.BytesIO(restore_footer(content[:stop], SCHEMA, SIZES)))
        assert found.equals(pa.concat_tables(tables[: sum(end <= stop for end in ends)]))
    for stop in (0, 4, ends[0] - 1):
        with pytest.raises(ValueError, match="no complete row group"):
            restore_footer(content[:stop], SCHEMA, SIZES)
    writer.close()
    with pytest.raises(ValueError, match="without a footer"):
        restore_footer(whole.getvalue(), SCHEMA, SIZES)
