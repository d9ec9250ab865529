"""Decides which images a job need not read."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rlds_beam.checking.options import CheckOptions
from rlds_beam.reading.base import Source

_IMAGES = ("png", "jpeg")
_WHY = "not needed, so not read; --check_unused checks it"


def without_images(
    source: Source, options: CheckOptions, connectors: Iterable[object], wanted: Collection[str] = ()
) -> Source:
    """The dataset without its images, for a job that does not need them; the dataset itself if something does.

    Args:
      source: the dataset.
      options: the rules; some of them, if asked for, need images.
      connectors: the connectors; only classes that set `reads_images` to False themselves need no images (a subclass
        may do more than its base).
      wanted: the fields to keep.
    """
    if options.needs_images or any(vars(type(one)).get("reads_images", True) for one in connectors):
        return source
    images = [path for path, field in source.schema.steps.items() if field.encoding in _IMAGES and path not in wanted]
    return source.without(images, _WHY) if images else source
