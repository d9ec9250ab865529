"""The preview of a written RLDS dataset, from the first record of each of its first files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rlds_beam.encoding.base import Record, RecordFormat
from rlds_beam.encoding.tfds.dataset_info import FEATURES
from rlds_beam.encoding.tfds.features import parse_features
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import BadEpisode
from rlds_beam.images.thumbnails import is_image
from rlds_beam.output.preview import joined, part_of
from rlds_beam.reading.decoding import EpisodeDecoder


def cameras_in(features: str) -> dict[str, Field]:
    """The step fields that may hold images, given the text of features.json; those that need TFDS are left out."""
    steps = parse_features(features, FEATURES).steps
    return {
        path: field
        for path, field in steps.items()
        if field.fast and (field.encoding in ("png", "jpeg") or len(field.shape) in (2, 3))
    }


def preview_of(files: Sequence[str], kind: RecordFormat, cameras: Mapping[str, Field]) -> bytes:
    """The preview as a JPEG; empty without images.

    Args:
      files: the paths of the files, which all have records.
      cameras: the fields to show.
    """
    return joined(_parts(files, kind, EpisodeDecoder(Schema(dict(sorted(cameras.items())), {})))) if cameras else b""


def _parts(files: Sequence[str], kind: RecordFormat, decoder: EpisodeDecoder) -> Iterator[bytes]:
    for path in files:
        first = next(iter(kind.read(path)), None)
        if not isinstance(first, Record):
            continue
        try:
            steps = decoder.decode(first.payload, EpisodeKey("", "", 0, first.position)).steps
        except BadEpisode:  # an output's own records can be decoded; if not, no preview is worth a failure
            continue
        yield part_of([column for column in steps.values() if is_image(column)])
