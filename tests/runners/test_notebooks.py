"""Jobs in IPython and Jupyter write the same bytes, without pandas and with pandas 3; notebooks show datasets.

`make test-pythons` has an environment for each.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rlds_beam.pipelines.convert import ConvertConfig, convert
from rlds_beam.testing import make_episode, write_dataset

DEADLINE = 120.0

CODE = """
from rlds_beam.pipelines.convert import ConvertConfig, convert
from rlds_beam.pipelines.check import CheckConfig, check

assert get_ipython()
for workers in (1, 2):
    outcome = convert(ConvertConfig.create({source!r}, {output!r} + str(workers), workers=workers))
    assert outcome.report.episodes == 6, outcome.report
assert check(CheckConfig({source!r}, rules=True)).report.episodes == 6
"""


@pytest.fixture
def code(tmp_path: Path) -> str:
    """Converts a dataset with one worker and with two, and validates it."""
    source = write_dataset(tmp_path / "data", [make_episode(9, seed=i) for i in range(6)], shards=2)
    convert(ConvertConfig.create(str(source), str(tmp_path / "expected"), workers=1))
    return CODE.format(source=str(source), output=str(tmp_path / "out"))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a session: all its files, including temporary ones, are below `tmp_path`."""
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir()
    return {**os.environ, "HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp")}


EPISODE = """
from rlds_beam.testing import make_episode
make_episode(3)
"""


def assert_converted(directory: Path) -> None:
    shards = [file for file in (directory / "expected").iterdir() if ".tfrecord" in file.name]
    assert shards
    for output in ("out1", "out2"):
        assert [(directory / output / shard.name).read_bytes() for shard in shards] == [s.read_bytes() for s in shards]
    assert [file.name for file in (directory / "tmp").iterdir() if "beam" in file.name] == []


def test_a_jupyter_kernel(code: str, environment: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("ipykernel")
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(env=environment, cwd=str(tmp_path))
    try:
        reply = client.execute_interactive(code, timeout=DEADLINE)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert reply["content"]["status"] == "ok", reply["content"]
    assert_converted(tmp_path)


def test_a_notebook_displays_an_episode(environment: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("ipykernel")
    from jupyter_client.manager import start_new_kernel

    results: list[dict[str, str]] = []

    def collect(message: dict[str, Any]) -> None:
        if message["msg_type"] == "execute_result":
            results.append(message["content"]["data"])

    manager, client = start_new_kernel(env=environment, cwd=str(tmp_path))
    try:
        reply = client.execute_interactive(EPISODE, timeout=DEADLINE, output_hook=collect)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert reply["content"]["status"] == "ok", reply["content"]
    (episode,) = results
    assert "▁" in episode["text/html"] and episode["text/plain"].startswith("Episode testing/1.0.0:train:")
