"""Opens the paths of `rlds-beam browse` in their formats."""

from __future__ import annotations

import dataclasses
from typing import Any

from rlds_beam.checking.options import CheckOptions
from rlds_beam.connectors.cleaning.presets import with_preset
from rlds_beam.errors import UsageError
from rlds_beam.formats.sources import open_input
from rlds_beam.reading.base import Source
from rlds_beam.viewing.browser.comparing import compare
from rlds_beam.viewing.browser.dataset import BrowsedDataset
from rlds_beam.viewing.browser.rows import RowsSource, opens_as_rows
from rlds_beam.viewing.browser.scanning import TableOptions
from rlds_beam.viewing.browser.table import dataset_of


def open_datasets(config: Any) -> list[BrowsedDataset]:
    """Opens the datasets of a `BrowseConfig`, and their tables.

    Raises:
      UsageError: one of them cannot be opened.
    """
    check = dataclasses.replace(CheckOptions.of(with_preset(config)), fail=())
    opened: list[BrowsedDataset] = []
    measured = None if config.signals is None else dataset_of(config.signals)
    for number, path in enumerate(config.path):
        name, source = _open(path, config)
        signals = config.signals if len(config.path) == 1 or source.dataset == measured else None
        table = TableOptions(signals, not config.no_scan)
        rows = isinstance(source, RowsSource)
        opened.append(
            BrowsedDataset(str(number), path, name, source, None if rows else check, table, None if rows else config)
        )
    compare(opened)
    for dataset in opened:
        _ = dataset.table  # raises UsageError if its file cannot be read
    return opened


def _open(path: str, config: Any) -> tuple[str, Source]:
    """Opens a dataset; items and columns of `convert` as rows."""
    one = config.for_input(path).resolved()
    try:
        return one.source_format, open_input(one)
    except UsageError:
        if opens_as_rows(path):
            return one.source_format, RowsSource.open(path, split=config.split)
        raise
