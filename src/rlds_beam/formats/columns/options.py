"""Options of the columns output."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

from rlds_beam.options import Options, option

ColumnsFormat = Literal["tfrecord", "array_record", "parquet"]
FORMATS: tuple[ColumnsFormat, ...] = get_args(ColumnsFormat)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnsOptions(Options):
    """Columns output."""

    format: ColumnsFormat = option("tfrecord", "file format")
