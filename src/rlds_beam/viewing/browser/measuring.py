"""The table of a dataset, and the job in the background that measures one: the same as that of a report."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from rlds_beam import storage
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.processing.job import Stage, Totals, process_here, run_stages
from rlds_beam.processing.report import Report
from rlds_beam.text import shorten
from rlds_beam.viewing.browser.index import EpisodeIndex
from rlds_beam.viewing.browser.table import TableRows, dataset_of, read_table
from rlds_beam.viewing.report.dataset import Gathered
from rlds_beam.viewing.report.report_file import Input

SIGNALS_FILE = "signals.parquet"
_STOP_SECONDS = 10


class StoppedError(Exception):
    """The browser ends."""


class DatasetTable:
    """The table of a dataset, from a file or a job; without either, the list has only keys.

    Args:
      shown: the dataset, without its videos.
      index: its episodes.

    Attributes:
      settings: how its summary is shown.
      rows: the rows; None until they are known.
      gathered: what the job found; None until it ends.
    """

    def __init__(self, shown: Input, index: EpisodeIndex):
        self._shown, self._index, self.settings = shown, index, shown.settings
        self.rows: TableRows | None = None
        self.gathered: Gathered | None = None
        self._state, self._done, self._error = "none", 0, ""
        self._ended, self._thread = threading.Event(), threading.Thread(target=self._run, daemon=True)

    def open(self, file: str) -> None:
        """Reads a file of `rlds-beam check`. Raises UsageError if it cannot be read, or is about another dataset."""
        table, source = read_table(file), self._shown.source
        if (named := dataset_of(table)) not in (None, source.dataset):
            raise UsageError(f"{file} is about {shorten(named, 80)}, not about {source.dataset}")
        self.rows, self._state, self._done = TableRows(table, self._index), "table", len(table)

    def start(self) -> None:
        """Starts the job."""
        self._state = "running"
        self._thread.start()

    @property
    def complete(self) -> bool:
        """Whether the table has all episodes."""
        return self.rows is not None and len(self.rows) >= len(self._index)

    def progress(self) -> dict[str, Any]:
        """The `scan` of `/api/datasets`."""
        total = self._done if self._state == "table" else self._shown.source.episodes
        return {"state": self._state, "done": self._done, "total": total, "error": self._error or None}

    def stop(self) -> None:
        """Ends the job after the range that it reads."""
        self._ended.set()
        if self._state != "none" and self._thread.ident is not None:
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        try:
            connecting = ConnectorRunner.for_reading(self._shown.source)
            totals = run_stages(self._shown.stages(connecting, "measured"), self._process)
            gathered: Gathered = totals["measured"]
            self.rows, self.gathered = TableRows(gathered.table, self._index), gathered
            self._state = "done"
        except StoppedError:
            self._state = "stopped"
        except (OSError, RldsBeamError) as error:
            self._state, self._error = "failed", shorten(error)
        except Exception as error:
            self._state, self._error = "failed", shorten(f"{type(error).__name__}: {error}")

    def _process(self, stage: Stage, totals: Totals) -> Iterator[Any]:
        for partial in process_here(stage, totals):
            if self._ended.is_set():
                raise StoppedError
            report = getattr(partial, "report", Report())
            self._done += report.records
            yield partial


def signals_beside(path: str) -> str | None:
    """The `signals.parquet` in a dataset's directory; None if there is none."""
    if not storage.isdir(path):
        return None
    file = storage.join(path, SIGNALS_FILE)
    return file if storage.exists(file) else None
