"""Shared code of the fault tests of `rlds-beam push`: a dataset, its expected items, and the command."""

from __future__ import annotations

import collections
import json
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from processes import DEADLINE
from servers import drain

from rlds_beam.cli.main import main
from rlds_beam.reverb.connection import Connection, TableInfo
from rlds_beam.testing import make_episode, write_dataset
from rlds_beam.trajectories.frames import to_frames
from rlds_beam.trajectories.items import ItemMaker
from rlds_beam.trajectories.options import FrameOptions, ItemOptions

STEPS, EPISODES, SHARDS = 61, 60, 3
PAIRS = EPISODES * (STEPS - 1)
STREAM_BYTES = 2_400_000
"""Any complete push sends more bytes; each half contains at least one complete message."""


def episodes() -> list[Any]:
    return [make_episode(STEPS, seed=i, observation=128) for i in range(EPISODES)]


def dataset(directory: Path) -> Path:
    return write_dataset(directory, episodes(), shards=SHARDS)


def due(options: ItemOptions | None = None) -> collections.Counter[bytes]:
    """The expected items of the dataset, each as bytes in the order of a table's columns."""
    options = options or ItemOptions()
    shards = np.array_split(np.arange(EPISODES), SHARDS)
    every = episodes()
    found: collections.Counter[bytes] = collections.Counter()
    for shard in shards:
        maker = ItemMaker(options)
        made = [maker.push(to_frames(every[i], FrameOptions())) for i in shard]
        for items in [*made, *(last for last in [maker.finish()] if last is not None)]:
            columns = [np.asarray(items.gather(path)) for path in items.frames.columns]
            found.update(b"".join(column[k].tobytes() for column in columns) for k in range(len(items)))
    return found


def held(server: str, table: str = "t") -> collections.Counter[bytes]:
    """Removes and returns the items of a table that returns each once."""
    return collections.Counter(b"".join(column.tobytes() for column in item.data) for item in drain(server, table))


def look(server: str, table: str = "t") -> TableInfo:
    with Connection(server) as connection:
        return connection.info(DEADLINE).tables[table]


def size(server: str, table: str = "t") -> int:
    return look(server, table).current_size


def wait_for_items(server: str, table: str = "t") -> None:
    """Waits until the table has items."""
    deadline = time.monotonic() + DEADLINE
    while look(server, table).limiter.inserts == 0:
        assert time.monotonic() < deadline, "no items arrived"


def one_table(max_size: int = 1_000_000, name: str = "t") -> list[Any]:
    """A table that returns each item once."""
    import reverb

    fifo = reverb.selectors.Fifo
    return [reverb.Table(name, fifo(), fifo(), max_size, reverb.rate_limiters.MinSize(1), max_times_sampled=1)]


def arguments(source: Path, servers: Sequence[str], *flags: str, table: str = "t") -> list[str]:
    return ["push", str(source), f"--reverb={','.join(servers)}", f"--table={table}", "--json", *flags]


RUN_AGAIN = re.compile("run (the same command )?again", re.IGNORECASE)


WAITING = re.compile(r"rlds-beam: \S+: no answer yet; waiting up to \S+ s for a Reverb server \(--timeout\)$")
"""The line printed before waiting for a server."""


class Ran(NamedTuple):
    """The result of a command: exit code, report, and error."""

    code: int
    report: dict[str, Any]
    said: str

    def assert_refused(self, *mentioned: str) -> None:
        """Asserts exit code 2 and one line that names the problem."""
        self._assert_failed(2)
        self._assert_says(*mentioned)

    def assert_not_verified(self, *mentioned: str) -> None:
        """Asserts exit code 4 and one line that says what is wrong and what to do."""
        self._assert_failed(4)
        self._assert_says(*mentioned)
        assert RUN_AGAIN.search(self.said), self.said

    def assert_clean(self) -> dict[str, Any]:
        """Asserts exit code 0; returns the check of the only table."""
        assert (self.code, self.said) == (0, "")
        (table,) = self.report["tables"]
        assert table["predicted"] == table["acknowledged"] == PAIRS
        assert self.report["items_written"] == PAIRS
        return table

    def _assert_failed(self, code: int) -> None:
        """Asserts this exit code, no report, and the error as JSON."""
        assert (self.code, set(self.report)) == (code, {"version", "error"}), self.said
        assert self.report["error"]["exit_code"] == code
        assert self.report["error"]["message"] in self.said

    def _assert_says(self, *mentioned: str) -> None:
        said = [line for line in self.said.splitlines() if not WAITING.match(line)]
        assert len(said) == 1 and said[0].startswith("rlds-beam: "), self.said
        for text in mentioned:
            assert text in said[0]


class Push:
    """Runs the command in this process, with a deadline."""

    def __init__(self, data: Path, capsys: Any):
        self._data, self._capsys = data, capsys

    def __call__(self, server: str, *flags: str, table: str = "t") -> Ran:
        codes: list[int] = []
        command = arguments(self._data, [server], *flags, table=table)
        thread = threading.Thread(target=lambda: codes.append(main(command)), daemon=True)
        thread.start()
        thread.join(DEADLINE)
        assert codes, "the command hangs"
        captured = self._capsys.readouterr()
        return Ran(codes[0], json.loads(captured.out or "{}"), captured.err)
