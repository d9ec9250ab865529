"""Counts what a connector did to the episodes of a record, by comparing its input with its output."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, cast

from rlds_beam.connectors.base import Batch, Connector, name_of
from rlds_beam.connectors.cleaning.listing import list_of
from rlds_beam.connectors.connected import Connected
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.text import shorten


def count_changes(connector: Connector, before: Batch, after: Batch) -> Connected:
    """Returns what a connector did to a batch.

    A column counts as unchanged if it is the same object. Values are not compared, so this is cheap.
    """
    episodes = list_of(connector)
    of_key: dict[Any, Episode] = {episode.key: episode for episode in before.episodes}
    changed, fields = 0, set[str]()
    for episode in after.episodes:
        same = of_key.get(episode.key)
        if same is episode:
            continue
        paths = None if same is None or len(same) != len(episode) else _find_changed(same, episode)
        changed += paths is None or bool(paths)
        fields |= paths or set()
    added = {name for columns in after.columns for name in columns}
    known = {name for columns in before.columns for name in columns}
    return Connected(
        name=name_of(connector),
        arguments=_arguments(connector),
        episodes_in=len(before.episodes),
        episodes_out=len(after.episodes),
        steps_in=sum(map(len, before.episodes)),
        steps_out=sum(map(len, after.episodes)),
        dropped=sum(after.dropped.values()) - sum(before.dropped.values()),
        changed=changed,
        fields=tuple(sorted(fields)),
        columns=tuple(sorted(added - known)),
        listed=None if episodes is None else episodes.counts(of_key),
    )


def counted_rejected(connectors: Sequence[Connector], key: EpisodeKey) -> tuple[Connected, ...]:
    """The counts of connectors that a record does not reach: lists of episodes still find its key."""
    lists = [list_of(connector) for connector in connectors]
    while lists and lists[-1] is None:
        lists.pop()
    return tuple(
        Connected(name_of(one), _arguments(one), listed=None if episodes is None else episodes.counts([key], True))
        for one, episodes in zip(connectors, lists, strict=False)
    )


def _find_changed(one: Episode, other: Episode) -> set[str]:
    """The fields whose values are different objects."""
    return _differ(one.steps, other.steps) | _differ(one.metadata, other.metadata)


def _differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    if one is other:
        return set()
    return {path for path in one.keys() | other.keys() if one.get(path) is not other.get(path)}


@functools.lru_cache(maxsize=64)
def _arguments_of(connector: Hashable) -> str:
    return _describe(connector)


def _arguments(connector: Connector) -> str:
    try:
        return _arguments_of(cast(Hashable, connector))
    except TypeError:  # it cannot be hashed
        return _describe(connector)


def _describe(connector: object) -> str:
    if not dataclasses.is_dataclass(connector) or isinstance(connector, type):
        return ""
    given = []
    for field in dataclasses.fields(connector):
        value = getattr(connector, field.name, None)
        default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        if field.repr and isinstance(value, (bool, int, float, str, tuple, list)) and value != default:
            given.append(f"{field.name}={value!r}")
    text = ", ".join(given)
    return shorten(text, 60)
