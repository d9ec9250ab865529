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
    PackedElement,
    Part,
    PlacedElement,
    measure,
    name_ranges,
    place,
    read_stored,
)


class Numbers(KeyedSink):
    """Packs (split, key, weight)."""

    def pack(self, element: Any) -> PackedElement:
        return PackedElement(element[0], element[1], element, element[2])

    def plan(self, ranges: Sequence[Any]) -> None: ...

    def write_range(self, *args: Any) -> Any: ...

    def commit(self, plan: Any) -> None: ...


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


def cut(sink: Numbers, stored: Sequence[Any], bounds: Sequence[Any]) -> list[tuple[Any, int, Any]]:
    """The range, the position, and the key of each element, by way of buckets."""
    buckets: dict[int, list[Any]] = {}
    for each in stored:
        buckets.setdefault(sum(each.order >= bound for bound in bounds), []).append(each)
    sizes = {number: measure(own) for number, own in buckets.items()}
    placed = [each for number, own in buckets.items() for each in place(number, own, sizes, sink)]
    return sorted((each.range, each.position, each.stored.key) for each in placed)


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
    orders = sorted(each.order for each in stored)
    bounds = sorted(random.Random(seed).sample(orders, min(buckets, len(orders))))
    found = cut(sink, stored, bounds)
    assert found == cut(sink, store(sink, sorted(elements), 1), [])
    by_split = [(split, key) for (split, _), _, key in found]
    assert by_split == sorted(keys)
    assert [position for _, position, _ in found] == [
        i for split in ("train", "val") for i in range(sum(name == split for name, _ in keys))
    ]
    names = name_ranges({each[0] for each in found}, sink)
    assert all(work.of <= 3 for work in names.values())


def test_elements_are_read_in_order_and_verified(tmp_path: Path) -> None:
    sink = numbers(tmp_path)
    stored = store(sink, [("val", 1, 5), ("train", 2, 5), ("train", 1, 5)], 2)
    placed: list[PlacedElement] = list(place(0, stored, {0: measure(stored)}, sink))
    assert list(read_stored(placed)) == [("train", 1, 5), ("train", 2, 5), ("val", 1, 5)]
    path = Path(stored[0].part)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(NotVerifiedError, match="has changed since it was written"):
        list(read_stored(placed))


@pytest.mark.parametrize(
    ("element", "message"),
    [(("train", 1, 5), "two episodes have the key 1: keys must be unique"), (("test", 3, 5), "in the split test")],
)
def test_what_cannot_be_ordered_is_an_error(tmp_path: Path, element: Any, message: str) -> None:
    sink = numbers(tmp_path)

    def order() -> list[PlacedElement]:
        stored = store(sink, [("train", 1, 5), element], 1)
        return list(place(0, stored, {0: measure(stored)}, sink))

    with pytest.raises(UsageError, match=message):
        order()
