"""Replay buffers as diffusion policy writes them, through the zarr library (2 or 3)."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds_beam.typing import Array


def episode_arrays(lengths: tuple[int, ...], seed: int = 0) -> dict[str, Array]:
    """The arrays of a push-T buffer: images, state, keypoints and actions."""
    rng, steps = np.random.default_rng(seed), sum(lengths)
    return {
        "img": np.repeat(rng.integers(0, 255, (steps, 4, 4, 3), np.uint8), 4, 1).repeat(4, 2),
        "state": rng.random((steps, 5), np.float32),
        "keypoint": rng.random((steps, 9, 2), np.float32),
        "action": rng.random((steps, 2), np.float32),
    }


def write_buffer(
    path: Path,
    arrays: Mapping[str, Array],
    lengths: tuple[int, ...],
    *,
    chunks: Mapping[str, tuple[int, ...]] | None = None,
    compressors: Mapping[str, Any] | None = None,
    meta: Mapping[str, Array] | None = None,
    **options: Any,
) -> Path:
    """Writes a buffer in version 2 of the format, as a directory, or a zip file if its name says so.

    Args:
      path: the path.
      arrays: the arrays below `data`.
      lengths: the steps of each episode.
      chunks: the chunks of arrays; 7 rows if not given.
      compressors: numcodecs' codecs of arrays, or None; zarr's default if not given.
      meta: other arrays below `meta`.
      options: further arguments for all arrays of `data` (`order`, `dimension_separator`).
    """
    zarr = pytest.importorskip("zarr")
    folder = path.with_suffix("") if path.suffix == ".zip" else path
    if zarr.__version__.startswith("2."):
        root = zarr.group(zarr.DirectoryStore(str(folder)), overwrite=True)
    else:
        root = zarr.open_group(str(folder), mode="w", zarr_format=2)
    data, about = root.create_group("data"), root.create_group("meta")
    for name, values in arrays.items():
        own: dict[str, Any] = {"chunks": (chunks or {}).get(name, (7, *values.shape[1:])), **options}
        if compressors is not None and name in compressors:
            own["compressor"] = compressors[name]
        _add(zarr, data, name, values, own)
    _add(zarr, about, "episode_ends", np.cumsum(np.array(lengths, np.int64)), {"chunks": (max(1, len(lengths)),)})
    for name, values in (meta or {}).items():
        _add(zarr, about, name, values, {"chunks": (max(1, len(values)), *values.shape[1:])})
    return zipped(folder, path) if path != folder else path


def open_zip(path: Path) -> Any:
    """The root group of a zip file, as the zarr library (2 or 3) reads it."""
    zarr = pytest.importorskip("zarr")
    if zarr.__version__.startswith("2."):
        return zarr.open(str(path), mode="r")
    return zarr.open_group(zarr.storage.ZipStore(str(path), mode="r"), mode="r")


def _add(zarr: Any, group: Any, name: str, values: Array, options: dict[str, Any]) -> None:
    if zarr.__version__.startswith("2."):
        group.array(name, values, **options)
        return
    if "compressor" in options:
        options["compressors"] = options.pop("compressor")
    if "dimension_separator" in options:
        separator = options.pop("dimension_separator")
        options["chunk_key_encoding"] = {"name": "v2", "separator": separator}
    group.create_array(name, data=values, **options)


def zipped(folder: Path, path: Path) -> Path:
    """Packs a directory store as `zarr.ZipStore` does."""
    with zipfile.ZipFile(path, "w") as file:
        for one in sorted(folder.rglob("*")):
            if one.is_file():
                file.write(one, one.relative_to(folder).as_posix())
    return path


def change_metadata(array: Path, **content: Any) -> None:
    """Changes entries of an array's `.zarray`."""
    file = array / ".zarray"
    file.write_text(json.dumps({**json.loads(file.read_text()), **content}))
