"""Encode episodes as RLDS records. Unedited fields are copied from the input record byte for byte."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from rlds_beam.encoding.example.reader import entry_spans
from rlds_beam.encoding.tfds.rlds_dataset import as_column, encode_feature, join_entries, same_storage
from rlds_beam.encoding.wire import encode_delimited
from rlds_beam.episodes.columns import all_below
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import BadEpisode, RldsBeamError, Violation
from rlds_beam.images.codecs import encode_zeros
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages
from rlds_beam.images.headers import read_image_header


class _Leaf(NamedTuple):
    """A field of a record.

    Attributes:
      name: the key in the tf.Example.
      field: how it is stored.
      in_steps: whether it is a field of the steps, or of the episode.
      stored_alike: whether input records store it the same way.
    """

    name: str
    field: Field
    in_steps: bool
    stored_alike: bool

    def value_of(self, episode: Episode) -> Any:
        """The step column, or the episode's value."""
        return (episode.steps if self.in_steps else episode.metadata).get(self.field.path)


class RecordEncoder:
    """Encodes an episode as a serialized tf.Example, as TFDS stores RLDS.

    Args:
      schema: the schema of the episodes.
      stored: how input records store the fields; None if they are not RLDS.
    """

    def __init__(self, schema: Schema, stored: Schema | None):
        new, old = schema.recorded, (stored or Schema({})).recorded
        self._schema = schema
        self._leaves = [
            *(_Leaf(f"steps/{p}", f, True, same_storage(f, old.steps.get(p))) for p, f in new.steps.items()),
            *(_Leaf(p, f, False, same_storage(f, old.metadata.get(p))) for p, f in new.metadata.items()),
        ]
        self._copies = (
            stored is not None
            and all(leaf.stored_alike for leaf in self._leaves)
            and len(self._leaves) == len(old.steps) + len(old.metadata)
        )

    def encode(self, episode: Episode, read: Episode | None) -> bytes:
        """The record of an episode.

        Args:
          read: the episode as read, before repairs and connectors.

        Raises:
          BadEpisode: the episode cannot be written: the size of a blank image to fill in is unknown.
          RldsBeamError: a field that can only be copied was changed.
        """
        if self._copies and read is not None and episode.steps is read.steps and episode.metadata is read.metadata:
            return read.payload
        kept = [
            leaf.stored_alike and read is not None and leaf.value_of(episode) is leaf.value_of(read)
            for leaf in self._leaves
        ]
        if read is not None and self._copies and all(kept):
            return read.payload
        self._schema.check(episode)
        payload = b"" if read is None else read.payload
        spans = entry_spans(payload) if any(kept) else {}
        entries: dict[str, bytes] = {}
        for leaf, is_kept in zip(self._leaves, kept, strict=True):
            names = _names(spans, leaf) if is_kept else []
            entries |= {name: payload[slice(*spans[name])] for name in names}
            if not names and not (is_kept and not leaf.in_steps and leaf.field.optional):
                entries[leaf.name] = self._entry(leaf, episode)
        return join_entries(entry for _, entry in sorted(entries.items()))

    def _entry(self, leaf: _Leaf, episode: Episode) -> bytes:
        value, field = leaf.value_of(episode), leaf.field
        if not field.fast:
            raise RldsBeamError(
                f"--to=rlds: {episode.key}: {field.path} is a {field.feature}, which can only be copied, but a "
                "repair or a connector changed it, or the steps: undo the change, or drop the field"
            )
        if value is None:
            raise BadEpisode(Violation("missing_field", "the value is missing", field.path))
        column = value if leaf.in_steps else _of_episode(value)
        if isinstance(column, EncodedImages):
            column = _fill(column, field)
        return encode_delimited(1, leaf.name.encode()) + encode_delimited(2, encode_feature(column, field))


def _names(spans: Mapping[str, Any], leaf: _Leaf) -> list[str]:
    """The entries of a leaf that are present; a ragged leaf has several."""
    if leaf.field.fast:
        return [leaf.name] if leaf.name in spans else []
    return all_below(spans, leaf.name)


def _of_episode(value: Any) -> Column:
    """An episode's value as a column of one step."""
    if isinstance(value, str | bytes):
        return as_column([value])
    array = np.asarray(value)
    return array[None]


def _fill(images: EncodedImages, field: Field) -> EncodedImages:
    """Replaces each `ZERO_IMAGE` by a blank image, of the declared size or the first image's size."""
    empty = [step for step, data in enumerate(images.data) if data == ZERO_IMAGE]
    if not empty:
        return images
    shape = tuple(_shape(images, field))
    if None in shape:
        detail = "cannot add a blank image: neither the schema nor another image gives its size"
        raise BadEpisode(Violation("undecodable_image", detail, field.path, empty[0]))
    data = images.data.copy()
    zeros = encode_zeros(tuple(d or 0 for d in shape), field.dtype, field.encoding)
    for step in empty:
        data[step] = zeros
    return images.with_data(data)


def _shape(images: EncodedImages, field: Field) -> Iterator[int | None]:
    first = next((data for data in images.data if data != ZERO_IMAGE), None)
    header = (None, None) if first is None else read_image_header(first)
    yield from (declared or actual for declared, actual in zip(field.shape[:2], header, strict=True))
    yield field.shape[2] or 3
