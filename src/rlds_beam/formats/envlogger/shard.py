"""Read one shard of an EnvLogger log, and rebuild its index files if they are missing or damaged.

    steps.riegeli              the steps; a step's type says whether an episode begins
    step_offsets.riegeli       the position of each step in it
    episode_index.riegeli      for each episode: the number of its first step, and its metadata's position (-1: none)
    episode_metadata.riegeli   the metadata

A writer that was killed leaves an incomplete index, or none. EnvLogger's reader silently reads a damaged index up to
the damage. So the index is checked against the steps, and rebuilt if needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np

from rlds_beam import storage
from rlds_beam.episodes.schema import FIRST, LAST
from rlds_beam.errors import needs
from rlds_beam.formats.envlogger.riegeli import Gap, RiegeliChunk, bridge, riegeli_file, scan
from rlds_beam.output.scratch import ScratchDirectory

LOG_METADATA = "metadata.riegeli"
STEPS, OFFSETS = "steps.riegeli", "step_offsets.riegeli"
EPISODES, METADATA = "episode_index.riegeli", "episode_metadata.riegeli"
FILES = (STEPS, OFFSETS, EPISODES, METADATA)
_MAX_METADATA_BYTES = 16 << 20
_NOTHING = -1
UNREADABLE = (RuntimeError, TypeError, ValueError)
"""Raised by the reader, which returns None for a step that it cannot read, then takes its length."""


@dataclasses.dataclass(frozen=True)
class ShardIndex:
    """The contents of a shard.

    Attributes:
      episodes: the number of episodes.
      rebuilt: the index files that were rebuilt, by name.
      damage: what was wrong with them, and what could not be read; "" if nothing.
      bridged: a directory with a copy of the steps without damaged chunk headers, if there are any.
    """

    episodes: int
    rebuilt: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    damage: str = ""
    bridged: ScratchDirectory | None = None


def read_index(shard: str) -> ShardIndex:
    """The contents of a shard's directory. Raises OSError if no step can be read."""
    stamps = []
    for name in FILES:
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(os.path.join(shard, name))
            if not stat.S_ISDIR(status.st_mode):
                storage.check_regular(os.path.join(shard, name))  # the reader would wait for a FIFO
            stamps.append((name, storage.make_stamp(status)))
    return _index(os.path.abspath(shard), tuple(stamps))


@contextlib.contextmanager
def open_shard(shard: str, rebuilt: Mapping[str, bytes], bridged: Any = None) -> Iterator[Any]:
    """EnvLogger's reader of a shard, with some files rebuilt. Raises OSError if the shard cannot be read."""
    with needs("envlogger", f"reading {shard} needs the package envlogger"):
        from envlogger.backends.python import riegeli_dataset_reader
    with ScratchDirectory() as alone:  # a damaged shard makes the whole log unreadable
        inside = os.path.join(alone, "shard")
        os.mkdir(inside)
        for name in FILES:
            if name in rebuilt:
                _write(os.path.join(inside, name), rebuilt[name])
            else:
                folder = bridged.name if bridged is not None and name == STEPS else os.path.abspath(shard)
                os.symlink(os.path.join(folder, name), os.path.join(inside, name))
        _write(os.path.join(alone, LOG_METADATA), riegeli_file([b""]))  # the log's metadata are not read
        reader = riegeli_dataset_reader.RiegeliDatasetReader()
        try:
            reader.init(alone)
        except RuntimeError as error:
            raise OSError(f"{shard}: {str(error).replace(inside, shard)}") from error
        try:
            yield reader
        finally:
            reader.close()


def log_metadata(log: str) -> bytes | None:
    """The metadata of a log, an encoded `storage_pb2.Data`; None if they cannot be read."""
    path = os.path.join(os.path.abspath(log), LOG_METADATA)
    if not os.path.isfile(path) or os.path.getsize(path) > _MAX_METADATA_BYTES:
        return None
    with needs("envlogger", f"reading {log} needs the package envlogger"):
        from envlogger.backends.python import riegeli_dataset_reader
    with ScratchDirectory() as alone:  # a damaged shard makes the whole log unreadable
        os.symlink(path, os.path.join(alone, LOG_METADATA))
        reader = riegeli_dataset_reader.RiegeliDatasetReader()
        try:
            reader.init(alone)
            return bytes(reader.metadata().SerializeToString())
        except (*UNREADABLE, AttributeError):
            return None
        finally:
            reader.close()


