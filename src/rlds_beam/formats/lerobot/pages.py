"""Check that pyarrow writes the numbers of a Parquet file where `parquet_file` looks for them."""

from __future__ import annotations

import functools
import io
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np

from rlds_beam.encoding.parquet_reading import UNREADABLE, open_parquet
from rlds_beam.formats.lerobot.frames import FrameColumns, LerobotFrames
from rlds_beam.formats.lerobot.parquet_file import BOUNDED, MARKS, FramesFile, edited, edits_of, other_pages


@functools.cache
def check_pages() -> None:
    """Writes a small file, renumbers it and reads it back.

    Raises:
      RldsBeamError: the installed version of pyarrow writes the numbers or their bounds elsewhere.
    """
    target = _Memory()
    file = FramesFile(target, FrameColumns(()))
    for first, rows in ((0, 3), (3, 2)):
        places = np.arange(first, first + rows)
        own: dict[str, Any] = {"timestamp": places.astype(np.float32), "frame_index": places}
        own |= {"index": MARKS["index"] + places, "episode_index": MARKS["episode_index"] + places // 2}
        own["task_index"] = MARKS["task_index"] + places
        file.add(LerobotFrames(own, rows), "")
        file.end_group()
    marks, _ = file.close()
    numbers = {"index": 70 + np.arange(5), "episode_index": 7 + np.arange(5) // 2, "task_index": np.arange(5)[::-1]}
    content = bytes(edited(target.content, edits_of(marks, numbers)))
    read = open_parquet(io.BytesIO(content), len(content))
    bounds = [_bounds(read.metadata, name) for name in BOUNDED]
    try:
        table = read.read()
    except UNREADABLE as error:  # a checksum
        raise other_pages() from error
    same = all(table[name].to_pylist() == values.tolist() for name, values in numbers.items())
    left = any(struct.pack("<q", mark)[4:] in content for mark in MARKS.values())
    if not same or left or bounds != [[(70, 72), (73, 74)], [(7, 8), (8, 9)]]:
        raise other_pages()


class _Memory:
    """A shard in memory."""

    def __init__(self) -> None:
        self.content = b""

    def write(self, buffers: Iterable[bytes | memoryview], records: int, key: object = None) -> None:
        del records, key
        self.content += b"".join(buffers)


def _bounds(metadata: Any, name: str) -> list[tuple[int, int]]:
    """The minimum and maximum of a column, by row group."""
    bounds = []
    for group in (metadata.row_group(i) for i in range(metadata.num_row_groups)):
        (column,) = (c for c in (group.column(i) for i in range(group.num_columns)) if c.path_in_schema == name)
        bounds.append((column.statistics.min, column.statistics.max))
    return bounds
