"""Reads the table of all episodes for a report: instructions, metadata, and signals by column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam.text import printable
from rlds_beam.viewing.report.sections import TextCount, TextTable

if TYPE_CHECKING:
    import pyarrow as pa

MAX_TEXTS = 30
"""Texts of a field that are shown."""

MAX_FIELDS = 20
"""Metadata fields that are shown."""

_MAX_CHARACTERS = 300


def texts_of(table: pa.Table) -> tuple[TextTable, ...]:
    """The instructions and the metadata of accepted episodes, by how many episodes have them.

    A metadata field in which each episode has its own value, such as an id, is left out.
    """
    tables = []
    for field, column in text_columns(table).items():
        made = _table_of(field, column)
        unique = made.distinct == len(column) > 1
        if made.distinct and not (unique and field != "instruction"):
            tables.append(made)
    tables.sort(key=lambda one: (one.field != "instruction", one.field))
    return tuple(tables[: MAX_FIELDS + 1])


def text_columns(table: pa.Table) -> dict[str, Any]:
    """The instructions and the metadata of accepted episodes: field -> column."""
    import pyarrow.compute as pc

    accepted = pc.is_null(table["rule"])
    names = [name for name in table.column_names if name == "instruction" or name.startswith("metadata/")]
    return {name.removeprefix("metadata/"): table[name].filter(accepted) for name in names}


def counts_of(column: Any) -> dict[str, int]:
    """How many rows have each text; empty texts are missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = column if pa.types.is_string(column.type) else column.cast(pa.string())
    counted = pc.value_counts(texts.combine_chunks().drop_null())
    pairs = zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True)
    return {text: episodes for text, episodes in pairs if text}


def numbers_of(column: Any) -> np.ndarray[Any, Any]:
    """A numeric column as float64; NaN for null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return np.asarray(pc.fill_null(column.cast(pa.float64()), float("nan")).to_numpy(zero_copy_only=False))


def _table_of(field: str, column: Any) -> TextTable:
    pairs = sorted(counts_of(column).items(), key=lambda pair: (-pair[1], pair[0]))
    shown = tuple(TextCount(printable(text, _MAX_CHARACTERS), episodes) for text, episodes in pairs[:MAX_TEXTS])
    known = sum(episodes for _, episodes in pairs)
    return TextTable(
        field, shown, len(pairs), others=known - sum(row.episodes for row in shown), missing=len(column) - known
    )
