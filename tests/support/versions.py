"""Datasets re-recorded under the same names, with files of the same size."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from rlds_beam.testing import make_episode, read_payloads, shard_paths, write_dataset

FORMATS = ("tfrecord", "gzip", "array_record")


def episodes(first: int) -> list[Any]:
    return [make_episode(5, seed=first + i) for i in range(6)]


def record(directory: Path, first: int, kind: str = "tfrecord") -> Path:
    """Records a dataset whose file names, modification times and (uncompressed) sizes are always the same."""
    path = write_dataset(directory, episodes(first), shards=2)
    for shard in shard_paths(path) if kind != "tfrecord" else ():
        recode(shard, kind)
    for shard in make_shards(path):
        os.utime(shard, ns=(10**18, 10**18))
    return path


def recode(shard: Path, kind: str) -> None:
    if kind == "gzip":
        shard.write_bytes(gzip.compress(shard.read_bytes(), 0, mtime=0))  # stored uncompressed, so sizes are equal
        return
    module = pytest.importorskip("array_record.python.array_record_module")
    writer = module.ArrayRecordWriter(
        str(shard.parent / shard.name.replace("tfrecord", "array_record")), "uncompressed"
    )
    for payload in read_payloads(shard):
        writer.write(payload)
    writer.close()
    shard.unlink()
    info = shard.parent / "dataset_info.json"
    info.write_text(info.read_text().replace('"tfrecord"', '"array_record"'))


def make_shards(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if "-train." in p.name)
