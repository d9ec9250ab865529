"""Differences between two versions of a dataset, by the digests of the episodes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rlds_beam.checking.content_changes import Digest, compare_contents
from rlds_beam.episodes.episode import EpisodeKey

VERSIONS = st.lists(st.tuples(st.sampled_from(["test", "train"]), st.sampled_from("abcdef")), max_size=12)


def digests(records: list[tuple[str, str]], shard: int = 0) -> list[Digest]:
    """The digests of records, each with its split and its content."""
    return sorted((EpisodeKey("toy/1.0.0", split, shard, at), ord(text)) for at, (split, text) in enumerate(records))


def version(contents: str, split: str = "train", shard: int = 0) -> list[Digest]:
    return digests([(split, content) for content in contents], shard)


def test_one_is_removed_one_is_changed_and_one_is_added():
    changes = compare_contents(version("abcdef"), version("bcXefY", shard=1))
    assert changes.equal == 4
    assert changes.removed == ("toy/1.0.0:train:00000@0",)
    assert changes.changed == (("toy/1.0.0:train:00000@3", "toy/1.0.0:train:00001@2"),)
    assert changes.added == ("toy/1.0.0:train:00001@5",)


def test_other_shards_another_order_and_copies_are_compared_by_content():
    assert compare_contents(version("abca"), version("acab", shard=4)) == (4, (), (), ())
    copies = compare_contents(version("aab"), version("ab"))
    assert (copies.equal, len(copies.removed), copies.added, copies.changed) == (2, 1, (), ())


def test_an_episode_in_another_split_is_removed_and_added():
    changes = compare_contents(version("ab"), [*version("b", split="test"), *version("a")])
    assert (changes.removed, changes.added) == (("toy/1.0.0:train:00000@1",), ("toy/1.0.0:test:00000@0",))


@given(VERSIONS, VERSIONS)
def test_every_episode_is_counted_once(first, second):
    versions = [digests(first), digests(second)]
    changes = compare_contents(*versions)
    assert len(changes.changed) + changes.equal + len(changes.removed) == len(first)
    assert len(changes.changed) + changes.equal + len(changes.added) == len(second)
    assert (changes.added == changes.removed == changes.changed == ()) == (Counter(first) == Counter(second))
    old = [*changes.removed, *(pair[0] for pair in changes.changed)]
    assert len({*old}) == len(old) and {*old} <= {str(key) for key, _ in versions[0]}
