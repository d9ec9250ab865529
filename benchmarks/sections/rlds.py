"""`convert --to=rlds` with `ResizeImages`, against rlds_dataset_mod."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from measuring import DATA, Figure, Measurement, Sizes, at_least, best, make, ratios, script, table

RESIZE = DATA / "resize.json"


def rlds(sizes: Sizes) -> list[Figure]:
    """Resizing to 256x256 JPEGs, by processor time of one process."""
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
