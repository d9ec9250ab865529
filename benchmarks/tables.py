"""Shared by the Reverb benchmarks: servers in their own processes, and frames to insert."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from rlds_beam.jobs.options import PushOptions
from rlds_beam.jobs.push import PushInput, open_input, prepare
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.reverb.serving import EmbeddedServer, ServedTable
from rlds_beam.reverb.target import ReverbTarget
from rlds_beam.trajectories.frames import Frames, to_frames
from rlds_beam.trajectories.items import Items, Windows
from rlds_beam.trajectories.options import FrameOptions, ItemOptions

TABLE = "table"
TIMEOUT = 60.0


def options_of(dataset: str, items: ItemOptions | None = None, server: str = "", chunk_length: int = 0) -> PushOptions:
    """Options that push the dataset; `chunk_length` 0 means the default."""
    items = items or ItemOptions()
    return PushOptions(
        dataset,
        reverb=(server or "127.0.0.1:1",),
        table=(TABLE,),
        chunk_length=chunk_length or None,
        items=items.items,
        sequence_length=items.sequence_length,
        stride_length=items.stride_length,
        timeout=TIMEOUT,
    )


@contextlib.contextmanager
def servers(source: PushInput, count: int, tables: Sequence[str] = (TABLE,)) -> Iterator[list[str]]:
    """Addresses of `count` running servers, each with these tables, empty."""
    with contextlib.ExitStack() as stack:
        served = [ServedTable(name) for name in tables]
        started = [stack.enter_context(EmbeddedServer(served, source.spec)) for _ in range(count)]
        yield [server.address for server in started]


def make_thumbnails(source: PushInput, episodes: int | None = None) -> list[Frames]:
    """The frames of the first `episodes` episodes; None: of all."""
    assert source.source is not None
    reader, found = EpisodeReader(source.source), []
    for work in source.ranges:
        for segment in work.segments:
            for episode in reader.read(work.split, segment):
                found.append(to_frames(episode, FrameOptions()))
                if len(found) == episodes:
                    return found
    return found


def items_of(frames: Sequence[Frames], options: ItemOptions) -> list[Items]:
    return [Items(episode, Windows.from_frames(len(episode), options)) for episode in frames]


def target_of(options: PushOptions) -> ReverbTarget:
    """The target of a push with these options; its server is running."""
    return prepare(options, open_input(options))[0]
