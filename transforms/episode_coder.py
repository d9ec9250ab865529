"""The coder of episodes: values whose bytes are in the record are sent as their place in it.

So an episode as it was read takes little more than its record, where plain pickle takes up to twice as much.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
from apache_beam.coders import Coder

from rlds_beam.episodes.episode import Episode

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
