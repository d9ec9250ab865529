"""Images are found in files that hold them as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlds_beam.datasets.image_index import find_images
from rlds_beam.encoding.parquet_files import byte_chunks
from rlds_beam.reading.base import Span


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
