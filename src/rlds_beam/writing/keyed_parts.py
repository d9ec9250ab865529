"""Elements with keys, in any order and from any number of workers, become the ranges of an output in key order.

    bundles   each stores its elements in a part, in the order in which they come
    buckets   a sample of the keys cuts them into buckets of about equal numbers; each sorts its own, and the sizes of
              all buckets say in which range each element is
    ranges    each reads its elements from the parts, in order, and writes them as a conversion does

So equal elements give equal bytes, a worker holds one element at a time, and no value grows with their number: what
goes through a single place is a size for each bucket, and the name of each range. `transforms.writing.WriteKeyed` runs
this on Beam.
"""

from __future__ import annotations

import abc
import bisect
import dataclasses
import hashlib
import itertools
import pickle
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

from rlds_beam import naming, storage
from rlds_beam.checking.verdicts import Rejection
from rlds_beam.errors import NotVerifiedError, UsageError
from rlds_beam.output.commits import load_manifest
from rlds_beam.output.directory import check_output, is_output, make_ready
from rlds_beam.output.files import PARTS
from rlds_beam.output.plans import OutputPlan, read_plan, remove_output
from rlds_beam.output.shards import ShardWriter
from rlds_beam.reading.base import WorkRange
from rlds_beam.reading.plan import MAX_RANGES, RANGE_BYTES

BUCKETS = 1024
"""Buckets that are sorted on their own: 100,000 elements each for 100 million."""
FROM = "pipeline"
"""The source in the plan of a directory that a keyed sink writes."""


class StoredElement(NamedTuple):
    """The place of a stored element: `size` bytes at `offset` of the file `part`, with their checksum."""

    split: str
    key: Any
    weight: int
    part: str
    offset: int
    size: int
    checksum: bytes

    @property
    def order(self) -> tuple[Any, bytes]:
        """Sorts the elements of a split; equal keys by content."""
        return self.key, self.checksum


