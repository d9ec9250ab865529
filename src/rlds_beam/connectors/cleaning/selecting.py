"""Selects episodes by a condition."""

from __future__ import annotations

import dataclasses
import functools

from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.connectors.cleaning.expressions import EpisodeCondition
from rlds_beam.connectors.fields import StepFields
from rlds_beam.episodes.episode import Episode


@dataclasses.dataclass(frozen=True)
class SelectEpisodes(EpisodeConnector):
    """Keeps the episodes for which a condition is true.

        where="episode_metadata.success and steps >= 30 and matches(last.language_instruction, '.*cup.*')"

        success       steps       language_instruction
        True          42          pick up the cup             kept
        True          12          pick up the cup             dropped

    A name is an episode field, with dots for slashes; use `field("a-b/c")` for names with other characters. `first.X`
    and `last.X` are a step field's values at the first and the last step; `steps` is the number of steps; `split`,
    `shard`, and `position` are where the episode was read. Operators: and, or, not, comparisons, in, + - * / %.
    Functions: matches(text, pattern), lower, len, abs.

    Attributes:
      where: the condition.
    """

    where: str

    def __post_init__(self) -> None:
        _condition(self.where)

    def edit(self, episode: Episode, fields: StepFields) -> Episode | list[Episode]:
        return episode if _condition(self.where).holds(episode) else []


@functools.lru_cache(maxsize=16)
def _condition(text: str) -> EpisodeCondition:
    return EpisodeCondition(text, "SelectEpisodes: where")
