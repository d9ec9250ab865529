"""The contract of sources, for authors of formats (docs/how_to/own_source.md)."""

from __future__ import annotations

from rlds_beam.encoding.base import Damage, Headers, Record, RecordFormat
from rlds_beam.reading.base import Decoder, Details, Segment, Shard, Source, Split
from rlds_beam.reading.meaning import Meaning

__all__ = [
    "Damage",
    "Decoder",
    "Details",
    "Headers",
    "Meaning",
    "Record",
    "RecordFormat",
    "Segment",
    "Shard",
    "Source",
    "Split",
]
