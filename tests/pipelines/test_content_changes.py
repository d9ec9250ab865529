"""Differences between two versions of a dataset, by the digests of the episodes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.pipelines.compare import Digest, compare_contents

VERSIONS = st.lists(st.tuples(st.sampled_from(["test", "train"]), st.sampled_from("abcdef")), max_size=12)


def digests(records: list[tuple[str, str]], shard: int = 0) -> list[Digest]:
    """The digests of records, each with its split and its content."""
    return sorted((EpisodeKey("toy/1.0.0", split, shard, at), ord(text)) for at, (split, text) in enumerate(records))


def version(contents: str, split: str = "train", shard: int = 0) -> list[Digest]:
    return digests([(split, content) for content in contents], shard)


def test_one_is_removed_one_is_changed_and_one_is_added():
    equal, added, removed, changed = compare_contents(version("abcdef"), version("bcXefY", shard=1))
    assert equal == 4
    assert removed == ["toy/1.0.0:train:00000@0"]
    assert changed == [["toy/1.0.0:train:00000@3", "toy/1.0.0:train:00001@2"]]
    assert added == ["toy/1.0.0:train:00001@5"]


def test_other_shards_another_order_and_copies_are_compared_by_content():
    assert compare_contents(version("abca"), version("acab", shard=4)) == (4, [], [], [])
    equal, added, removed, changed = compare_contents(version("aab"), version("ab"))
    assert (equal, added, len(removed), changed) == (2, [], 1, [])


def test_an_episode_in_another_split_is_removed_and_added():
    _, added, removed, _ = compare_contents(version("ab"), [*version("b", split="test"), *version("a")])
    assert (removed, added) == (["toy/1.0.0:train:00000@1"], ["toy/1.0.0:test:00000@0"])


@given(VERSIONS, VERSIONS)
def test_every_episode_is_counted_once(first, second):
    versions = [digests(first), digests(second)]
    equal, added, removed, changed = compare_contents(*versions)
    assert len(changed) + equal + len(removed) == len(first)
    assert len(changed) + equal + len(added) == len(second)
    assert (added == removed == changed == []) == (Counter(first) == Counter(second))
    old = [*removed, *(pair[0] for pair in changed)]
    assert len({*old}) == len(old) and {*old} <= {str(key) for key, _ in versions[0]}
