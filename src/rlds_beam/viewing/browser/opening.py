"""Opens the paths of `rlds-beam browse` in their formats."""

from __future__ import annotations

import dataclasses
from typing import Any

from rlds_beam import storage
from rlds_beam.checking.options import CheckOptions
from rlds_beam.encoding.tfds.dataset_info import FEATURES
from rlds_beam.errors import UsageError
from rlds_beam.formats.lerobot import layout
from rlds_beam.formats.registry import COLUMNS, LEROBOT, RLDS, TRAJECTORIES
from rlds_beam.formats.sources import open_source
from rlds_beam.output.directory import holding
from rlds_beam.reading.base import Source
from rlds_beam.viewing.browser.comparing import compare
from rlds_beam.viewing.browser.dataset import BrowsedDataset
from rlds_beam.viewing.browser.rows import RowsSource, opens_as_rows
from rlds_beam.viewing.browser.scanning import TableOptions
from rlds_beam.viewing.browser.table import dataset_of

_BY_FILE = {FEATURES: RLDS, layout.INFO: LEROBOT, "data/metadata.json": "minari", "metadata.json": "minari"}
_BY_ENDING = {".hdf5": "d4rl", ".h5": "d3rlpy", ".riegeli": "envlogger", ".spec": TRAJECTORIES}


def format_of(path: str) -> str:
    """The format of a dataset, from its files; `rlds` if these are unknown."""
    if not storage.isdir(path):
        names = [path, *([f"{path}.spec"] if storage.exists(f"{path}.spec") else [])]
    else:
        held = holding(path)
        if held is not None:
            return held.to
        for file, name in _BY_FILE.items():
            if storage.exists(storage.join(path, *file.split("/"))):
                return name
        names = storage.listdir(path)
    for ending, name in _BY_ENDING.items():
        if any(one.endswith(ending) for one in names):
            return name
    return RLDS


def open_datasets(config: Any) -> list[BrowsedDataset]:
    """Opens the datasets of a `BrowseConfig`, and their tables.

    Raises:
      UsageError: one of them cannot be opened.
    """
    check = dataclasses.replace(CheckOptions.of(config), fail=())
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
    name = format_of(path) if config.from_ == RLDS else config.from_
    try:
        return name, open_source(
            path, config.split, config.features, name, config.from_options if name == config.from_ else None
        )
    except UsageError:
        if opens_as_rows(path):
            return name if name != RLDS else COLUMNS, RowsSource.open(path, split=config.split)
        raise
