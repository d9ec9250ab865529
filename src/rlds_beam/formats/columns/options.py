"""How columns are written: the options."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

from rlds_beam.options import Options, option

ColumnsFormat = Literal["tfrecord", "array_record", "parquet"]
FORMATS: tuple[ColumnsFormat, ...] = get_args(ColumnsFormat)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnsOptions(Options):
    """How records are written."""

    format: ColumnsFormat = option("tfrecord", "format of the files")
