"""Find the image sizes that the schema does not give: those of the first images, which all others must have."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence

from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.encoding.example.layout import IMAGES
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import BadEpisode
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages
from rlds_beam.images.headers import UndecodableImageError, read_image_header
from rlds_beam.reading.base import Source
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader

Sizes = dict[str, tuple[int, int]]
"""Height and width by path."""

_EPISODES = 8
"""Maximum number of episodes to read, to find one with images."""


def image_sizes(source: Source, connecting: ConnectorRunner, schema: Schema, entries: Sequence[str]) -> Sizes:
    """The sizes of images whose size is not in the schema, if the first episodes have such images.

    Args:
      source: the dataset to read.
      connecting: runs the connectors on its episodes.
      schema: the schema after the connectors.
      entries: the entries of `--map`; fields that they leave out are ignored.
    """
    wanted = {
        path
        for path, field in schema.steps.items()
        if field.encoding in IMAGES and len(field.shape) == 3 and None in field.shape[:2] and f"-{path}" not in entries
    }
    sizes: Sizes = {}
    for episode in _episodes(source, connecting) if wanted else ():
        for path in wanted - sizes.keys():
            column = episode.steps.get(path)
            if isinstance(column, EncodedImages) and (size := _size_of(column)):
                sizes[path] = size
        if wanted <= sizes.keys():
            break
    return sizes


def _size_of(images: EncodedImages) -> tuple[int, int] | None:
    """The size of the first valid image."""
    for image in images:
        with contextlib.suppress(UndecodableImageError):
            if image != ZERO_IMAGE:
                header = read_image_header(image)
                return header.height, header.width
    return None


def _episodes(source: Source, connecting: ConnectorRunner) -> Iterator[Episode]:
    """The first valid episodes, as returned by the connectors."""
    reader, connecting = EpisodeReader(source), connecting.as_probed() if connecting.connectors else connecting
    segments = ((work.split, segment) for work in plan_ranges(source) for segment in work.segments)
    read = (episode for split, segment in segments for episode in reader.read(split, segment))
    for episode in itertools.islice((e for e in read if not e.faults), _EPISODES):
        with contextlib.suppress(BadEpisode):
            yield from connecting.connect((episode,)).episodes
