"""Episodes before and after a connector edits them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import settings

from rlds_beam.connectors import connect
from rlds_beam.episodes.episode import Episode
from rlds_beam.images.codecs import encode_jpeg, encode_png
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.testing import make_episode

FEW = settings(deadline=None, max_examples=50)


def with_actions(actions: Any, **columns: Any) -> Episode:
    made = make_episode(len(actions), columns=columns)
    return made.with_columns({"action": np.asarray(actions, np.float32)})


def edited(connector: Any, episode: Episode) -> list[Episode]:
    return list(connect([connector], [episode]).episodes)


def images(encoding: str, shape: tuple[int, ...] = (8, 12, 3), dtype: str = "uint8") -> tuple[EncodedImages, Any]:
    """Three images of random pixels, and the pixels."""
    pixels = np.random.default_rng(1).integers(0, 255, (3, *shape)).astype(dtype)
    data = encode_jpeg(pixels) if encoding == "jpeg" else encode_png(pixels)
    return EncodedImages(np.array([*data, None], object)[:-1], shape, dtype, encoding), pixels
