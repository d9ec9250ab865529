"""The input of a plan in a file of its own, and what of it a worker gets."""

from __future__ import annotations

import hashlib
import pickle
import types
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from rlds_beam import storage
from rlds_beam.errors import UsageError
from rlds_beam.output.inputs import decode_inputs, encode_inputs, read_inputs
from rlds_beam.output.plans import OutputPlan, another, write_plan
from rlds_beam.reading.base import Split
from rlds_beam.reading.changes import Snapshot, _SeenFiles
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.shard_list import Columns, ShardList, spilling


def _plan(names: list[str]) -> tuple[Any, Any, Snapshot]:
    """A source of shards without files, its ranges, and a snapshot with random fingerprints."""
    count = len(names)
    shards = ShardList("data", ((i, name, 1000, 1) for i, name in enumerate(names)))
    files: Any = types.SimpleNamespace(is_splittable=lambda path: False)
    source: Any = types.SimpleNamespace(splits=[Split("train", shards)], files=files, has_files=True, dataset="data")
    digits = np.frombuffer(np.random.default_rng(0).bytes(16 * count).hex().encode(), "S32")
    numbers = np.arange(count)
    columns = Columns(
        {"index": numbers, "position": numbers, "stamp": np.full((count, 4), -1, np.int64), "content": digits}
    )
    snapshot = Snapshot(msgspec.json.decode, {"train": _SeenFiles(shards, columns, {})}, "")  # type: ignore[arg-type]
    return source, plan_ranges(source), snapshot


def test_bytes_of_many_shards(tmp_path: Path) -> None:
    sizes = {}
    for count in (5_000, 20_000):
        names = [f"toy-train.tfrecord-{i:05d}-of-{count:05d}" for i in range(count)]
        source, ranges, snapshot = _plan(names)
        digest, content = encode_inputs(source, ranges, snapshot)
        assert len(content) <= 60 * count
        assert len(digest) == 64  # what plan.json has of it
        assert [file.name for file in decode_inputs(content, digest, "x")["train"].files()] == names
        with spilling(str(tmp_path)):
            sizes[count] = len(pickle.dumps((ranges, snapshot.splits)))
    assert max(sizes.values()) < 20_000 and sizes[20_000] - sizes[5_000] < 100


def test_names_that_are_not_utf8() -> None:
    names = ["a\udcff.tfrecord", "é.tfrecord"]
    source, ranges, snapshot = _plan(names)
    assert [shard.path for shard in source.splits[0].shards] == [f"data/{name}" for name in names]
    assert source.splits[0].shards[0].path == "data/a\udcff.tfrecord"
    digest, content = encode_inputs(source, ranges, snapshot)
    assert [file.name for file in decode_inputs(content, digest, "x")["train"].files()] == names


@pytest.mark.parametrize(
    "changed",
    [{"width": 0}, {"width": 10**12}, {"sizes": b"x"}, {"names": b"a"}, {"contents": b"\xffb"}, {"segments": b"1"}],
)
def test_columns_that_disagree_are_refused(changed: dict[str, Any]) -> None:
    split = {"names": b"a\0b", "contents": b"ab", "width": 1, "sizes": bytes(16), "segments": b""}

    def decode(**changes: Any) -> Any:
        content = msgspec.msgpack.encode({"train": {**split, **changes}})
        return decode_inputs(zlib.compress(content), hashlib.sha256(content).hexdigest(), "x")

    assert decode()
    with pytest.raises(UsageError, match="x is damaged"):
        decode(**changed)


def test_the_input_of_another_plan_is_refused() -> None:
    digest, _ = encode_inputs(*_plan(["a"]))
    _, content = encode_inputs(*_plan(["b"]))
    with pytest.raises(UsageError, match="it is not the input of this plan"):
        decode_inputs(content, digest, "x")


def test_other_ranges_of_the_same_files_are_said(tmp_path: Path) -> None:
    source, ranges, snapshot = _plan(["a", "b"])
    plans = []
    for some in (ranges, []):
        digest, content = encode_inputs(source, some, snapshot)
        about = {"to": "rlds", "splits": {"train": {"ranges": [0, 1, 1]}}, "inputs": digest}
        plans.append(OutputPlan.of(about, inputs=content))
    write_plan(str(tmp_path), plans[0])
    assert "the same files are cut into other ranges" in another(str(tmp_path), *plans)


def test_an_inode_of_64_bits() -> None:
    """As on network file systems; stamps are int64."""
    status: Any = types.SimpleNamespace(st_ino=(1 << 64) - 1, st_size=5, st_mtime_ns=1, st_ctime_ns=2)
    stamp = storage.make_stamp(status)
    assert np.array(stamp, np.int64).tolist() == [*stamp]


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"inputs-0{16}.bin is missing"):
        read_inputs(str(tmp_path), {"inputs": "0" * 64})
