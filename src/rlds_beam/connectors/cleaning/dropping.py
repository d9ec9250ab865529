"""Connectors that leave out what is not to be learned from: steps without an action, failed and unlabelled episodes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.connectors.cleaning.keeping_steps import keep_steps
from rlds_beam.connectors.fields import StepFields
from rlds_beam.episodes.columns import is_numeric
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.nesting import all_below
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.text import did_you_mean


@dataclasses.dataclass(frozen=True)
class DropNoOpSteps(EpisodeConnector):
    """Leaves out steps whose action does nothing, as OpenVLA's LIBERO datasets were made (`*_no_noops`).

        |action[:-1]|   0.0   0.3   0.0   0.0   0.2
        action[-1]      -1    -1    -1     1     1       the gripper
        kept                  1            3     4       step 2 moves nothing; step 3 closes the gripper

    A step is left out where the norm of its action without the gripper is below `threshold`, and the gripper's value is
    that of the last step that was kept; before one is kept, the norm alone counts. An episode without any other step is
    dropped. Rewards of steps that are left out are added to that of the transition before, and discounts are
    multiplied, so that the return and a discount of 0 at the end are kept. The last step that is kept takes over the
    end of the episode (`is_last`, `is_terminal`); its own reward and discount are void.

    Attributes:
      threshold: of the norm.
      action: the field of the action, one array; by default that of `fields`.
      gripper: the index of the gripper in it; None where there is none.
      keep_last: keep the last step whatever its action is: where that is void, as RLDS says. Robot datasets often have
        an action there.
    """

    threshold: float = 1e-4
    action: str | None = None
    gripper: int | None = -1
    keep_last: bool = False

    def edit(self, episode: Episode, fields: StepFields) -> Episode | list[Episode]:
        actions = vectors(episode, self.action or fields.actions, "DropNoOpSteps: action")
        arm = actions if self.gripper is None else np.delete(actions, self.gripper, axis=1)
        small = np.linalg.norm(arm.astype(np.float64), axis=1) < self.threshold
        noop = small.copy()
        if self.gripper is not None:
            # The last step that was kept has the gripper of the step before: one that is left out has the same.
            noop[1:] &= actions[1:, self.gripper] == actions[:-1, self.gripper]
        leading = len(small) if small.all() else int(np.argmin(small))
        noop[:leading] = True
        if noop.all():
            return []
        noop[-1] &= not self.keep_last
        return keep_steps(episode, np.flatnonzero(~noop), fields)


@dataclasses.dataclass(frozen=True)
class KeepSuccessful(EpisodeConnector):
    """Drops episodes that did not succeed, by a field that says so.

        field=success                                       False: dropped      True: kept
        field=episode_metadata/file_path, pattern=.*success.*
              "…/failure/2023-04-01"   dropped              "…/success/2023-04-01"   kept
        field=reward                                        0 0 0: dropped      0 0 1: kept

    Of a field of the steps, one value that is true (greater than 0, or matches) is enough. `.*success.*` is the pattern
    of openpi and others for DROID, `success` is where Open X-Embodiment's kuka has it.

    Attributes:
      field: of the episode (`episode_metadata/success`) or of the steps.
      pattern: a regular expression that the whole text has to match, for a field of text.
    """

    field: str = "success"
    pattern: str | None = None

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            raise UsageError(f"KeepSuccessful: pattern={self.pattern}: {error}") from None

    def edit(self, episode: Episode, fields: StepFields) -> Episode | list[Episode]:
        values = values_of(episode, self.field, "KeepSuccessful")
        if (values.dtype.kind in "OSU") != (self.pattern is not None):
            wrong = "holds text, and needs a pattern" if self.pattern is None else "holds no text for a pattern"
            raise UsageError(f"KeepSuccessful: {self.field} {wrong}")
        if self.pattern is None:
            return episode if (values > 0).any() else []
        compiled = re.compile(self.pattern, re.DOTALL)
        return episode if any(compiled.fullmatch(text_of(value)) for value in set(values.ravel().tolist())) else []


@dataclasses.dataclass(frozen=True)
class DropUnlabelled(EpisodeConnector):
    """Drops episodes without an instruction: those whose text is empty at every step.

        language_instruction     ""  ""  ""             dropped
        language_instruction     ""  "open it"  ""      kept

    As `skip_unlabeled` of OpenVLA and Octo.

    Attributes:
      fields: of text, of the steps or of the episode; one that is not empty is enough.
    """

    fields: Sequence[str] = ("language_instruction",)

    def edit(self, episode: Episode, fields: StepFields) -> Episode | list[Episode]:
        names = (self.fields,) if isinstance(self.fields, str) else self.fields
        columns = [values_of(episode, name, "DropUnlabelled").ravel().tolist() for name in names]
        return episode if any(text_of(value) for values in columns for value in set(values)) else []


@dataclasses.dataclass(frozen=True)
class DropFields(EpisodeConnector):
    """Leaves fields out of the steps and of the episode.

        fields=[observation/depth]      observation/rgb, observation/depth, action   ->   observation/rgb, action

    Attributes:
      fields: each with all below it.
    """

    fields: Sequence[str]

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        names = (self.fields,) if isinstance(self.fields, str) else self.fields
        gone: set[str] = set()
        for name in names:
            matching = [*all_below(episode.steps, name), *all_below(episode.metadata, name)]
            if not matching:
                known = [*episode.steps, *episode.metadata]
                raise UsageError(f"DropFields: there is no field {name}{did_you_mean(name, known)}")
            gone.update(matching)
        return episode.replace(
            steps={path: column for path, column in episode.steps.items() if path not in gone},
            metadata={path: value for path, value in episode.metadata.items() if path not in gone},
        )


def vectors(episode: Episode, path: str, what: str) -> np.ndarray[Any, Any]:
    """A step field as (T, D); raises UsageError where it is no array of numbers."""
    column = episode.steps.get(path)
    if column is None:
        raise UsageError(f"{what}={path}: there is no such step field, only {', '.join(episode.steps)}")
    if not is_numeric(column):
        raise UsageError(f"{what}={path}: it holds no numbers")
    values = np.asarray(column)
    return values.reshape(len(values), -1)


def values_of(episode: Episode, field: str, connector: str) -> np.ndarray[Any, Any]:
    """The values of a field: (T, ...) of the steps, or (1, ...) of the episode.

    Raises:
      UsageError: there is no such field, or it holds images.
    """
    if field in episode.steps:
        column = episode.steps[field]
        if isinstance(column, EncodedImages):
            raise UsageError(f"{connector}: {field} holds images")
        return column
    if field not in episode.metadata:
        known = [*episode.metadata, *episode.steps]
        raise UsageError(
            f"{connector}: there is no field {field}{did_you_mean(field, known)}; there are {', '.join(known)}"
        )
    value = episode.metadata[field]
    return np.array([value, None], object)[:-1] if isinstance(value, (str, bytes)) else np.asarray(value)[None]


def text_of(value: Any) -> str:
    """Text of a dataset, which is bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
