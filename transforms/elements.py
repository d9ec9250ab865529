"""Elements: their coders, those of `finish_bundle`, and their counts as metrics."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any

import apache_beam as beam
from apache_beam.coders import Coder, registry
from apache_beam.io.filesystems import FileSystems
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MIN_TIMESTAMP
from apache_beam.utils.windowed_value import WindowedValue

from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.reading.base import Segment, Shard, WorkRange
from rlds_beam.transforms.episode_coder import EpisodeCoder


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


registry.register_coder(Episode, EpisodeCoder)
registry.register_coder(EpisodeKey, EpisodeKeyCoder)
registry.register_coder(WorkRange, WorkRangeCoder)
