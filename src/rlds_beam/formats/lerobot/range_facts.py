"""Facts about a range that are kept until all ranges are finished: `_ranges/<range>.npz`.

The lengths of its episodes, its task texts, and the statistics of each episode.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.arrow_columns import ipc_bytes
from rlds_beam.errors import NotVerifiedError
from rlds_beam.formats.lerobot.camera_frames import EncodedAgain
from rlds_beam.output.shards import ShardInfo, ShardWriter
from rlds_beam.typing import Array

if TYPE_CHECKING:
    import pyarrow as pa


DIRECTORY = "_ranges"
"""Directory of the facts, removed when the dataset is complete."""


class RangeNumbers(NamedTuple):
    """Numbers in the whole dataset, which a range does not know itself; JSON by `_asdict`.

    Attributes:
      first_frame, first_episode: the numbers of its first frame and episode.
      episodes: its number of episodes.
      tasks: the number of each of its tasks.
    """

    first_frame: int
    first_episode: int
    episodes: int
    tasks: Sequence[int]


@dataclasses.dataclass
class RangeFacts:
    """Facts about E episodes with N frames in total.

    Attributes:
      keys: the keys of the episodes.
      lengths: the lengths of the episodes, int64 (E,).
      tasks: the task texts, in order of first appearance.
      frame_tasks: the task of each frame, an index into `tasks`, int32 (N,).
      statistics: the statistics of each episode by feature, (E, statistics, D).
      histograms: the histogram of the decoded frames by image feature, (C, 256).
      samples: the number of decoded frames of each episode by image feature, (E,).
      columns: a row for each episode, for meta/episodes.
      ends: in v2.1, where the episodes' files end in the packs (`range_files`), int64 (E + 1, packs); empty in v3.0.
      encoded: the episodes that were encoded, by feature whose videos are copied.
    """

    keys: Sequence[str]
    lengths: Array
    tasks: Sequence[str]
    frame_tasks: Array
    statistics: Mapping[str, Array]
    histograms: Mapping[str, Array]
    samples: Mapping[str, Array]
    columns: pa.Table
    ends: Array
    encoded: Mapping[str, EncodedAgain] = dataclasses.field(default_factory=dict)

    @property
    def frames(self) -> int:
        return int(self.lengths.sum())

    def episode_tasks(self) -> list[list[int]]:
        """The tasks of each episode, in order of first appearance."""
        ends = np.cumsum(self.lengths)
        return [list(dict.fromkeys(part.tolist())) for part in np.split(self.frame_tasks, ends[:-1])]

    def frame_numbers(self, numbers: RangeNumbers) -> dict[str, Array]:
        """The number of each frame, of its episode, and of its task, (N,) each, by LeRobot's name."""
        return {
            "index": numbers.first_frame + np.arange(self.frames),
            "episode_index": np.repeat(numbers.first_episode + np.arange(len(self.lengths)), self.lengths),
            "task_index": np.array(numbers.tasks, np.int64)[self.frame_tasks],
        }

    def write(self, path: str, key: object) -> ShardInfo:
        """Writes the file, with a record for each episode."""
        texts = {"keys": list(self.keys), "tasks": list(self.tasks), "encoded": dict(self.encoded)}
        arrays: dict[str, Array] = {name: getattr(self, name) for name in _ARRAYS}
        arrays["texts"] = np.frombuffer(json.dumps(texts, ensure_ascii=False).encode(), np.uint8)
        for group in _GROUPS:
            arrays |= {f"{group}/{name}": values for name, values in getattr(self, group).items()}
        arrays["columns"] = np.frombuffer(ipc_bytes(self.columns), np.uint8)
        buffer = io.BytesIO()
        np.savez(buffer, **{name.replace("/", _SLASH): values for name, values in arrays.items()})
        with ShardWriter(path) as writer:
            writer.write([buffer.getvalue()], len(self.lengths), key)
            return writer.commit()

    @classmethod
    def read(cls, path: str, *, whole: bool = True) -> RangeFacts:
        """Reads a file that `write` wrote.

        Args:
          whole: also read what `complete` needs: statistics, histograms, samples, and columns.

        Raises:
          NotVerifiedError: the file is missing or damaged.
        """
        import pyarrow as pa

        with report_damage(path):
            with storage.open_read(path) as file:
                content = np.load(io.BytesIO(file.read()) if whole else file, allow_pickle=False)
                names = content.files if whole else (*_ARRAYS, "texts")
                arrays: dict[str, Array] = {name.replace(_SLASH, "/"): content[name] for name in names}
            texts = json.loads(arrays["texts"].tobytes())
            values: dict[str, Any] = {name: arrays[name] for name in _ARRAYS}
            for group in _GROUPS:
                values[group] = {n.partition("/")[2]: a for n, a in arrays.items() if n.startswith(f"{group}/")}
            return cls(
                texts["keys"],
                tasks=texts["tasks"],
                columns=pa.ipc.open_stream(arrays["columns"].tobytes()).read_all() if whole else pa.table({}),
                **values,
                encoded={name: EncodedAgain(*found) for name, found in texts["encoded"].items()},
            )


@contextlib.contextmanager
def report_damage(path: str) -> Iterator[None]:
    """Raises NotVerifiedError if a file of a finished range turns out to be missing or damaged."""
    import pyarrow as pa

    try:
        yield
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise NotVerifiedError(
            f"{path} is missing or damaged ({error}): remove the commit of its range, and run the same command again"
        ) from error


def facts_file(work: object) -> str:
    """The name of a range's file."""
    return f"{DIRECTORY}/{work}.npz"


_ARRAYS = ("lengths", "frame_tasks", "ends")
_GROUPS = ("statistics", "histograms", "samples")
_SLASH = "\u2044"
"""Replaces the slash, which a name in the file cannot contain."""
