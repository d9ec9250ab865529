"""How RLDS is written: the options."""

from __future__ import annotations

import dataclasses
from typing import Literal

from rlds_beam.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class RldsOptions(Options):
    """How RLDS is written."""

    format: Literal["tfrecord", "array_record"] = option("tfrecord", "format of the files")
    array_record_beside: bool = option(
        False, "also write the records as ArrayRecord, next to the TFRecords: TFDS reads the directory as either"
    )
