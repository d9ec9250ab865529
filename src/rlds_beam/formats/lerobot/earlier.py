"""The state of a finished dataset from which an append continues its numbers and statistics."""

from __future__ import annotations

import base64
import dataclasses
import io
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam import storage
from rlds_beam.connectors.statistics.episode_statistics import LeafStatistics
from rlds_beam.encoding.checked_json import read_json
from rlds_beam.errors import UsageError
from rlds_beam.formats.lerobot import layout
from rlds_beam.formats.lerobot.features import FeatureMap
from rlds_beam.formats.lerobot.metadata import Meta
from rlds_beam.formats.lerobot.ranges import report_damage
from rlds_beam.formats.lerobot.totals import Totals, row_groups
from rlds_beam.formats.lerobot.videos import EncodedAgain
from rlds_beam.typing import Array

if TYPE_CHECKING:
    from rlds_beam.output.base import EarlierOutput
    from rlds_beam.reading.plan import WorkRange


@dataclasses.dataclass(frozen=True)
class EarlierDataset:
    """A finished dataset that is appended to. Picklable.

    Attributes:
      directory: its directory.
      frames, episodes: the number of its frames and episodes.
      tasks: its tasks, in order.
      splits: the first and last episode of each split.
      ranges: the number of ranges of each split.
      files: the number of its files of meta/episodes (v3.0).
      entry: its entry in the manifest.
    """

    directory: str
    frames: int
    episodes: int
    tasks: tuple[str, ...]
    splits: Mapping[str, tuple[int, int]]
    ranges: Mapping[str, int]
    files: int
    entry: Mapping[str, Any]

    @classmethod
    def of(cls, earlier: EarlierOutput, ranges: Sequence[WorkRange], features: FeatureMap) -> EarlierDataset:
        """Reads the metadata. Raises UsageError if the ranges cannot be added to it."""
        directory, entry = earlier.directory, earlier.manifest.get("lerobot", {})
        counts = Counter(commit.split for commit in earlier.commits)
        last = earlier.commits[-1].split
        if wrong := [work.split for work in ranges if work.split in counts and work.split != last]:
            raise UsageError(
                f"--append: LeRobot stores the episodes of a split together, so only {last}, the last one, can be "
                f"appended to, not {wrong[0]}: use --split={last}, or convert again"
            )
        info, known = read_json(storage.join(directory, layout.INFO)), entry.get("pixels", {})
        if info["total_frames"] and (missing := [f.name for f in features.images if f.name not in known]):
            raise UsageError(
                f"--append: {directory} was written by an earlier version, which did not keep the statistics of "
                f"{missing[0]}: convert again"
            )
        bounds = {name: text.split(":") for name, text in info["splits"].items()}
        splits = {name: (int(first), int(stop)) for name, (first, stop) in bounds.items()}
        plans = (earlier.plan.content, *earlier.plan.appended)
        files = sum(layout.episodes_files(len(content["ranges"])) for content in plans)
        tasks = Meta.open(directory).tasks
        texts = tuple(tasks[i] for i in range(len(tasks)))
        return cls(directory, info["total_frames"], info["total_episodes"], texts, splits, dict(counts), files, entry)

    def holds(self, split: str, index: int) -> bool:
        """Whether a range is one of the dataset's, not of the append."""
        return index < self.ranges.get(split, 0)

    def totals(self, files: Sequence[str], features: FeatureMap) -> Totals:
        """The totals of the dataset; reads the numbers in its Parquet files unless `layout.TOTALS` exists.

        Args:
          files: the names of its Parquet files, in order.
          features: its features.
        """
        paths = [storage.below(self.directory, file) for file in files]
        lengths = np.array([row.length for row in Meta.open(self.directory).episodes], np.int64)
        pixels = {name: read_pixels(text) for name, text in self.entry.get("pixels", {}).items()}
        totals = Totals(
            tasks={text: i for i, text in enumerate(self.tasks)},
            task_frames=np.zeros(len(self.tasks), np.int64),
            lengths=[lengths],
            splits={name: list(bounds) for name, bounds in self.splits.items()},
            histograms={name: histogram for name, (histogram, _) in pixels.items()},
            samples={name: samples for name, (_, samples) in pixels.items()},
            encoded={name: EncodedAgain(**found) for name, found in self.entry.get("encoded", {}).items()},
            frames=self.frames,
            episodes=self.episodes,
        )
        known = read_totals(storage.join(self.directory, layout.TOTALS), len(self.tasks), self.frames)
        if known is not None:
            totals.task_frames, totals.earlier = known
            return totals
        totals.add_numbers(paths, features)
        for table in row_groups(paths, ["task_index"]):
            totals.task_frames += np.bincount(table["task_index"].to_numpy(), minlength=len(self.tasks))
        return totals

    def read(self, name: str) -> bytes:
        """The content of one of its files."""
        with storage.open_read(storage.below(self.directory, name)) as file:
            return file.read()


def totals_bytes(totals: Totals) -> bytes:
    """The content of `layout.TOTALS`; empty while the statistics hold all values, of which there are few then."""
    arrays = {"task_frames": totals.task_frames}
    leaves = totals.leaves()
    for i, leaf in enumerate(leaves.values()):
        of_leaf = leaf.to_arrays()
        if of_leaf is None:
            return b""
        arrays |= {f"{i} {name}": array for name, array in of_leaf.items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, names=np.array(list(leaves)), **arrays)
    return buffer.getvalue() if leaves else b""


def read_totals(path: str, tasks: int, frames: int) -> tuple[Array, dict[str, LeafStatistics]] | None:
    """The frames of each task, and the statistics of each feature; None if the file is missing or damaged."""
    try:
        with storage.open_read(path) as file:
            content = np.load(io.BytesIO(file.read()), allow_pickle=False)
        arrays: dict[str, Array] = {name: content[name] for name in content.files}
        leaves = {}
        for i, name in enumerate(arrays["names"].tolist()):
            own = {key.partition(" ")[2]: array for key, array in arrays.items() if key.startswith(f"{i} ")}
            leaves[name] = LeafStatistics.of_arrays(own)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None
    whole = all(leaf.count == frames for leaf in leaves.values()) and arrays["task_frames"].shape == (tasks,)
    return (arrays["task_frames"], leaves) if whole else None


def pixels_json(totals: Totals) -> dict[str, Any]:
    """The histograms of decoded frames, and their number, by image feature; for the manifest."""
    return {
        name: {
            "samples": totals.samples[name],
            "channels": len(histogram),
            "histogram": base64.b64encode(zlib.compress(np.asarray(histogram, "<i8").tobytes())).decode(),
        }
        for name, histogram in totals.histograms.items()
    }


def read_pixels(entry: Mapping[str, Any]) -> tuple[Array, int]:
    """The inverse of `pixels_json` for a feature: its histogram (C, 256), and the number of frames."""
    with report_damage("manifest.json"):
        counts = np.frombuffer(zlib.decompress(base64.b64decode(entry["histogram"])), "<i8")
        return counts.reshape(entry["channels"], -1).astype(np.int64), int(entry["samples"])
