"""Rows of Parquet files: images are read from their places in the file, numbers from cached row groups."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lerobot_data as data
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from exchanging import export
from hypothesis import example, given
from hypothesis import strategies as st

from rlds_beam import open_dataset
from rlds_beam.connectors.learner.observations import HistoryWindow
from rlds_beam.datasets import record_files
from rlds_beam.datasets.base import Cache
from rlds_beam.datasets.image_index import find_images
from rlds_beam.encoding.parquet_files import byte_chunks
from rlds_beam.errors import RldsBeamError
from rlds_beam.formats.columns import row_files
from rlds_beam.reading.base import Span


@pytest.fixture(scope="module", params=["images", "windows"])
def columns(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same rows as Parquet and as TFRecord; the second with windows of two images."""
    directory = tmp_path_factory.mktemp("data")
    source, _ = data.write_moving_data(directory)
    flags = {} if request.param == "images" else {"connectors": [HistoryWindow(2)]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_files, "ROW_GROUP_BYTES", 30_000)
        for kind in ("parquet", "tfrecord"):
            export(source, directory / kind, "columns", format=kind, **flags)
    return directory / "parquet", directory / "tfrecord"


def find_module(path: Path) -> Any:
    return open_dataset(path)


def same(found: Any, wanted: Any) -> None:
    assert set(found) == set(wanted)
    for name, column in wanted.items():
        np.testing.assert_array_equal(np.asarray(found[name]), np.asarray(column), name)


def test_rows_are_those_of_tfrecord_files(columns):
    found, wanted = map(find_module, columns)
    same(found.columns, wanted.columns)
    order = np.random.default_rng(0).permutation(len(found))
    same(found[order], wanted[order])
    same(pickle.loads(pickle.dumps(found))[order[:7]], wanted[order[:7]])
    same(found[5], wanted[5])
    same(found[3:3], wanted[3:3])
    for batch, other in zip(found.batches(4, shuffle=True), wanted.batches(4, shuffle=True), strict=True):
        same(batch, other)
    with ThreadPoolExecutor(4) as pool:
        for rows in pool.map(lambda i: found[order[i : i + 5]], range(12)):
            assert len(next(iter(rows.values()))) <= 5


def images_of(dataset: Any) -> list[str]:
    return [path for path, field in dataset.fields.items() if field.encoding in ("png", "jpeg")]


def test_images_are_not_kept(columns):
    found = find_module(columns[0])
    rows = found.rows
    found[: len(found)]
    assert images_of(found)
    assert {name for _, _, name in rows._places} == set(images_of(found))
    assert all(rows._columns.get((file, group, name)) is None for file, group, name in rows._places)
    (path, *_) = columns[0].rglob("*.parquet")
    metadata = pq.read_metadata(path)
    assert metadata.num_row_groups > 1
    group = metadata.row_group(0)
    kinds = {(c.path_in_schema, c.compression) for c in (group.column(i) for i in range(group.num_columns))}
    assert {kind for path, kind in kinds if path.split(".list")[0] in images_of(found)} == {"UNCOMPRESSED"}
    assert ("SNAPPY" in {kind for _, kind in kinds}) and len(pq.read_table(path))


def test_compressed_images_are_read_with_their_group(columns, tmp_path):
    wanted = find_module(columns[0])
    rows = wanted.rows
    files = []
    for i, file in enumerate(rows.files):
        path = tmp_path / f"{i}.parquet"
        pq.write_table(pq.read_table(file[0]), path, compression="zstd", row_group_size=9)
        files.append((str(path), file[1]))
    found = open_dataset(columns[0])
    found._rows = type(rows)(tuple(files), rows.stored)
    order = np.random.default_rng(0).permutation(len(found))
    same(found[order], wanted[order])
    assert not found.rows._places


def test_a_changed_image_is_an_error(columns):
    found = find_module(columns[0])
    name = images_of(found)[0]
    found[: len(found)]
    place = found.rows._places[0, 0, name].ravel()[1]
    path = Path(found.rows.files[0][0])
    original = path.read_bytes()
    content = bytearray(original)
    content[int(place["offset"]) + 30] ^= 1
    try:
        path.write_bytes(content)
        with pytest.raises(RldsBeamError, match="do not match their checksum"):
            found[:3]
        with pytest.raises(RldsBeamError, match=r"cannot read .*\.parquet"):  # the checksum of the page
            find_module(columns[0])[:3]
    finally:
        path.write_bytes(original)


def test_a_cache_keeps_the_last_values():
    cache: Cache[str] = Cache(10)
    for i, size in enumerate((4, 4, 4)):
        cache.put(i, str(i), size)
    assert [cache.get(i) for i in range(3)] == [None, "1", "2"]
    cache.put(1, "one", 9)
    assert (cache.get(1), cache.get(2)) == ("one", None)
    cache.put(3, "large", 99)
    assert (cache.get(3), cache.get(1)) == ("large", None)
    assert record_files._CACHED > 0 and pickle.loads(pickle.dumps(cache)).get(3) is None


@given(
    sizes=st.lists(st.integers(0, 3000), max_size=40),
    group=st.integers(1, 15),
    first=st.integers(0, 40),
    seed=st.integers(0, 3),
)
@example(sizes=[0, 1, 0], group=1, first=0, seed=0)  # what is behind a missed image is no reason to skip it
@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_what_is_found_is_the_image(tmp_path_factory, compression, sizes, group, first, seed):
    path = tmp_path_factory.mktemp("file") / "a.parquet"
    rng = np.random.default_rng(seed)
    images = [b"\xff\xd8\xff the same header" * (size > 0) + rng.bytes(size) for size in sizes]
    pq.write_table(
        pa.table({"x": pa.array(images, pa.binary())}),
        path,
        row_group_size=group,
        compression=compression,
        use_dictionary=False,
        data_page_size=4000,
    )
    spans = [Span(str(path), *span) for span in byte_chunks(pq.read_metadata(path), ("UNCOMPRESSED", "SNAPPY"))["x"]]
    content, own = path.read_bytes(), images[first:]
    found = find_images(own, spans)
    assert all(content[offset : offset + len(image)] == image for image, (_, offset) in found.items())
    if compression == "none":
        assert set(found) == {image for image in own if image}


def test_images_that_are_not_there(tmp_path: Path):
    rng = np.random.default_rng(0)
    images = [rng.bytes(5000) for _ in range(60)]
    path = tmp_path / "a"
    path.write_bytes(b"".join(b"1234" + image for image in images))
    span = Span(str(path), 0, path.stat().st_size)
    changed = [image if i % 3 else image[:-1] + b"!" for i, image in enumerate(images)]
    assert set(find_images(changed, [span])) == set(changed) & set(images)
    assert find_images([bytes(99), bytes(77)], [span]) == {}
    assert find_images(images[50:], [span, Span(str(tmp_path / "none"), 0, 1)]).keys() == set(images[50:])
