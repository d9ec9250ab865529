"""Rows of Parquet files: images are read from their places in the file, numbers from cached row groups."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lerobot_data as data
import numpy as np
import pyarrow.parquet as pq
import pytest
from exchanging import export

from rlds_beam import open_dataset
from rlds_beam.connectors.learner.observations import HistoryWindow
from rlds_beam.errors import RldsBeamError
from rlds_beam.formats.columns import row_files


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
    found.rows = type(rows)(files, list(rows.fields.values()))
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
