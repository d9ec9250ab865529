"""Options of the RLDS output."""

from __future__ import annotations

import dataclasses
from typing import Literal

from rlds_beam.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class RldsOptions(Options):
    """RLDS output."""

    format: Literal["tfrecord", "array_record"] = option("tfrecord", "file format")
    array_record_beside: bool = option(
        False, "also write ArrayRecord files next to the TFRecords; TFDS can read either"
    )
