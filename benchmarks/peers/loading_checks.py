"""Checks a batch of a loader against the recorded frames, and measures the memory and time of its processes."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from loading_data import BATCH, Array, Frames, Sample

MAX = 8.0
"""The largest mean difference of an image, of 255: that of video frames is below it, that of other frames far above."""


def check(batch: Mapping[str, Any], frames: Frames, sample: Sample) -> float:
    """The mean difference of the batch's images from the recorded ones, decoded with an accurate DCT and resized.

    The first action identifies the frame of each sample.

    Args:
      batch: `image` [B, (history), H, W, C] or [B, (history), C, H, W], uint8, or floats from 0 to 1; `state`
        [B, (history), 7]; `action` [B, (chunk), 7]; with a chunk also `is_pad` [B, chunk].

    Raises:
      AssertionError: the batch does not hold what it should.
    """
    images, state, action = (np.asarray(batch[name]) for name in ("image", "state", "action"))
    if images.shape[-1] != 3:
        images = np.moveaxis(images, -3, -1)
    size = sample.size or 256
    lengths = {"image": sample.history, "state": sample.history, "action": sample.chunk}
    for name, values, rest in (("image", images, (size, size, 3)), ("state", state, (7,)), ("action", action, (7,))):
        wanted = (BATCH, *([lengths[name]] if lengths[name] else []), *rest)
        assert values.shape == wanted, f"{name} has the shape {values.shape}, not {wanted}"
    assert images.dtype == np.uint8 or images.dtype == np.float32, images.dtype
    recorded = {name: getattr(frames, name) for name in ("state", "action")}
    if sample.size:
        recorded = {name: frames.normalized(name, values) for name, values in recorded.items()}
    first = action[:, 0] if sample.chunk else action
    numbers = np.array([np.abs(recorded["action"] - one).sum(1).argmin() for one in first])
    assert len(set(numbers.tolist())) > BATCH // 4, "the samples are not shuffled"
    past = frames.history(numbers, sample.history or 1)
    _equal(state.reshape(*past.shape, -1), recorded["state"][past], "state")
    ahead, padding = frames.chunk(numbers, sample.chunk or 1)
    if sample.chunk:
        found = np.asarray(batch["is_pad"])
        # The last step of an RLDS episode has no action, so a loader may leave it out.
        early = np.pad(padding, ((0, 0), (0, 1)), constant_values=True)[:, 1:]
        assert (found >= padding).all() and (found <= early).all(), "is_pad is wrong"
        padding = found
    actions = action.reshape(*ahead.shape, -1)
    _equal(actions[~padding], recorded["action"][ahead][~padding], "action")
    pixels = images * 255 if images.dtype == np.float32 else images
    wanted = np.stack([[_reference(frames, int(n), size) for n in row] for row in past])
    difference = np.abs(pixels.reshape(wanted.shape) - wanted).mean((2, 3, 4))
    assert difference.max() < MAX, f"the images differ by {difference.max():.1f} of 255"
    return float(difference.mean())


def _equal(found: Array, wanted: Array, name: str) -> None:
    assert np.abs(found - wanted).max() < 1e-3, f"{name} differs by {np.abs(found - wanted).max()}"


def _reference(frames: Frames, number: int, size: int) -> Array:
    return _decoded(frames.jpeg(number), size)


@functools.lru_cache(maxsize=2 * BATCH)
def _decoded(jpeg: bytes, size: int) -> Array:
    import cv2
    import simplejpeg

    image = simplejpeg.decode_jpeg(jpeg)
    if image.shape[0] != size:
        image = cv2.resize(image, (size, size), interpolation=cv2.INTER_AREA)
    return image.astype(np.float32)


def family() -> list[int]:
    """The processes that this one started, directly or not, and itself."""
    parents = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and (fields := _fields(int(process.name))):
            parents[int(process.name)] = int(fields[1])
    found, added = {os.getpid()}, True
    while added:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found, added = found | more, bool(more)
    return sorted(found)


def memory_mb() -> float:
    """Memory of the family in MB; pages that several processes share are divided among them (PSS)."""
    total = 0
    for pid in family():
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def processor_seconds() -> float:
    """Processor time of the family, user and system, also of processes that it waited for."""
    spent = sum(sum(map(int, fields[11:15])) for pid in family() if (fields := _fields(pid)))
    return spent / os.sysconf("SC_CLK_TCK")


def _fields(pid: int) -> list[str]:
    """What /proc/PID/stat says after the name; nothing if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
