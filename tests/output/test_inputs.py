"""The input of a plan in a file of its own, and what of it a worker gets."""

from __future__ import annotations

import pickle
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds_beam.encoding.tfrecord.file import TFRecordFormat
from rlds_beam.errors import UsageError
from rlds_beam.output.files import inputs_file
from rlds_beam.output.plans import encode_inputs, read_inputs
from rlds_beam.reading.base import Split
from rlds_beam.reading.changes import Snapshot
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.shard_list import ShardList, spill_lists


def _plan(names: list[str]) -> tuple[Any, Any, Snapshot]:
    """A source of shards without files, its ranges, and a snapshot with random fingerprints."""
    count = len(names)
    shards = ShardList("data", ((i, name, 1000, 1) for i, name in enumerate(names)))
    files = TFRecordFormat()
    source: Any = types.SimpleNamespace(splits=[Split("train", shards)], files=files, has_files=True, dataset="data")
    source.companions = lambda shard: ()
    snapshot = Snapshot(source)
    digits = np.frombuffer(np.random.default_rng(0).bytes(16 * count).hex().encode(), "S32")
    snapshot._splits["train"].arrays["content"] = digits
    return source, plan_ranges(source), snapshot


def read_names(directory: Path, digest: str, content: bytes) -> list[str]:
    (directory / inputs_file(digest)).write_bytes(content)
    return [file.name for file in read_inputs(str(directory), {"inputs": digest})["train"].shards()]


def test_bytes_of_many_shards(tmp_path: Path) -> None:
    sizes = {}
    for count in (5_000, 20_000):
        names = [f"toy-train.tfrecord-{i:05d}-of-{count:05d}" for i in range(count)]
        source, ranges, snapshot = _plan(names)
        digest, content = encode_inputs(source, ranges, snapshot)
        assert len(content) <= 60 * count
        assert len(digest) == 64  # what plan.json has of it
        assert read_names(tmp_path, digest, content) == names
        with spill_lists(str(tmp_path)):
            sizes[count] = len(pickle.dumps((ranges, snapshot)))
    assert max(sizes.values()) < 20_000 and sizes[20_000] - sizes[5_000] < 100


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    names = ["a\udcff.tfrecord", "é.tfrecord"]
    source, ranges, snapshot = _plan(names)
    assert [shard.path for shard in source.splits[0].shards] == [f"data/{name}" for name in names]
    assert source.splits[0].shards[0].path == "data/a\udcff.tfrecord"
    digest, content = encode_inputs(source, ranges, snapshot)
    assert read_names(tmp_path, digest, content) == names


def test_the_input_of_another_plan_is_refused(tmp_path: Path) -> None:
    digest, _ = encode_inputs(*_plan(["a"]))
    _, content = encode_inputs(*_plan(["b"]))
    (tmp_path / inputs_file(digest)).write_bytes(content)
    with pytest.raises(UsageError, match="it is not the input of this plan"):
        read_inputs(str(tmp_path), {"inputs": digest})
