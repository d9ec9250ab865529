"""Elements in any order become the same ranges, however they are cut into parts and buckets."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_beam.errors import NotVerifiedError, UsageError
from rlds_beam.writing.keyed_parts import (
    KeyedSink,
    Part,
    StoredElement,
    name_ranges,
    place,
    read_stored,
)


class Numbers(KeyedSink):
    """Packs (split, key, weight)."""

    def pack(self, element: Any) -> tuple[str, Any, Any, int]:
        return element[0], element[1], element, element[2]

    def write_range(self, *args: Any) -> Any: ...

    def commit(self) -> None: ...


def numbers(directory: Path) -> Numbers:
    return Numbers(directory=str(directory), splits=("train", "val"), shards=3)


def store(sink: Numbers, elements: Sequence[tuple[str, int, int]], parts: int) -> list[Any]:
    stored = []
    for i in range(parts):
        part = Part(sink)
        for element in elements[i::parts]:
            part.add(element)
        stored += part.finish()
    return stored


def cut(sink: Numbers, stored: Sequence[StoredElement], bounds: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The range and the key of each element, in order, by way of buckets."""
    buckets: dict[tuple[str, int], list[StoredElement]] = {}
    for each in stored:
        number = sum((each.split, each.key) >= bound for bound in bounds)
        buckets.setdefault((each.split, number), []).append(each)
    weights = {bucket: sum(each.weight for each in own) for bucket, own in buckets.items()}
    placed = [each for bucket, own in sorted(buckets.items()) for each in place(bucket, own, weights, sink)]
    return [(number, each.key) for number, each in placed]


@settings(deadline=None, max_examples=40)
@given(
    keys=st.dictionaries(
        st.tuples(st.sampled_from(["train", "val"]), st.integers(0, 99)), st.integers(0, 50), min_size=1, max_size=40
    ),
    parts=st.integers(1, 4),
    buckets=st.integers(1, 6),
    seed=st.integers(0, 9),
)
def test_ranges_do_not_depend_on_parts_and_buckets(
    tmp_path_factory: pytest.TempPathFactory,
    keys: dict[tuple[str, int], int],
    parts: int,
    buckets: int,
    seed: int,
) -> None:
    sink = numbers(tmp_path_factory.mktemp("parts"))
    elements = [(split, key, weight) for (split, key), weight in keys.items()]
    random.Random(seed).shuffle(elements)
    stored = store(sink, elements, parts)
    orders = sorted((each.split, each.key) for each in stored)
    bounds = sorted(random.Random(seed).sample(orders, min(buckets, len(orders))))
    found = cut(sink, stored, bounds)
    assert found == cut(sink, store(sink, sorted(elements), 1), [])
    assert [(split, key) for (split, _), key in found] == sorted(keys)
    assert found == sorted(found)
    ranges = name_ranges({number for number, _ in found}, sink).ranges
    assert all(work.of <= 3 for work in ranges.values())


def test_elements_are_read_in_order_and_verified(tmp_path: Path) -> None:
    sink = numbers(tmp_path)
    stored = store(sink, [("val", 1, 5), ("train", 2, 5), ("train", 1, 5)], 2)
    in_order = sorted(stored, key=lambda each: (each.split, each.order))
    assert list(read_stored(in_order)) == [("train", 1, 5), ("train", 2, 5), ("val", 1, 5)]
    path = Path(stored[0].part)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(NotVerifiedError, match="has changed since it was written"):
        list(read_stored(in_order))


@pytest.mark.parametrize(
    ("element", "message"),
    [
        (("train", 1, 5), "two episodes of split train have the key 1: keys must be unique"),
        (("../test", 3, 5), "the split of an episode is '../test'"),
    ],
)
def test_what_cannot_be_ordered_is_an_error(tmp_path: Path, element: Any, message: str) -> None:
    sink = numbers(tmp_path)

    def order() -> list[Any]:
        stored = store(sink, [("train", 1, 5), element], 1)
        return list(place(("train", 0), stored, {("train", 0): 10}, sink))

    with pytest.raises(UsageError, match=message):
        order()
