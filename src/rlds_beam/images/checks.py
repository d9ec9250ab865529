"""Checks image columns without decoding them."""

from __future__ import annotations

from collections.abc import Iterable

from rlds_beam.errors import Violation
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.headers import JPEG_END, UndecodableImageError, alike, allow_pixels, read_image_header
from rlds_beam.images.video_frames import VideoFrames

_MAX_KNOWN = 256
_good: dict[tuple[int | None, ...], bytes] = {}
"""The start of the last good JPEG, by the declared size and the maximum number of pixels."""


def check_images(images: EncodedImages, max_pixels: int, field: str | None = None) -> list[Violation]:
    """Checks a column of images without decoding them.

    Args:
      images: the column.
      max_pixels: the maximum height x width of an image.
      field: the field's path, for the violations.

    Returns:
      At most one violation of each rule, at the first step that breaks it: `undecodable_image` (unknown format,
      incomplete header, missing end, wrong PNG checksum), `image_too_large` (more pixels than allowed), and
      `image_size_mismatch` (a size that differs from the declared one). Only `EncodedImages.decode` finds damage inside
      a JPEG's body, or in a video, of which only the size is checked here (`video_frames` checks the number of its
      frames).
    """
    allow_pixels(max_pixels)
    if isinstance(images, VideoFrames):
        found = None if images.size is None else _check_size(images.size, 0, images.shape[:2], max_pixels, field)
        return [] if found is None else [found]
    asked = *images.shape[:2], max_pixels
    known = _good.get(asked)
    if known is not None and not images.unlike(known, JPEG_END):
        return []
    violations: dict[str, Violation] = {}
    steps: Iterable[int] = range(len(images))
    good = b""  # the start of the last good JPEG
    if len(images):
        good = _check_image(images.image(0), 0, images.shape[:2], max_pixels, field, violations)
        steps = images.unlike(good, JPEG_END) if good else range(1, len(images))
    for step in steps:
        data = images.image(step)
        if not (good and data.startswith(good) and data.endswith(JPEG_END)):
            good = _check_image(data, step, images.shape[:2], max_pixels, field, violations) or good
    if good:
        if len(_good) > _MAX_KNOWN:
            _good.clear()
        _good[asked] = good
    return list(violations.values())


def _check_image(
    data: bytes,
    step: int,
    declared: tuple[int | None, ...],
    max_pixels: int,
    field: str | None,
    violations: dict[str, Violation],
) -> bytes:
    """Adds an image's violations; returns the start of all equally good images, empty if unknown."""
    try:
        header = read_image_header(data)
    except UndecodableImageError as error:
        violations.setdefault(
            "undecodable_image", Violation("undecodable_image", f"{error} at step {step}", field, step)
        )
        return b""
    found = _check_size((header.height, header.width), step, declared, max_pixels, field)
    if found is not None:
        violations.setdefault(found.rule, found)
        return b""
    return alike(header)


def _check_size(
    size: tuple[int, int], step: int, declared: tuple[int | None, ...], max_pixels: int, field: str | None
) -> Violation | None:
    """The fault in the (height, width) of an image, if there is one."""
    height, width = size
    if height * width > max_pixels:
        detail = f"{height}x{width} pixels at step {step}, but at most {max_pixels} are allowed"
        return Violation("image_too_large", detail, field, step)
    if any(want is not None and want != got for want, got in zip(declared, size, strict=True)):
        expected = "x".join("?" if d is None else str(d) for d in declared)
        detail = f"{height}x{width} at step {step}, but expected {expected}"
        return Violation("image_size_mismatch", detail, field, step)
    return None
