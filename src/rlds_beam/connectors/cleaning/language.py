"""Rewrites the instructions of episodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.connectors.cleaning.dropping import text_of, values_of
from rlds_beam.connectors.fields import StepFields
from rlds_beam.encoding.checked_json import load_json
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError
from rlds_beam.user_functions import nothing_else, resolve

Relabel = Callable[[str, Mapping[str, Any]], str]


@dataclasses.dataclass(frozen=True)
class RelabelLanguage(EpisodeConnector):
    """Rewrites instructions, with a table or with a function.

        table={"pick up cup": "pick up the cup"}

        language_instruction     "pick up cup"   "pick up cup"         ->   "pick up the cup"   "pick up the cup"
        language_instruction     ""              ""                    ->   not in the table: see `missing`

        function=my_project.language:relabel       relabel("pick up cup", {"episode_metadata/task": b"…"}) -> text

    The function is called once per distinct text of an episode.

    Attributes:
      table: a mapping of old text to new text, or the path of a JSON file with one.
      function: a function of the text and the episode's fields that returns the new text, or its `module:function`.
      field: the text field, of the steps or of the episode.
      to: the field to write; by default `field`.
      missing: what to do with a text that is not in the table: `keep` it, `drop` the episode, or `fail`.
    """

    table: str | Mapping[str, str] | None = None
    function: str | Relabel | None = None
    field: str = "language_instruction"
    to: str | None = None
    missing: str = "keep"
    functions: ClassVar = {"function": nothing_else}

    def __post_init__(self) -> None:
        if (self.table is None) == (self.function is None):
            raise UsageError("RelabelLanguage: give a table or a function")
        if self.missing not in ("keep", "drop", "fail"):
            raise UsageError(f"RelabelLanguage: missing={self.missing}, expected keep, drop or fail")
        if isinstance(self.function, str):
            object.__setattr__(self, "function", resolve(self.function, "RelabelLanguage: function"))
        if isinstance(self.table, str):
            object.__setattr__(self, "table", _loaded(self.table))

    def edit(self, episode: Episode, fields: StepFields) -> Episode | list[Episode]:
        values = values_of(episode, self.field, "RelabelLanguage")
        new_texts: dict[Any, bytes] = {}
        for value in dict.fromkeys(values.ravel().tolist()):
            text = self._relabeled(text_of(value), episode)
            if text is None:
                return []
            new_texts[value] = text.encode()
        texts = np.fromiter((new_texts[value] for value in values.ravel().tolist()), object, values.size)
        to = self.field if self.to is None else self.to
        if self.field in episode.steps:
            return episode.with_columns({to: texts.reshape(values.shape)})
        return episode.replace(metadata={**episode.metadata, to: texts.reshape(values.shape)[0]})

    def _relabeled(self, text: str, episode: Episode) -> str | None:
        if self.function is not None:
            new_text = self.function(text, episode.metadata)  # type: ignore[operator]
            if not isinstance(new_text, str):
                raise UsageError(
                    f"RelabelLanguage: function returned {type(new_text).__name__} for {text!r}, expected str"
                )
            return new_text
        assert isinstance(self.table, Mapping)
        if text in self.table:
            return self.table[text]
        if self.missing == "fail" and not episode.key.of_probe:
            raise UsageError(f"RelabelLanguage: {episode.key}: {text!r} is not in the table")
        return None if self.missing == "drop" else text


def _loaded(path: str) -> dict[str, str]:
    try:
        content = load_json(path)
    except (OSError, UsageError) as error:
        raise UsageError(f"RelabelLanguage: table={path}: {error}") from error
    if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
        raise UsageError(f"RelabelLanguage: table={path}: expected a JSON object of text -> text")
    return content