def _write(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)


@functools.lru_cache(maxsize=64)
def _index(shard: str, files: tuple[tuple[str, storage.Stamp], ...]) -> ShardIndex:
    there = [name for name, _ in files]
    if STEPS not in there:
        raise OSError(f"{shard} has no {STEPS}")
    rebuilt = {name: riegeli_file([]) for name in (EPISODES, METADATA) if name not in there}
    wrong = [f"{name} is missing" for name in FILES if name not in there]
    offsets, gaps = _records(os.path.join(shard, STEPS))
    after_gaps: set[int] = set()
    known = _steps_of_index(shard, rebuilt) if OFFSETS in there else 0
    if len(offsets) > known:
        rebuilt[OFFSETS] = riegeli_file([_datum(np.array(offsets, np.int64))])
        if known:
            wrong.append(f"{OFFSETS} lists {known:,} of {len(offsets):,} steps")
        elif OFFSETS in there:
            wrong.append(f"{OFFSETS} lists no steps")
        if gaps:  # steps after a gap get other numbers
            rebuilt[EPISODES] = riegeli_file([])
            after_gaps = set(gaps)
            wrong += [f"bytes {g.begin:,} to {g.end:,} of {STEPS} hold no readable step" for g in gaps.values()]
    elif gaps:
        rebuilt[OFFSETS] = riegeli_file([_datum(_readable(shard, offsets))])
    bridged = _bridge(os.path.join(shard, STEPS), [gap for after, gap in gaps.items() if after < len(offsets)])
    begins = _Begins(shard, rebuilt, bridged, after_gaps)
    if begins.lost:
        kept = np.delete(np.array(offsets, np.int64), begins.lost)
        rebuilt[OFFSETS] = riegeli_file([_datum(kept)])
    if begins.found:
        rebuilt[EPISODES], unknown = begins.index()
        if EPISODES in there and not after_gaps:
            wrong.append(f"{EPISODES} lists {len(begins.known)} of {begins.count} episodes")
        if unknown:
            wrong.append(f"the metadata of {unknown} episodes are unknown")
    if not wrong:
        return ShardIndex(begins.count, rebuilt, bridged=bridged)
    return ShardIndex(begins.count, rebuilt, begins.damage(wrong), bridged)


def _bridge(path: str, gaps: Sequence[Gap]) -> ScratchDirectory | None:
    """A copy of the steps with gaps replaced by chunks without records; None if there are no gaps.

    Riegeli's reader finds a chunk by the headers before it in its block of 64 KiB, and stops at a damaged one.
    """
    if not gaps:
        return None
    directory = ScratchDirectory()
    copy = os.path.join(directory.name, STEPS)
    shutil.copyfile(path, copy)
    with open(copy, "r+b") as file:
        for gap in gaps:
            for place, content in bridge(gap):
                file.seek(place)
                file.write(content)
    return directory


def _records(path: str) -> tuple[list[int], dict[int, Gap]]:
    """The positions of the records of a file, and the gaps, by the number of the record after each."""
    offsets: list[int] = []
    gaps: dict[int, Gap] = {}
    with open(path, "rb") as file:
        for extent in scan(file):
            if isinstance(extent, RiegeliChunk):
                offsets.extend(range(extent.begin, extent.begin + extent.records))
            else:
                before = gaps.get(len(offsets), extent)
                gaps[len(offsets)] = Gap(before.begin, extent.end)
    return offsets, gaps


def _steps_of_index(shard: str, rebuilt: Mapping[str, bytes]) -> int:
    """The number of steps in the index; 0 if it cannot be read."""
    try:
        with open_shard(shard, rebuilt) as reader:
            return int(reader.num_steps)
    except OSError:
        return 0


def _readable(shard: str, offsets: Sequence[int]) -> Any:
    """The positions of the steps in the index; those in a gap, where the reader finds the next step, become none."""
    path = os.path.join(shard, OFFSETS)
    with open(path, "rb") as file:  # read by the same reader: its records replace the steps
        alone = {STEPS: file.read(), EPISODES: riegeli_file([]), METADATA: riegeli_file([])}
    alone[OFFSETS] = riegeli_file([_datum(np.array(_records(path)[0], np.int64))])
    with open_shard(shard, alone) as reader:
        try:
            listed = [*itertools.chain(*(_numbers(reader.serialized_step(i)) for i in range(int(reader.num_steps))))]
        except UNREADABLE as error:
            raise OSError(f"{path} cannot be read: {error}") from error
    return np.where(np.isin(listed, offsets), listed, os.path.getsize(os.path.join(shard, STEPS))).astype(np.int64)


