"""The contract of sources, for authors of formats (docs/how_to/own_source.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_beam import lazy

if TYPE_CHECKING:
    from rlds_beam.encoding.base import Damage as Damage
    from rlds_beam.encoding.base import Headers as Headers
    from rlds_beam.encoding.base import Record as Record
    from rlds_beam.encoding.base import RecordFormat as RecordFormat
    from rlds_beam.reading.base import Decoder as Decoder
    from rlds_beam.reading.base import Segment as Segment
    from rlds_beam.reading.base import Shard as Shard
    from rlds_beam.reading.base import Source as Source
    from rlds_beam.reading.base import Split as Split

__getattr__, __dir__, __all__ = lazy.exports(__name__)
