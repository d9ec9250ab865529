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
_NEAR = 1 << 20
"""How far after the image before it an image is searched, in bytes, besides those of images that were not found."""
_MOST_MISSED = 8
"""Images in a row that are not found before the next span is searched."""


def stored_images(source: Source, shard: Shard, episode: Episode) -> dict[bytes, Place]:
    """The place of each image of an episode, as it was read, that is in a local file."""
    found: dict[bytes, Place] = {}
    for path, spans in source.image_spans(shard, episode.key.position).items():
        column = episode.steps.get(path)
        if isinstance(column, EncodedImages):
            found |= find_images(column, spans)
    return found


def find_images(images: Iterable[bytes], spans: Sequence[Span]) -> dict[bytes, Place]:
    """The place of each image that is in these spans, which hold them in order.

    Of images that do not get smaller, Snappy stores most as they are, but changes others, and those of 64 KB and more.
    """
    found: dict[bytes, Place] = {}
    wanted, i = list(images), 0
    for file, start, stop in spans:
        if i == len(wanted) or storage.scheme(file) is not None:
            break
        with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            at, skipped, near = start, 0, stop
            for j in range(i, len(wanted)):
                image = wanted[j]
                if not image or image in found:
                    i += i == j  # those before it that were not found may be in the next span
                    continue
                place = at + _LENGTH  # the next value, or a new page
                if content[place : place + len(image)] != image:
                    place = content.find(image, at, min(stop, near))
                if place >= 0 and place + len(image) <= stop:
                    found[image], at, skipped, i = (file, place), place + len(image), 0, j + 1
                elif j - i >= _MOST_MISSED:
                    break
                else:
                    skipped += len(image)
                near = at + skipped + _NEAR
    return found
