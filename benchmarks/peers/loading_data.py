"""The datasets of `run.py loading`: what its loaders open, and the index with which their batches are checked.

    python benchmarks/peers/loading_data.py RLDS FOLDER

Writes FOLDER/frames.npz: the place of each frame's JPEG in the RLDS files, its state and action, and the mean and
standard deviation of both. The bare loop also reads with it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

BATCH = int(os.environ.get("LOADING_BATCH", "32"))
CAMERA = "observation/image_0"
STATE = "observation/state"


@dataclasses.dataclass(frozen=True)
class Sample:
    """What a loader delivers for a step.

    Attributes:
      history: observations up to this step; None for one without a time axis.
      chunk: actions from this step on; None for one without a time axis.
      size: height and width of the images; None for the stored size. If set, states and actions are also normalized.
    """

    history: int | None = None
    chunk: int | None = None
    size: int | None = None


SAMPLES = {"plain": Sample(), "policy": Sample(2, 16, 224)}


@dataclasses.dataclass(frozen=True)
class Frames:
    """The frames of all episodes, in order.

    Attributes:
      files: the RLDS files.
      places: [N, 3], the file of each frame's JPEG, its offset, and its length.
      state: [N, 7].
      action: [N, 7].
      starts: the number of each episode's first frame, then the total.
      scales: the mean and standard deviation of `state` and `action`.
    """

    files: tuple[str, ...]
    places: Array
    state: Array
    action: Array
    starts: Array
    scales: dict[str, Array]

    def normalized(self, name: str, values: Array) -> Array:
        mean, deviation = self.scales[name]
        return (values - mean) / (deviation + np.float32(1e-8))

    def history(self, numbers: Array, length: int) -> Array:
        """Frames [B, length] up to each; the first of an episode is repeated."""
        starts = self.starts[np.searchsorted(self.starts, numbers, "right") - 1]
        return np.maximum(numbers[:, None] + np.arange(1 - length, 1), starts[:, None])

    def chunk(self, numbers: Array, length: int) -> tuple[Array, Array]:
        """Frames [B, length] from each on, the last of an episode is repeated; and which of them are padding."""
        stops = self.starts[np.searchsorted(self.starts, numbers, "right")][:, None]
        wanted = numbers[:, None] + np.arange(length)
        return np.minimum(wanted, stops - 1), wanted >= stops

    def jpeg(self, number: int) -> bytes:
        file, offset, length = self.places[number]
        with open(self.files[file], "rb") as opened:
            opened.seek(offset)
            return opened.read(length)


def load(folder: Path) -> Frames:
    """What `index` wrote."""
    found = np.load(folder / "frames.npz")
    scales = {name: found[f"scale_{name}"] for name in ("state", "action")}
    arrays = {name: found[name] for name in ("places", "state", "action", "starts")}
    return Frames(tuple(found["files"].tolist()), **arrays, scales=scales)


def index(rlds: Path, folder: Path) -> None:
    """Finds each stored JPEG in the files; every record holds those of its episode in order."""
    from rlds_beam import open_dataset

    steps = open_dataset(rlds, unit="steps", images="encoded")
    columns = steps[:]
    files = sorted(map(str, rlds.glob("*.tfrecord-*")))
    contents, file, offset, places = [Path(name).read_bytes() for name in files], 0, 0, []
    for jpeg in columns[CAMERA]:
        while (found := contents[file].find(jpeg, offset)) < 0:
            file, offset = file + 1, 0
        places.append((file, found, len(jpeg)))
        offset = found + len(jpeg)
    statistics = json.loads((folder / "stats.json").read_text())["fields"]
    scales = {
        f"scale_{name}": np.array([statistics[path]["mean"], statistics[path]["std"]], np.float32)
        for name, path in (("state", STATE), ("action", "action"))
    }
    starts = np.append(np.flatnonzero(columns["is_first"]), len(steps))
    np.savez(
        folder / "frames.npz",
        files=np.array(files),
        places=np.array(places, np.int64),
        starts=starts,
        state=columns[STATE],
        action=columns["action"],
        **scales,
    )


def main() -> None:
    parser: Any = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rlds", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    index(args.rlds, args.folder)


if __name__ == "__main__":
    main()
