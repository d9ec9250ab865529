"""Round trips of rows through tf.Examples and Arrow arrays."""

from __future__ import annotations

import io
import json
import tempfile
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_beam.encoding.arrow_columns import METADATA, arrow_schema, from_arrow, to_arrow
from rlds_beam.encoding.example.row_decoder import RowDecoder, objects
from rlds_beam.encoding.example.rows import RowEncoder
from rlds_beam.encoding.tfrecord.file import read_records
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import BadEpisode
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages

DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "string",
)


def values(field: Field, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    if field.dtype == "string":
        texts = rng.choice(["", "pick up", "Größe", "日本", "a/b\n"], int(np.prod(shape)))
        return objects([str(text).encode() for text in texts]).reshape(shape)
    if field.dtype == "bool":
        return rng.random(shape) < 0.5
    if field.dtype.startswith(("float", "bfloat")):
        made = rng.normal(size=shape).astype(field.numpy_dtype)
        return np.where(rng.random(shape) < 0.1, np.array(np.inf, field.numpy_dtype), made).astype(field.numpy_dtype)
    info = np.iinfo(field.dtype)
    return rng.integers(info.min, info.max, shape, field.dtype, endpoint=True)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Field], dict[str, Column], int]:
    rows, rng = draw(st.integers(0, 9)), np.random.default_rng(draw(st.integers(0, 1 << 30)))
    fields, columns = [], {}
    for i in range(draw(st.integers(1, 5))):
        dtype, shape = (
            draw(st.sampled_from(DTYPES)),
            tuple(draw(st.lists(st.sampled_from([1, 3, 0, None]), max_size=3))),
        )
        if 0 in shape and None in shape:
            shape = tuple(d or 2 for d in shape)
        field = Field(f"group/{i}.{dtype}", dtype, shape)
        fields.append(field)
        if None in shape:
            # Values do not give the unknown size next to a size of 0; only Parquet and two unknown sizes store it.
            made = [
                values(field, tuple(int(rng.integers(1, 4)) if d is None else d for d in shape), rng)
                for _ in range(rows)
            ]
            columns[field.path] = objects(made)
        else:
            columns[field.path] = values(field, (rows, *shape), rng)
    return fields, columns, rows


def assert_same(field: Field, found: Column, expected: Column) -> None:
    assert isinstance(found, np.ndarray) and isinstance(expected, np.ndarray)
    assert found.dtype == expected.dtype and len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other, str(field))
        assert np.shape(one) == np.shape(other)


@given(tables())
@settings(deadline=None, max_examples=150)
def test_rows_round_trip_through_examples(table: tuple[list[Field], dict[str, Column], int]) -> None:
    fields, columns, rows = table
    fields = [f for f in fields if not (f.dtype == "string" and (f.shape.count(None) > 1))]
    encoder, paths = RowEncoder(fields), [field.path for field in fields]
    payloads = list(encoder.payloads(columns, rows))
    framed = b"".join(bytes(buffer) for buffer, _ in encoder.encode_framed(columns, rows))
    assert [record.payload for record in read_records(io.BytesIO(framed))] == payloads
    assert len(payloads) == rows
    if not fields:
        return
    decoder = RowDecoder(encoder.fields)
    for found in (decoder.decode(payloads, paths), decoder.decode(payloads[:1], paths)):
        for field in fields:
            count = len(found[field.path])
            assert_same(field, found[field.path], columns[field.path][:count])


@given(tables())
@settings(deadline=None, max_examples=150)
def test_rows_round_trip_through_parquet(table: tuple[list[Field], dict[str, Column], int]) -> None:
    fields, columns, rows = table
    schema = arrow_schema(fields)
    arrays = [to_arrow(field, columns[field.path], rows) for field in fields]
    file = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), file)
    read = pq.read_table(pa.BufferReader(file.getvalue()))
    kept = [json.loads(field.metadata[METADATA]) for field in read.schema]
    assert read.schema.names == [field.path for field in fields]
    assert kept == [{"dtype": f.dtype, "shape": [*f.shape], "encoding": f.encoding} for f in fields]
    for field in fields:
        assert_same(field, from_arrow(field, read[field.path].combine_chunks()), columns[field.path])


