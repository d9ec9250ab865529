"""Reads the tables of a Reverb checkpoint without loading it.

A checkpoint is a directory with `tables.tfrecord`, `items.tfrecord`, `chunks.tfrecord`, and an empty file `DONE` that
is written last. The files are TFRecords of Protobuf messages, each compressed as one zlib stream; old servers did not
compress them. Source: reverb/cc/platform/tfrecord_checkpointer.cc, reverb/cc/checkpointing/checkpoint.proto (v0.14.0).
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterator

from rlds_beam.encoding.tfrecord.framing import FOOTER, HEADER, masked_crc
from rlds_beam.reverb.protocol.info import TableInfo, parse_table_checkpoint

TABLES, DONE = "tables.tfrecord", "DONE"
FILES = frozenset({TABLES, "items.tfrecord", "chunks.tfrecord", DONE})


def parse_tables(content: bytes) -> dict[str, TableInfo]:
    """The tables by name, in alphabetical order, from the bytes of `tables.tfrecord`.

    Raises:
      ValueError: the bytes are not those of such a file.
    """
    with contextlib.suppress(zlib.error):  # uncompressed (an old server), or not a checkpoint, which the checksums show
        content = zlib.decompress(content)
    try:
        tables = [parse_table_checkpoint(record) for record in _records(content)]
    except struct.error as error:
        raise ValueError("it ends inside a record") from error
    return {table.name: table for table in sorted(tables, key=lambda table: table.name)}


def _records(content: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(content):
        length, length_crc = HEADER.unpack_from(content, at)
        start = at + HEADER.size
        record = content[start : start + length]
        (crc,) = FOOTER.unpack_from(content, start + length)
        if masked_crc(content[at : at + 8]) != length_crc or masked_crc(record) != crc:
            raise ValueError("a record whose checksum is wrong")
        yield record
        at = start + length + FOOTER.size
