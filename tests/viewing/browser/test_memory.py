"""A million episodes: the list is sorted, filtered, and searched in less than 300 MB."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browsing import httpx
from processes import DEADLINE, running

from rlds_beam.checking.signals.base import SIGNALS
from rlds_beam.testing import make_episode, write_dataset

SHARDS, EACH = 100, 10_000
TOTAL = SHARDS * EACH
MAX_MB = 300


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose metadata promise a million episodes, with the table of `rlds-beam check`."""
    directory = write_dataset(tmp_path_factory.mktemp("rlds"), [make_episode(3, metadata={"trial": 1})])
    info = json.loads((directory / "dataset_info.json").read_text())
    info["splits"][0]["shardLengths"] = [str(EACH)] * SHARDS
    (directory / "dataset_info.json").write_text(json.dumps(info))
    for file in directory.glob("*.tfrecord-*"):
        file.unlink()
    for i in range(SHARDS):
        (directory / f"testing-train.tfrecord-{i:05d}-of-{SHARDS:05d}").write_bytes(b"\0")
    rng = np.random.default_rng(0)
    shards, positions = np.divmod(np.arange(TOTAL), EACH)
    texts = [f"put object {i} into box {i % 97}" for i in range(20_000)]
    columns = {
        "key": [f"testing/1.0.0:train:{s:05d}@{p}" for s, p in zip(shards.tolist(), positions.tolist(), strict=True)],
        "split": pa.array(["train"]).take(pa.array(np.zeros(TOTAL, np.int64))),
        "shard": shards,
        "position": positions,
        "part": np.zeros(TOTAL, np.int64),
        "steps": rng.integers(1, 500, TOTAL),
        "return": rng.normal(size=TOTAL),
        "instruction": pa.array(texts).take(pa.array(rng.integers(0, len(texts), TOTAL))),
        "rule": pa.array(["non_finite", None, None, None]).take(pa.array(rng.integers(0, 4, TOTAL))),
        "metadata/trial": rng.integers(0, 1000, TOTAL),
        **{name: rng.random(TOTAL, np.float32).astype(np.float64) for name in [*SIGNALS][:12]},
    }
    pq.write_table(pa.table(columns), directory / "signals.parquet", row_group_size=1 << 16)
    return directory


def memory(pid: int) -> int:
    """The resident memory of a process in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert match is not None
    return int(match[1]) // 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_a_million_episodes(dataset: Path) -> None:
    signal = next(iter(SIGNALS))
    with running(["browse", dataset]) as process, httpx.Client(timeout=DEADLINE) as client:
        assert process.stdout is not None
        url = next(match[0] for line in process.stdout if (match := re.search(r"http://\S+", line)))
        client.get(url)
        base = url.partition("?")[0]
        assert client.get(f"{base}api/datasets").json()[0]["episodes"] == TOTAL
        assert memory(process.pid) < MAX_MB
        for query in (
            {},
            {"offset": 987_654},
            {"sort": "steps", "desc": "1"},
            {"sort": "instruction", "offset": 500_000},
            {"sort": signal},
            {"filter": f"{signal} > 0.99"},
            {"filter": "metadata/trial == 7", "sort": "return"},
            {"text": "box 42"},
            {"rule": "rejected", "sort": "steps"},
            {"filter": ["steps < 9", "return > 0"]},
        ):
            answer = client.get(f"{base}api/episodes", params={"limit": 200, **query})
            assert answer.status_code == 200 and len(answer.json()["rows"]) == 200
            assert memory(process.pid) < MAX_MB
