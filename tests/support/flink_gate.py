"""A policy info function and a connector that make the workers of a conversion wait at a known point.

While the directory `FLINK_GATE` holds a file `closed`, which names an output, each worker waits at its next episode
once the first shard of that output is committed. So a fault always hits a job with work done and work left.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from rlds_beam import storage
from rlds_beam.connectors.base import Batch


def hold(current: dict[str, Any], following: dict[str, Any]) -> dict[str, Any]:
    """Waits; the values do not depend on it."""
    _wait()
    return {"policy_reward": current["reward"]}


def hold_episode(batch: Batch) -> Batch:
    """Waits and changes nothing."""
    _wait()
    return batch


CONNECTORS = [hold_episode]


def _wait() -> None:
    gate = Path(os.environ.get("FLINK_GATE", "/nowhere"))
    while _is_closed(gate / "closed"):
        (gate / f"waiting-{os.getpid()}").touch()
        time.sleep(0.01)


def _is_closed(closed: Path) -> bool:
    try:
        output = closed.read_text()
    except FileNotFoundError:
        return False
    return bool(storage.glob(f"{output}/_commits/*.json"))


class Gate:
    """The test's side of the gate."""

    def __init__(self, directory: Path):
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.open()

    def close(self, output: Path | str) -> None:
        """Makes workers wait once the first shard of `output` is committed."""
        for left in self.directory.glob("waiting-*"):
            left.unlink()
        (self.directory / "closed.new").write_text(str(output))
        (self.directory / "closed.new").rename(self.directory / "closed")

    def open(self) -> None:
        (self.directory / "closed").unlink(missing_ok=True)

    def waiting(self) -> set[int]:
        """The ids of the waiting processes."""
        return {int(path.name.removeprefix("waiting-")) for path in self.directory.glob("waiting-*")}
