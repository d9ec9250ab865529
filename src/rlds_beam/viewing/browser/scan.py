"""The origin of a dataset's table: a file of `rlds-beam check`, or a scan in the background."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from typing import Any

from rlds_beam import storage
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.signals.context import Context
from rlds_beam.checking.signals.table import EpisodeTable
from rlds_beam.checking.validation import validate_episode
from rlds_beam.checking.verdicts import IgnoredValues
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import DiskError, RldsBeamError, UsageError
from rlds_beam.output.scratch import ScratchDirectory
from rlds_beam.reading.base import Segment, Source
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.text import shorten
from rlds_beam.viewing.browser.index import EpisodeIndex
from rlds_beam.viewing.browser.table import TableRows, find_dataset, map_parquet

SIGNALS_FILE = "signals.parquet"
_MIN_SECONDS, _SHARE = 1.0, 10
"""A scan shows what it has found after at least so many seconds, and so many times what showing it takes."""
_PATIENCE_SECONDS, _STOP_SECONDS = 0.5, 10
_COMPARED = 50_000
"""The most episodes whose motion is compared: more need too much memory."""
_NOT_COMPARED = f"near_duplicate and split_leakage not searched: more than {_COMPARED:,} episodes; use rlds-beam check"
_NOTHING = {"error": None, "note": None}


class TableOfFile:
    """The table that `rlds-beam check` wrote."""

    def __init__(self, path: str, source: Source, index: EpisodeIndex):
        named = find_dataset(path)
        if named not in (None, source.dataset):
            raise UsageError(f"{path} is about {shorten(named, 80)}, not about {source.dataset}")
        table = map_parquet(path)
        self._index, self._rows = index, TableRows(table, index)

    @property
    def rows(self) -> TableRows:
        """The rows."""
        self._rows = self._rows.renumber(self._index)
        return self._rows

    @property
    def complete(self) -> bool:
        """Whether the table has all episodes."""
        return len(self.rows) >= len(self._index)

    def progress(self) -> dict[str, Any]:
        """The `scan` of `/api/datasets`."""
        return {"state": "table", "done": len(self._rows), "total": len(self._rows), **_NOTHING}

    def stop(self) -> None: ...


class NoTable:
    """No table: the list has only keys."""

    rows: TableRows | None = None
    complete = False

    def progress(self) -> dict[str, Any]:
        """The `scan` of `/api/datasets`."""
        return {"state": "none", "done": 0, "total": None, **_NOTHING}

    def stop(self) -> None: ...


class Scan:
    """Checks and measures all episodes in a thread; the table grows meanwhile.

    Args:
      source: the dataset, without its videos.
      index: its episodes.
      check: what to do with episodes that break a rule.
    """

    def __init__(self, source: Source, index: EpisodeIndex, check: CheckOptions):
        self._source, self._index, self._check = source, index, check
        self._rows: TableRows | None = None
        self._done, self._state, self._error = 0, "running", ""
        self._ended, self._directory = threading.Event(), ScratchDirectory()
        self._thread = threading.Thread(target=self._run, name=f"scan of {source.dataset}", daemon=True)
        self._thread.start()

    @property
    def rows(self) -> TableRows | None:
        """The rows so far; None at the beginning."""
        self._rows = None if self._rows is None else self._rows.renumber(self._index)
        return self._rows

    @property
    def complete(self) -> bool:
        """Whether the table has all episodes."""
        return self._state == "done"

    def progress(self) -> dict[str, Any]:
        """The `scan` of `/api/datasets`."""
        found = {"state": self._state, "done": self._done, "total": self._source.episodes}
        note = _NOT_COMPARED if self.complete and self._done > _COMPARED else None
        return {**found, "error": self._error or None, "note": note}

    def stop(self) -> None:
        """Ends the thread after the episode that it reads, and removes the temporary files."""
        self._ended.set()
        self._thread.join(_PATIENCE_SECONDS)
        self._directory.cleanup()  # ends a thread that makes a table
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        try:
            self._scan()
            self._state = "done"
        except OSError as error:
            disk = DiskError.of(error.errno or 0, self._directory.name.rpartition("/")[0])
            self._state, self._error = "failed", shorten(disk or error)
        except RldsBeamError as error:
            self._state, self._error = "failed", shorten(error)
        except Exception as error:
            self._state, self._error = "failed", shorten(f"{type(error).__name__}: {error}")
        if self._ended.is_set():
            self._state, self._error = "stopped", ""

    def _scan(self) -> None:
        table = EpisodeTable(Context.of(self._source.schema, fps=self._source.fps), self._directory.name)
        ignored = IgnoredValues.of(self._source.last_action)
        shown, pause = time.monotonic(), _MIN_SECONDS
        for episode in self._episodes():
            table.add(episode, validate_episode(episode, self._check, ignored))
            self._done += 1
            if self._ended.is_set():
                return
            if time.monotonic() - shown > pause:
                began = time.monotonic()
                self._show(table, False)
                shown = time.monotonic()
                pause = max(_MIN_SECONDS, _SHARE * (shown - began))
        self._show(table, True)

    def _show(self, table: EpisodeTable, complete: bool) -> None:
        self._rows = TableRows(table.store(repeats=complete and self._done <= _COMPARED), self._index, complete)

    def _episodes(self) -> Iterator[Episode]:
        reader = EpisodeReader(self._source)
        for split in self._source.splits:
            segments = [Segment(shard) for shard in split.shards]
            if split.sliced:
                files = self._source.files
                segments = [Segment(shard, *files.positions(shard.path, *part)) for shard, *part in split.taken]
            for segment in segments:
                yield from reader.read(split.name, segment)


Table = TableOfFile | Scan | NoTable


def signals_beside(path: str) -> str | None:
    """The `signals.parquet` in a dataset's directory; None if there is none."""
    if not storage.isdir(path):
        return None
    file = storage.join(path, SIGNALS_FILE)
    return file if storage.exists(file) else None


@dataclasses.dataclass(frozen=True)
class TableOptions:
    """Options for the table of a dataset.

    Attributes:
      signals: the file of `rlds-beam check`; None to look in the dataset's directory.
      scan: whether to read all episodes if there is no file. Episodes in a bucket are not scanned.
    """

    signals: str | None = None
    scan: bool = True

    def open(self, path: str, source: Source, index: EpisodeIndex, check: CheckOptions | None) -> Table:
        """The table of the dataset at a path.

        Raises:
          UsageError: the file cannot be read, or is about another dataset.
        """
        file = self.signals or signals_beside(path)
        if file is not None:
            return TableOfFile(file, source, index)
        if self.scan and check is not None and storage.scheme(path) is None:
            return Scan(source, index, check)
        return NoTable()
