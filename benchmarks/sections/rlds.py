"""`convert --to=rlds` and other jobs that copy images, against a copy of the same bytes and rlds_dataset_mod."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from measuring import DATA, Figure, Measurement, Sizes, at_least, best, make, ratios, script, table

COPIES = {
    "--to=rlds": ("to=rlds",),
    "--to=trajectories --images=jpeg, frames": ("to=trajectories", "images=jpeg", "items=frames"),
    "--to=lerobot": ("to=lerobot", "fps=10"),
}
"""Jobs that copy images, with their options."""

TITLES = {
    "jpeg_short": "4 cameras of 64x64, 10 steps an episode",
    "jpeg": "4 cameras of 64x64, 100 steps an episode",
    "jpeg256": "4 cameras of 256x256, 100 steps an episode",
}
COPY = "copying the same bytes with checksums, on one core"
BARE = "reading with checksums, and writing the frames from memory with pyarrow's bare writer"
AIMS = {"jpeg_short": (0.6, 0.4, 0.25), "jpeg": (0.5, 0.5, 0.35)}
"""The aims of these jobs, of a copy; 0.5 for other data."""

RESIZE = DATA / "resize.json"


def rlds(sizes: Sizes) -> list[Figure]:
    """Copies of JPEGs, and resizing to 256x256 JPEGs, by processor time of one process."""
    return [*_copies(sizes), *_resizing(sizes)]


def _copies(sizes: Sizes) -> list[Figure]:
    figures, rows = [], []
    kinds = {
        "jpeg_short": sizes.of(8_000, 1_000),
        "jpeg": sizes.of(8_000, 1_000),
        "jpeg256": sizes.of(2_000, 200),
    }
    for kind, steps in kinds.items():
        data = make(kind, steps)
        runs: dict[str, list[Measurement]] = {name: [] for name in ("copy", "parquet", *COPIES)}
        for _ in range(sizes.repeats):
            for name in ("copy", "parquet"):
                runs[name].append(script("peers/rlds_peer.py", name, data, "--steps", steps))
            for name, options in COPIES.items():
                runs[name].append(script("peers/rlds_peer.py", "ours", data, *options))
        copy = best(runs["copy"]).rate
        rows.append([f"{kind}, copy", f"{copy:,.0f}", ""])
        for name, aim in zip(COPIES, AIMS.get(kind, (0.5,) * len(COPIES)), strict=True):
            rate = best(runs[name]).rate
            rows.append([f"{kind}, {name}", f"{rate:,.0f}", f"{rate / copy:.2f}"])
            row = {"what": f"{name}, {TITLES[kind]}", "against": COPY, "runs": ratios(runs[name], runs["copy"])}
            figures.append(at_least(f"{kind}, {name}: of a copy with checksums", rate / copy, aim, **row))
        bare, name = best(runs["parquet"]).rate, "--to=lerobot"
        rows.append([f"{kind}, pyarrow's bare writer", f"{bare:,.0f}", f"{bare / copy:.2f}"])
        row = {"what": f"{name}, {TITLES[kind]}", "against": BARE, "runs": ratios(runs[name], runs["parquet"])}
        figures.append(at_least(f"{kind}, {name}: of pyarrow's bare writer", best(runs[name]).rate / bare, None, **row))
    table("four cameras, images copied: steps/s of a core", ["", "steps/s", "of a copy"], *rows)
    return figures


def _resizing(sizes: Sizes) -> list[Figure]:
    RESIZE.write_text(json.dumps(["ResizeImages"]))
    figures, rows = [], []
    for kind in ("jpeg480", "jpeg256"):
        data = make(kind, 200)
        runs: dict[str, list[Measurement]] = {"mod": [], "ours": []}
        for _ in range(sizes.repeats):
            runs["mod"].append(_mod(data))
            runs["ours"].append(script("peers/rlds_peer.py", "ours", data, "to=rlds", f"connectors={RESIZE}"))
        mod, ours = best(runs["mod"]).rate, best(runs["ours"]).rate
        rows.append([kind, f"{mod:,.0f}", f"{ours:,.0f}", f"{ours / mod:.1f}"])
        size, again = kind.removeprefix("jpeg"), ", which encodes them again" * (kind == "jpeg256")
        row: dict[str, Any] = {"what": f"`ResizeImages`, JPEGs of {size}x{size} to 256x256", "peer": "rlds_dataset_mod"}
        row |= {"against": f"rlds_dataset_mod (`tf.data` and TFDS){again}", "runs": ratios(runs["ours"], runs["mod"])}
        figures.append(at_least(f"{kind} to 256: times rlds_dataset_mod, per core", ours / mod, 3, **row))
    head = ["", "rlds_dataset_mod", "ours", "ratio"]
    table("four cameras to JPEGs of 256x256: steps/s of a core", head, *rows)
    print("  We copy JPEGs that already have the size; rlds_dataset_mod encodes them again.")
    return figures


def _mod(data: Path) -> Measurement:
    return script("peers/rlds_peer.py", "mod", data, "--episodes", 1)
