"""What a range keeps beside its frames until all ranges are finished: `_ranges/<range>.npz`.

Numbers of its episodes and frames, its texts of tasks, the statistics of each episode, and where the numbers are that
the range does not know yet.
"""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam import storage
from rlds_beam.errors import NotVerifiedError
from rlds_beam.output.shards import ShardInfo, ShardWriter

if TYPE_CHECKING:
    import pyarrow as pa

Array = np.ndarray[Any, Any]

DIRECTORY = "_ranges"
"""It is removed with all that is in it when the dataset is complete."""


@dataclasses.dataclass
class RangeFacts:
    """Of E episodes with N frames in all.

    Attributes:
      keys: of the episodes.
      lengths: int64 (E,).
      tasks: the texts, in the order in which they first appear.
      frame_tasks: which of them each frame has, int32 (N,).
      statistics: by feature, (E, statistics, D): of each episode.
      histograms: by image feature, (C, 256): of the frames that were decoded.
      samples: by image feature, how many frames of each episode those are, (E,).
      columns: a row of each episode, for meta/episodes.
      places: where the numbers of the range are (`parquet_file.edits_of`); of v2.1, also where the files of its
        episodes end (`episode_files.EpisodeFiles`).
    """

    keys: Sequence[str]
    lengths: Array
    tasks: Sequence[str]
    frame_tasks: Array
    statistics: Mapping[str, Array]
    histograms: Mapping[str, Array]
    samples: Mapping[str, Array]
    columns: pa.Table
    places: Mapping[str, Array]

    @property
    def frames(self) -> int:
        return int(self.lengths.sum())

    def episode_tasks(self) -> list[list[int]]:
        """The tasks of each episode, in the order in which they first appear."""
        ends = np.cumsum(self.lengths)
        return [list(dict.fromkeys(part.tolist())) for part in np.split(self.frame_tasks, ends[:-1])]

    def write(self, path: str, key: object) -> ShardInfo:
        """Writes the file; its records are the episodes."""
        arrays: dict[str, Array] = {"lengths": self.lengths, "frame_tasks": self.frame_tasks}
        for group in _GROUPS:
            arrays |= {f"{group}/{name}": values for name, values in getattr(self, group).items()}
        texts = {"keys": list(self.keys), "tasks": list(self.tasks)}
        arrays["texts"] = np.frombuffer(json.dumps(texts, ensure_ascii=False).encode(), np.uint8)
        arrays["columns"] = np.frombuffer(_table_bytes(self.columns), np.uint8)
        buffer = io.BytesIO()
        np.savez(buffer, **{name.replace("/", _SLASH): values for name, values in arrays.items()})
        with ShardWriter(path) as writer:
            writer.write([buffer.getvalue()], len(self.lengths), key)
            return writer.commit()

    @classmethod
    def read(cls, path: str) -> RangeFacts:
        """Reads a file that `write` wrote.

        Raises:
          NotVerifiedError: it is not there, or damaged.
        """
        import pyarrow as pa

        try:
            with storage.open_read(path) as file:
                content = np.load(io.BytesIO(file.read()), allow_pickle=False)
            arrays: dict[str, Array] = {name.replace(_SLASH, "/"): content[name] for name in content.files}
            texts = json.loads(arrays["texts"].tobytes())
            groups = {
                group: {n.partition("/")[2]: a for n, a in arrays.items() if n.startswith(f"{group}/")}
                for group in _GROUPS
            }
            columns = pa.ipc.open_stream(arrays["columns"].tobytes()).read_all()
            return cls(
                texts["keys"], arrays["lengths"], texts["tasks"], arrays["frame_tasks"], columns=columns, **groups
            )
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            raise NotVerifiedError(
                f"{path} is not there, or damaged ({error}): remove the commit of its part, and run the same command "
                "again"
            ) from error


def facts_file(work: object) -> str:
    """The name of the file of a range."""
    return f"{DIRECTORY}/{work}.npz"


_GROUPS = ("statistics", "histograms", "samples", "places")
_SLASH = "\u2044"
"""In place of the slash, which a name within the file cannot have."""


def _table_bytes(table: pa.Table) -> bytes:
    import pyarrow as pa

    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()
