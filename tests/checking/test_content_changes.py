"""Differences between two versions of a dataset, by the digests of the episodes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rlds_beam.checking.content_changes import compare_contents

VERSIONS = st.lists(st.tuples(st.sampled_from(["test", "train"]), st.sampled_from("abcdef")), max_size=12)


def version(*digests: str, split: str = "train", shard: int = 0) -> list[tuple[str, str]]:
    return [(f"toy/1.0.0:{split}:{shard:05d}@{at}", digest) for at, digest in enumerate(digests)]


def test_one_is_removed_one_is_changed_and_one_is_added():
    changes = compare_contents(version(*"abcdef"), version(*"bcXefY", shard=1))
    assert (changes.equal, changes.number) == (4, 3)
    assert changes.removed == ("toy/1.0.0:train:00000@0",)
    assert changes.changed == (("toy/1.0.0:train:00000@3", "toy/1.0.0:train:00001@2"),)
    assert changes.added == ("toy/1.0.0:train:00001@5",)


def test_other_shards_another_order_and_copies_are_compared_by_content():
    assert compare_contents(version(*"abca"), version(*"acab", shard=4)).number == 0
    copies = compare_contents(version(*"aab"), version(*"ab"))
    assert (copies.equal, len(copies.removed), copies.number) == (2, 1, 1)


def test_an_episode_in_another_split_has_moved():
    changes = compare_contents(version(*"ab"), [*version("a"), *version("b", split="test")])
    assert changes.moved == (("toy/1.0.0:train:00000@1", "toy/1.0.0:test:00000@0"),) and changes.number == 1


@given(VERSIONS, VERSIONS)
def test_every_episode_is_counted_once(first, second):
    versions = [
        [(f"toy/1.0.0:{split}:00000@{at}", digest) for at, (split, digest) in enumerate(sorted(listed))]
        for listed in (first, second)
    ]
    changes = compare_contents(*versions)
    both = len(changes.changed) + len(changes.moved) + changes.equal
    assert both + len(changes.removed) == len(first) and both + len(changes.added) == len(second)
    assert (changes.number == 0) == (Counter(first) == Counter(second))
    old = [*changes.removed, *(pair[0] for pair in (*changes.changed, *changes.moved))]
    assert len({*old}) == len(old) and {*old} <= {key for key, _ in versions[0]}