Place = tuple[str, int]
"""A split, and the number of a bucket or a range of it. Elements are behind those with lower numbers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeyedSink(abc.ABC):
    """What a keyed sink does with its elements. Picklable.

    Attributes:
      directory: the output directory, which all workers share.
      output_plan: its plan.
      overwrite: whether what rlds-beam wrote there before is replaced.
      splits: the first splits, in order; others follow, by name.
      shards: the largest number of ranges of a split; None chooses by size, as a conversion does.
      ranges: the ranges that have elements, once they are known (`assign_ranges`).
      unique: whether keys must be unique.
      keeps_rejected: whether it writes `rejected/`. Otherwise `WriteRejected` does, perhaps in the same pipeline.
    """

    directory: str
    output_plan: OutputPlan = dataclasses.field(default_factory=OutputPlan)
    overwrite: bool = False
    splits: tuple[str, ...] = ()
    shards: int | None = None
    ranges: Mapping[Place, WorkRange] = dataclasses.field(default_factory=dict)

    unique: ClassVar[bool] = True
    keeps_rejected: ClassVar[bool] = False

    def open(self) -> None:
        """Prepares the directory. Can be repeated until elements are stored.

        A runner may choose other bundles on the next run, so nothing of a killed one is used.
        """
        if is_output(self.directory):  # else `WriteRejected` may have been here first
            check_directory(self.directory, overwrite=self.overwrite)
            remove_output(self.directory, keep_rejected=not self.keeps_rejected)
        make_ready(self.directory, self.output_plan)

    @abc.abstractmethod
    def pack(self, element: Any) -> tuple[str, Any, Any, int]:
        """The split of an element, its key, what is stored of it, and its weight, which counts for the size of a range.

        The weight is the same for equal elements, as sizes of pickles are not.
        """

    def assign_ranges(self, ranges: Mapping[Place, WorkRange]) -> Self:
        """A copy that knows its ranges. Raises UsageError if they cannot be written."""
        return dataclasses.replace(self, ranges=ranges)

    @abc.abstractmethod
    def write_range(self, work: WorkRange, elements: Sequence[StoredElement]) -> list[Rejection]:
        """Writes and commits a range; returns the elements that cannot be written. Can be repeated.

        Args:
          work: the range.
          elements: its elements, in order; `read_stored` reads their contents.
        """

    @abc.abstractmethod
    def commit(self) -> Any:
        """Completes the dataset when all ranges are written, and returns the result."""


def check_directory(directory: str, *, overwrite: bool) -> None:
    """Checks that a keyed sink may write to a directory. Writes nothing.

    What an earlier run left unfinished is replaced, because its episodes cannot be read again.

    Raises:
      UsageError: it holds something else, or a finished dataset, and `overwrite` is False.
    """
    existing = read_plan(directory)
    check_output(directory, existing or OutputPlan(), overwrite=overwrite)
    replaceable = existing is None or (existing.content.get("from") == FROM and load_manifest(directory) is None)
    if not replaceable and not overwrite:
        raise UsageError(
            f"{directory} holds a finished dataset, or the output of another job: choose another directory, or pass "
            "overwrite=True"
        )


class Part:
    """Stores the elements of a bundle."""

    def __init__(self, sink: KeyedSink):
        self._sink = sink
        self._path = storage.below(sink.directory, PARTS, f"part-{uuid.uuid4().hex}")
        self._file, self._stored, self._offset = ShardWriter(self._path), list[StoredElement](), 0

    def add(self, element: Any) -> None:
        """Stores an element. Raises UsageError if its split cannot be a part of file names."""
        split, key, content, weight = self._sink.pack(element)
        naming.check_name(split, "the split of an episode")
        pickled = pickle.dumps(content, protocol=5)
        self._file.write([pickled], 1, key)
        place = self._path, self._offset, len(pickled), _checksum(pickled)
        self._stored.append(StoredElement(split, key, max(1, weight), *place))
        self._offset += len(pickled)

    def finish(self) -> list[StoredElement]:
        """Completes the part."""
        self._file.commit()
        return self._stored


def _checksum(content: bytes) -> bytes:
    """A cryptographic hash, since content is unpickled: nobody else can write content with the same one."""
    return hashlib.blake2b(content, digest_size=32).digest()


def place(
    bucket: Place, elements: Sequence[StoredElement], weights: Mapping[Place, int], sink: KeyedSink
) -> Iterator[tuple[Place, StoredElement]]:
    """Sorts a bucket, and finds the range of each element.

    Args:
      bucket: the bucket.
      elements: its elements.
      weights: the sum of the weights of each bucket.
      sink: has the number of ranges.

    Raises:
      UsageError: two elements have the same key.
    """
    split, number = bucket
    own = {i: weight for (name, i), weight in weights.items() if name == split}
    total, end = sum(own.values()), sum(weight for i, weight in own.items() if i < number)
    count = sink.shards or min(MAX_RANGES, -(-total // RANGE_BYTES))
    bounds = [total * i // count for i in range(1, count)]
    last: StoredElement | None = None
    for stored in sorted(elements, key=lambda stored: stored.order):
        if sink.unique and last is not None and last.key == stored.key:
            raise UsageError(
                f"two episodes of split {split} have the key {stored.key}: keys must be unique. If your step splits "
                "episodes, number the parts in their keys"
            )
        end += stored.weight
        yield (split, bisect.bisect_right(bounds, end - stored.weight // 2 - 1)), stored
        last = stored


def name_ranges(numbers: Iterable[Place], sink: KeyedSink) -> KeyedSink:
    """The sink with the ranges that have elements, in the order of its splits."""
    by_split: dict[str, list[Place]] = {split: [] for split in sink.splits}
    for number in sorted(numbers):
        by_split.setdefault(number[0], []).append(number)
    return sink.assign_ranges(
        {number: WorkRange(number[0], i, len(own), ()) for own in by_split.values() for i, number in enumerate(own)}
    )


def read_stored(elements: Iterable[StoredElement]) -> Iterator[Any]:
    """The contents of stored elements. Raises NotVerifiedError if a part has changed since it was written."""
    for part, own in itertools.groupby(elements, key=lambda stored: stored.part):
        with storage.open_read(part) as file:
            for stored in own:
                file.seek(stored.offset)
                content = file.read(stored.size)
                if _checksum(content) != stored.checksum:
                    raise NotVerifiedError(f"{part} has changed since it was written: run the pipeline again")
                element = pickle.loads(content)
                del content
                yield element
                del element  # not held while the next one is read


def commit(sink: KeyedSink) -> Any:
    """Completes the dataset, and removes the parts. Returns the result of the sink."""
    result = sink.commit()
    storage.rmtree(storage.below(sink.directory, PARTS))
    return result


def write_all(sink: KeyedSink, elements: Iterable[Any]) -> Any:
    """Writes all elements in this process, without Beam, and returns the result of the sink."""
    sink.open()
    part = Part(sink)
    for element in elements:
        part.add(element)
        del element  # not held while the next one is made
    stored = part.finish()
    ranges: dict[Place, list[StoredElement]] = {}
    for split in sorted({each.split for each in stored}):
        bucket = [each for each in stored if each.split == split]
        for number, each in place((split, 0), bucket, {(split, 0): sum(each.weight for each in bucket)}, sink):
            ranges.setdefault(number, []).append(each)
    sink = name_ranges(ranges, sink)
    for number, own in ranges.items():
        sink.write_range(sink.ranges[number], own)
    return commit(sink)
