"""Elements: their coders, those of `finish_bundle`, and their counts as metrics."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import pickle
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.coders import Coder, registry
from apache_beam.io.filesystems import FileSystems
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MIN_TIMESTAMP
from apache_beam.utils.windowed_value import WindowedValue

from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.reading.base import Segment, Shard, WorkRange


def in_global_window(value: Any) -> WindowedValue:
    """A value that `finish_bundle` yields."""
    return WindowedValue(value, MIN_TIMESTAMP, [GlobalWindow()])


FANOUT = 16
"""The workers that merge parts of what is combined, before one merges the rest."""


def combine_windows(combine: beam.CombineFn, elements: beam.PCollection[Any]) -> Any:
    """`CombineGlobally`, of which several workers merge parts first.

    Of windowed elements only for windows that have any, since Beam cannot list empty ones.
    """
    combined = beam.CombineGlobally(combine).with_fanout(FANOUT)
    return combined if elements.windowing.is_default() else combined.without_defaults()


def refuse_windows(writer: str, elements: beam.PCollection[Any]) -> None:
    """Raises UsageError for windowed elements: what writes one dataset cannot finish it window by window."""
    if not elements.windowing.is_default():
        raise UsageError(
            f"{writer} writes one dataset, so it needs the global window: put "
            "beam.WindowInto(beam.window.GlobalWindows()) before it"
        )


def report_source(path: str) -> None:
    """Adds a file that is read to Beam's lineage metrics; not if Beam does not know its file system."""
    with contextlib.suppress(ValueError):
        FileSystems.report_source_lineage(path)


def report_sink(directory: str) -> None:
    """Adds a directory that is written to Beam's lineage metrics; not if Beam does not know its file system."""
    with contextlib.suppress(ValueError):
        FileSystems.report_sink_lineage(directory)


class EpisodeKeyCoder(Coder):
    """Encodes keys as JSON: the same bytes in every process, so that keys can be grouped."""

    def encode(self, value: EpisodeKey) -> bytes:
        return json.dumps([value.dataset, value.split, value.shard, value.position, value.part]).encode()

    def decode(self, encoded: bytes) -> EpisodeKey:
        return EpisodeKey(*json.loads(encoded))

    def is_deterministic(self) -> bool:
        return True


class WorkRangeCoder(Coder):
    """Encodes work ranges as JSON: the same bytes in every process."""

    def encode(self, value: WorkRange) -> bytes:
        return json.dumps(dataclasses.astuple(value)).encode()

    def decode(self, encoded: bytes) -> WorkRange:
        split, index, of, segments = json.loads(encoded)
        segments = tuple(Segment(Shard(*shard), start, stop) for shard, start, stop in segments)
        return WorkRange(split, index, of, segments)

    def is_deterministic(self) -> bool:
        return True


_SMALL = 64
"""Shorter values are sent as they are: their place takes about as many bytes, and the search takes time."""
_MISSES = 4
"""Values that are looked for in vain in a record, before all others are sent as they are."""


class EpisodeCoder(Coder):
    """Encodes episodes; equal values have equal bytes, except for objects that pickle by chance."""

    def encode(self, value: Episode) -> bytes:
        file = io.BytesIO()
        _Pickler(file, value.payload).dump(value)
        return pickle.dumps((value.payload, file.getvalue()), protocol=5)

    def decode(self, encoded: bytes) -> Episode:
        payload, content = pickle.loads(encoded)
        episode: Episode = _Unpickler(content, payload).load()
        return episode

    def is_deterministic(self) -> bool:
        return False  # so no episode is a key: an edited one may hold any object


class _Pickler(pickle.Pickler):
    """Pickles what is in the record as (dtype, shape, offset) for an array, and (offset, size) for bytes."""

    def __init__(self, file: io.BytesIO, payload: bytes):
        super().__init__(file, protocol=5)
        self.fast = True  # else the bytes depend on which of two equal texts is one object
        self._payload, self._end, self._misses = payload, 0, 0

    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        if value is self._payload:
            return 0, len(value)
        if type(value) is bytes:
            offset = self._find(value)
            return None if offset is None else (offset, len(value))
        if type(value) is np.ndarray and value.dtype.kind in "biuf" and value.nbytes <= len(self._payload):
            offset = self._find(value.tobytes())
            return None if offset is None else (value.dtype.str, value.shape, offset)
        return None

    def _find(self, data: bytes) -> int | None:
        """The offset of these bytes in the record, whose order is mostly that of the values."""
        if len(data) < _SMALL or self._misses == _MISSES:
            return None
        offset = self._payload.find(data, self._end)
        if offset < 0:
            offset = self._payload.find(data)
        if offset < 0:
            self._misses += 1
            return None
        self._end = offset + len(data)
        return offset


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, payload: bytes):
        super().__init__(io.BytesIO(content))
        self._payload = payload

    def persistent_load(self, place: tuple[Any, ...]) -> Any:
        if len(place) == 2:
            offset, size = place
            return self._payload[offset : offset + size]  # the record itself, if it is all of it
        dtype, shape, offset = place
        return np.ndarray(shape, dtype, self._payload, offset).copy()  # numbers may begin at any byte of the record


registry.register_coder(Episode, EpisodeCoder)
registry.register_coder(EpisodeKey, EpisodeKeyCoder)
registry.register_coder(WorkRange, WorkRangeCoder)
