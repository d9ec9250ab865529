"""Finds encoded images in the files of a dataset, which hold them as they are.

Any copy of an image's bytes is as good as another: what is read later is compared with its checksum.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence

from rlds_beam import storage
from rlds_beam.episodes.episode import Episode
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import Shard, Source, Span

Place = tuple[str, int]
"""A file, and an offset in it."""

_LENGTH = 4
"""Bytes before each value of a Parquet page."""


def stored_images(source: Source, shard: Shard, episode: Episode) -> dict[bytes, Place]:
    """The place of each image of an episode, as it was read, that is in a local file."""
    found: dict[bytes, Place] = {}
    for path, spans in source.image_spans(shard, episode.key.position).items():
        column = episode.steps.get(path)
        if isinstance(column, EncodedImages):
            found |= find_images(column, spans)
    return found


def find_images(images: Iterable[bytes], spans: Sequence[Span]) -> dict[bytes, Place]:
    """The place of each image in these spans, which hold them in order. Ends with the first that is not there."""
    found: dict[bytes, Place] = {}
    wanted = iter(images)
    image = next(wanted, None)
    for file, start, stop in spans:
        if image is None or storage.scheme(file) is not None:
            break
        with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            at = start
            while image is not None:
                if image and image not in found:
                    place = at + _LENGTH  # the next value, or a new page
                    if content[place : place + len(image)] != image:
                        place = content.find(image, at, stop)
                    if place < 0 or place + len(image) > stop:
                        break
                    found[image], at = (file, place), place + len(image)
                image = next(wanted, None)
    return found
