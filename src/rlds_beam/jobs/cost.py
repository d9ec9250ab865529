"""The seconds that a job takes one core, from measured rates: enough to decide whether to start worker processes.

n workers do in t / (n e) seconds what one process does in t, and take s seconds to start; so they are worth it where
t (1 - 1 / (n e)) > s. All of it was measured: s and e by `benchmarks/rates/predicted.py`, which runs empty and larger
jobs with and without workers; t by `benchmarks/rates/rates.py`, with whose figures a test compares those below. Only
the order of magnitude counts: near the threshold either choice costs the same.
"""

from __future__ import annotations

from rlds_beam.checking.options import CheckOptions
from rlds_beam.output.capabilities import CostHint
from rlds_beam.reading.base import Source

_MEGA = 1e6
_STATE = {"check": 0.004, "read": 0.003, "frame": 0.0036, "push": 0.056}
_PNG = {"check": 0.004, "read": 0.0077, "frame": 0.0035, "push": 0.03}
_JPEG = {"check": 0.004, "read": 0.028, "frame": 0.011, "push": 0.045}
_KEPT_JPEG = {**_JPEG, "read": 0.0036, "frame": 0.0014}
"""Seconds a MB of input, by what most of it is: to check it; to read and decode it for writing; to write every frame
of it once into records; to send every frame of it to Reverb. Of JPEGs, between those of 64x64 and of 256x256; the last
line is of JPEGs that are written as they are. A push of PNGs is estimated."""

_EPISODE = {"check": 0.00014, "stats": 0.00017, "write": 0.00025, "push": 0.0003}
"""Seconds an episode, whatever its size: most of the work if episodes are short. A push is estimated."""

_VIDEO = {"jpeg": 0.5, "png": 0.07, "none": 0.04}
"""Seconds a MB of input to encode its images as videos, by their encoding in the input (9 million pixels a second)."""

_CONVERTED = 0.02
"""Seconds a MB of converted records, to send them to Reverb (estimated)."""


def validate_seconds(source: Source, options: CheckOptions) -> float:
    """To check a dataset; `decode_images` decodes all images for it."""
    rates = _rates(source)
    seconds = _megabytes(source) * rates["read" if options.decode_images else "check"]
    return seconds + _episodes(source) * _EPISODE["check"] + source.decode_seconds()


def stats_seconds(source: Source, options: CheckOptions) -> float:
    """To check a dataset, and to compute its statistics."""
    more = _episodes(source) * (_EPISODE["stats"] - _EPISODE["check"])
    return validate_seconds(source, options) + _megabytes(source) * _rates(source)["read"] + more


def convert_seconds(source: Source, effort: CostHint) -> float:
    """To convert a dataset with an output of this effort."""
    rates = _rates(source)
    if rates is _JPEG and not effort.decodes_images:
        rates = _KEPT_JPEG
    a_megabyte = rates["read"] + rates["frame"] * effort.copies
    if effort.encodes_videos:
        a_megabyte += _VIDEO["jpeg" if rates is _JPEG else "png" if rates is _PNG else "none"]
    return _megabytes(source) * a_megabyte + _episodes(source) * _EPISODE["write"] + source.decode_seconds()


def push_seconds(source: Source) -> float:
    """To push a dataset into Reverb. Items that overlap are slices of the same chunks: each frame is sent once."""
    seconds = _megabytes(source) * _rates(source)["push"]
    return seconds + _episodes(source) * _EPISODE["push"] + source.decode_seconds()


def converted_seconds(size: int) -> float:
    """To push so many bytes of converted records."""
    return size / _MEGA * _CONVERTED


def _megabytes(source: Source) -> float:
    return source.size / _MEGA


def _episodes(source: Source) -> int:
    """The number of episodes; 0 if the metadata does not say."""
    return source.episodes or 0


def _rates(source: Source) -> dict[str, float]:
    encodings = {field.encoding for field in source.schema.steps.values()}
    return _JPEG if "jpeg" in encodings else _PNG if "png" in encodings else _STATE
