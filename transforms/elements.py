"""Elements: their types, their coders, and those of `finish_bundle`."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from apache_beam.coders import Coder, registry
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MIN_TIMESTAMP
from apache_beam.utils.windowed_value import WindowedValue

from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.errors import UsageError

Element = TypeVar("Element")


def check_element(transform: str, element: object, kind: type[Element]) -> Element:
    """Returns an element; raises UsageError if it has another type."""
    if not isinstance(element, kind):
        raise UsageError(f"{transform}: an element is a {type(element).__name__}: expected {kind.__name__}")
    return element


def in_global_window(value: Any) -> WindowedValue:
    """A value that `finish_bundle` yields."""
    return WindowedValue(value, MIN_TIMESTAMP, [GlobalWindow()])


class EpisodeKeyCoder(Coder):
    """Encodes keys as JSON: the same bytes in every process, so that keys can be grouped."""

    def encode(self, value: EpisodeKey) -> bytes:
        return json.dumps([value.dataset, value.split, value.shard, value.position, value.part]).encode()

    def decode(self, encoded: bytes) -> EpisodeKey:
        return EpisodeKey(*json.loads(encoded))

    def is_deterministic(self) -> bool:
        return True


registry.register_coder(EpisodeKey, EpisodeKeyCoder)