class _Begins:
    """The first steps of episodes.

    Attributes:
      known: for each episode in the index, its first step and whether it has metadata.
      found: the first steps of episodes that are not in the index.
      lost: the steps between a gap and the next beginning, in episodes whose beginning is lost.
    """

    def __init__(self, shard: str, rebuilt: Mapping[str, bytes], bridged: Any, after_gaps: Set[int]):
        self._shard, self._rebuilt, self._bridged, self._after_gaps = shard, rebuilt, bridged, after_gaps
        self.known: list[tuple[int, bool]] = []
        with open_shard(shard, rebuilt, bridged) as reader:
            self.steps = int(reader.num_steps)
            for i in range(int(reader.num_episodes)):
                info = reader.episode(i, True)
                if int(info.start) >= self.steps:  # its steps were not written
                    break
                self.known.append((int(info.start), info.metadata is not None))
        self.found: list[int] = []
        self.lost: list[int] = []
        self._last = LAST
        self._look(self.known[-1][0] if self.known else 0)

    @property
    def count(self) -> int:
        """The number of episodes."""
        return len(self.known) + len(self.found)

    def _look(self, start: int) -> None:
        """Reads the step types, starting at the last episode in the index."""
        step, lost = start, False
        while step < self.steps:
            with open_shard(self._shard, self._rebuilt, self._bridged) as reader:
                kind: int | None = FIRST
                while step < self.steps and kind is not None:  # after an error, a reader reads nothing more
                    kind = _step_type(reader, step)
                    lost = (lost or step in self._after_gaps) and kind != FIRST
                    if lost:
                        self.lost.append(step)
                    self._last = self._last if kind is None else kind
                    if kind == FIRST and not (self.known and step == self.known[-1][0]):
                        self.found.append(step - len(self.lost))
                    step += 1

    def index(self) -> tuple[bytes, int]:
        """The index of all episodes, and the number of episodes with unknown metadata."""
        path = os.path.join(self._shard, METADATA)
        places = _records(path)[0] if METADATA not in self._rebuilt else []
        of_known = [places.pop(0) if has and places else _NOTHING for _, has in self.known]
        unfinished = self._last != LAST
        if len(places) == len(self.found) - unfinished:  # metadata is written when the next episode begins
            of_found, unknown = places + [_NOTHING] * unfinished, 0
        else:
            of_found, unknown = [_NOTHING] * len(self.found), len(self.found) if places else 0
        starts = [start for start, _ in self.known] + self.found
        return riegeli_file([_datum(np.stack([starts, of_known + of_found], axis=1).astype(np.int64))]), unknown

    def damage(self, wrong: Sequence[str]) -> str:
        """The message about a shard with a damaged index."""
        first = min([*self.found[:1], *(start for start, _ in self.known[:1])], default=self.steps)
        without = len(self.lost) + first
        lost = [f"{without:,} more belong to episodes whose beginning is lost"] if without else []
        recovered = f"found {self.count:,} episodes with {self.steps - without:,} steps in {STEPS}"
        return f"{self._shard}: {'; '.join([*wrong, recovered, *lost])}; steps that were not yet written are lost"


def _step_type(reader: Any, step: int) -> int | None:
    """The type of a step; None if it cannot be read."""
    from envlogger.converters import codec
    from envlogger.proto import storage_pb2

    try:
        data = reader.serialized_step(step)
        timestep = storage_pb2.Data.FromString(data).tuple.values[0]
        return int(codec.decode(timestep.tuple.values[0]))
    except (*UNREADABLE, AttributeError, IndexError):
        return None


def _datum(values: Any) -> bytes:
    """An array as stored in index files."""
    from envlogger.converters import codec

    content: bytes = codec.encode(values).datum.SerializeToString()
    return content


def _numbers(record: bytes) -> Sequence[int]:
    """The numbers of a record of an index file."""
    from envlogger.proto import storage_pb2

    values: Sequence[int] = storage_pb2.Datum.FromString(record).values.int64_values
    return values
