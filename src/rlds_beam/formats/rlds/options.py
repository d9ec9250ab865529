"""How RLDS is written: the options."""

from __future__ import annotations

import dataclasses

from rlds_beam.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class RldsOptions(Options):
    """How RLDS is written (--to=rlds)."""

    array_record_beside: bool = option(
        False, "write the records as ArrayRecord, too, beside the TFRecords: TFDS reads the directory as either"
    )