def test_images_stay_unchanged_and_zero_images_are_encoded() -> None:
    rng = np.random.default_rng(0)
    jpegs = encode_jpeg(rng.integers(0, 255, (4, 8, 6, 3), np.uint8))
    single = EncodedImages(objects([*jpegs[:3], b""]), (8, 6, 3))
    several = EncodedImages(objects([*jpegs, *jpegs[:2], b"", b""]).reshape(4, 2), (None, None, 3))
    fields = [Field("one", "uint8", (8, 6, 3), "jpeg"), Field("two", "uint8", (2, None, None, 3), "png")]
    columns: dict[str, Column] = {"one": single, "two": several}
    encoder = RowEncoder(fields)
    read = RowDecoder(encoder.fields).decode(list(encoder.payloads(columns, 4)), ["one", "two"])
    arrow = {field.path: from_arrow(field, to_arrow(field, columns[field.path], 4)) for field in fields}
    for found in (read, arrow):
        one, two = found["one"], found["two"]
        assert isinstance(one, EncodedImages) and isinstance(two, EncodedImages)
        assert list(one)[:3] == jpegs[:3] and not one.decode()[3].any()
        assert [list(row) for row in two.data][:3] == [[*jpegs[:2]], [*jpegs[2:]], [*jpegs[:2]]]
        zeros = EncodedImages(objects(two.data[3]), two.shape).decode()
        assert zeros.shape == (2, 8, 6, 3) and not zeros.any()


def test_a_wrong_dtype_or_shape_is_an_error() -> None:
    field = Field("x", "float32", (2,))
    for wrong in (np.zeros((3, 2)), np.zeros((3, 3), np.float32), np.zeros((2, 2), np.float32)):
        with pytest.raises(ValueError, match="x "):
            RowEncoder([field]).payloads({"x": wrong}, 3)
        with pytest.raises(ValueError, match="x "):
            to_arrow(field, wrong, 3)


def test_parquet_rejects_invalid_text() -> None:
    with pytest.raises(BadEpisode, match="not UTF-8"):
        to_arrow(Field("x", "string"), objects([b"\xff"]), 1)


def test_tfds_reads_rows_of_every_dtype() -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    import json
    from pathlib import Path

    from rlds_beam.encoding.tfds.dataset_info import SplitInfo, dataset_info_json
    from rlds_beam.encoding.tfds.features import features_json

    rng, rows = np.random.default_rng(1), 3
    fields = [Field(f"d_{dtype}/{n}", dtype, shape) for dtype in DTYPES for n, shape in enumerate([(), (2, 3)])]
    fields += [Field("ragged/one", "float32", (None, 2)), Field("ragged/two", "int32", (None, None))]
    columns: dict[str, Column] = {f.path: values(f, (rows, *f.shape), rng) for f in fields if None not in f.shape}
    columns["ragged/one"] = objects([np.ones((n, 2), np.float32) for n in (1, 3, 2)])
    columns["ragged/two"] = objects([np.ones((n, 2), np.int32) for n in (1, 3, 2)])
    encoder = RowEncoder(fields)
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory)
        (target / "rows-train.tfrecord-00000-of-00001").write_bytes(
            b"".join(bytes(buffer) for buffer, _ in encoder.encode_framed(columns, rows))
        )
        (target / "features.json").write_text(json.dumps(features_json({f.path: f for f in encoder.fields})))
        info = dataset_info_json("rows", "1.0.0", [SplitInfo("train", (rows,), 1)])
        (target / "dataset_info.json").write_text(json.dumps(info))
        read = list(tfds.as_numpy(tfds.builder_from_directory(directory).as_dataset(split="train")))
    assert len(read) == rows
    for i, row in enumerate(read):
        for field in fields:
            value: Any = row
            for name in field.path.split("/"):
                value = value[name]
            column = columns[field.path]
            assert isinstance(column, np.ndarray)
            if field.dtype == "bfloat16":
                value = np.asarray(value).view(ml_dtypes.bfloat16) if np.asarray(value).dtype.kind == "V" else value
            np.testing.assert_array_equal(value, column[i], field.path)
