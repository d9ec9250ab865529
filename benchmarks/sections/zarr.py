"""`--from=zarr` and `--to=zarr` against loops over diffusion policy's ReplayBuffer."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from measuring import (
    DATA,
    HERE,
    Figure,
    Measurement,
    Sizes,
    at_least,
    best,
    command,
    convert,
    ratios,
    table,
)

STEPS = 125
"""Steps of an episode, as in push-T."""


def zarr(sizes: Sizes) -> list[Figure]:
    """One worker against loops that people write, a buffer to RLDS and RLDS to a buffer; they get fewer episodes."""
    counts = sizes.of(200, 8), sizes.of(25, 4)
    buffers = [_made(count) for count in counts]
    figures = _compared(sizes, "read", "copy_from_path and TFDS's writer", buffers, counts, "--from=zarr", "--to=rlds")
    kept = [_as_rlds(buffer) for buffer in buffers]
    figures += _compared(sizes, "write", "tfds.load and add_episode", kept, counts, "--to=zarr")
    return figures


def _as_rlds(buffer: Path) -> Path:
    written = convert(buffer, "--from=zarr", "--to=rlds", "--workers=1").output
    return written.rename(_fresh(f"{buffer.stem}_rlds") / "1.0.0")


def _compared(
    sizes: Sizes, kind: str, name: str, data: list[Path], counts: tuple[int, int], *flags: str
) -> list[Figure]:
    """Our rate on the first of `data` and the peer's on the second; `counts`: the episodes of both."""
    peers, ours = [], []
    for _ in range(sizes.repeats):
        printed, _ = command([sys.executable, HERE / "peers/zarr_peer.py", kind, data[1]])
        content = json.loads(printed.splitlines()[-1])
        peers.append(Measurement(content, content["steps_per_second"], peak_mb=content["peak_mb"]))
        ours.append(convert(data[0], "--workers=1", *flags))
    one, other = best(ours), best(peers)
    table(
        f"zarr, {kind}, {counts[0]} episodes of {STEPS} steps ({name}: {counts[1]}), one worker, {' '.join(flags)}",
        ["", "steps/s", "peak MB", "ratio"],
        [name, f"{other.rate:,.0f}", f"{other.peak_mb:,.0f}", ""],
        ["ours", f"{one.rate:,.0f}", f"{one.peak_mb:,.0f}", f"{one.rate / other.rate:,.1f}"],
    )
    what = f"push-T's zarr {'to RLDS' if kind == 'read' else 'from RLDS'}"
    each = ratios(ours, peers)
    against, peer = f"a loop with diffusion policy's ReplayBuffer ({name})", "diffusion policy's ReplayBuffer"
    figure = f"zarr, {kind}: times {name}"
    return [at_least(figure, one.rate / other.rate, 5, what=what, against=against, peer=peer, runs=each)]


def _made(episodes: int) -> Path:
    made = command([sys.executable, HERE / "peers/zarr_peer.py", "make", DATA / f"push_{episodes}.zarr", episodes])
    return Path(made[0].strip())


def _fresh(name: str) -> Path:
    shutil.rmtree(DATA / name, ignore_errors=True)
    (DATA / name).mkdir()
    return DATA / name
