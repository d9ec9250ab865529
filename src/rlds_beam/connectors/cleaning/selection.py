"""Selects episodes, steps, and fields: drops steps without an action, failed and unlabeled episodes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.connectors.fields import StepFields, check_new, match_fields
from rlds_beam.encoding.tfds.features import DTYPES
from rlds_beam.episodes.columns import all_below, below, find_changed, is_number, is_numeric
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.schema import SAMPLE_TIMES, SAMPLES, Field
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.text import did_you_mean
from rlds_beam.typing import Array
from rlds_beam.user_functions import resolve


@dataclasses.dataclass(frozen=True)
class DropNoOpSteps(EpisodeConnector, reads_images=False):
    """Drops steps whose action does nothing, as in OpenVLA's LIBERO datasets (`*_no_noops`).

        |action[:-1]|   0.0   0.3   0.0   0.0   0.2
        action[-1]      -1    -1    -1     1     1       the gripper
        kept                  1            3     4       step 2 moves nothing; step 3 closes the gripper

    A step is dropped if the norm of its action, without the gripper, is below `threshold`, and its gripper value equals
    that of the last kept step. Before the first kept step, only the norm counts. An episode with nothing but no-ops is
    dropped. The rewards of dropped steps are added to the transition before, and their discounts multiplied into it, so
    the return and a final discount of 0 are preserved. The last kept step ends the episode (`is_last`, `is_terminal`);
    its reward and discount are void.

    Attributes:
      threshold: the norm below which an action does nothing.
      action: the action field, a single array; by default `fields.actions`.
      gripper: the index of the gripper in the action; None if there is no gripper.
      keep_last: always keep the last step. Use it if the last action is void, as RLDS specifies; robot datasets often
        have a real action there.
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
            # A dropped step has the same gripper value as the last kept one, so compare neighbors.
            noop[1:] &= actions[1:, self.gripper] == actions[:-1, self.gripper]
        leading = len(small) if small.all() else int(np.argmin(small))
        noop[:leading] = True
        if noop.all():
            return []
        noop[-1] &= not self.keep_last
        return keep_steps(episode, np.flatnonzero(~noop), fields)


@dataclasses.dataclass(frozen=True)
class KeepSuccessful(EpisodeConnector, reads_images=False):
    """Drops unsuccessful episodes, according to a field.

        field=success                                       False: dropped      True: kept
        field=episode_metadata/file_path, pattern=.*success.*
              "…/failure/2023-04-01"   dropped              "…/success/2023-04-01"   kept
        field=reward                                        0 0 0: dropped      0 0 1: kept

    For a step field, one true value (greater than 0, or a match) is enough. openpi and others use the pattern
    `.*success.*` for DROID; kuka of Open X-Embodiment has the field `success`.

    Attributes:
      field: an episode field (`episode_metadata/success`) or a step field.
      pattern: for text fields, a regular expression that must match the whole text.
    """

    field: str = "success"
    pattern: str | None = None

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            raise UsageError(f"KeepSuccessful: pattern={self.pattern}: {error}") from None

    def edit(self, episode: Episode, fields: StepFields) -> Episode | list[Episode]:
        values = read_values(episode, self.field, "KeepSuccessful")
        if (values.dtype.kind in "OSU") != (self.pattern is not None):
            wrong = "holds text: give a pattern" if self.pattern is None else "does not hold text: remove pattern"
            raise UsageError(f"KeepSuccessful: {self.field} {wrong}")
        if self.pattern is None:
            return episode if (values > 0).any() else []
        compiled = re.compile(self.pattern, re.DOTALL)
        return episode if any(compiled.fullmatch(decode_text(value)) for value in set(values.ravel().tolist())) else []


@dataclasses.dataclass(frozen=True)
class DropUnlabeled(EpisodeConnector, reads_images=False):
    """Drops episodes without an instruction: those whose text is empty at every step.

        language_instruction     ""  ""  ""             dropped
        language_instruction     ""  "open it"  ""      kept

    Equals `skip_unlabeled` of OpenVLA and Octo.

    Attributes:
      fields: the text fields, of the steps or of the episode; one non-empty text is enough.
    """

    fields: Sequence[str] = ("language_instruction",)

    def edit(self, episode: Episode, fields: StepFields) -> Episode | list[Episode]:
        names = (self.fields,) if isinstance(self.fields, str) else self.fields
        columns = [read_values(episode, name, "DropUnlabeled").ravel().tolist() for name in names]
        return episode if any(decode_text(value) for values in columns for value in set(values)) else []


@dataclasses.dataclass(frozen=True)
class DropFields(EpisodeConnector):
    """Removes fields from the steps and from the episode.

        fields=[observation/depth]      observation/rgb, observation/depth, action   ->   observation/rgb, action

    Attributes:
      fields: the fields to remove, each with everything below it.
    """

    fields: Sequence[str]

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        names = (self.fields,) if isinstance(self.fields, str) else self.fields
        gone: set[str] = set()
        for name in names:
            gone.update(match_fields([*episode.steps, *episode.metadata], name, "DropFields"))
        return episode.replace(
            steps={path: column for path, column in episode.steps.items() if path not in gone},
            metadata={path: value for path, value in episode.metadata.items() if path not in gone},
        )


_COMPANION = re.compile("(/.+)?_(intrinsics|distortion(_model)?|frame_id|extrinsics(_base)?|samples|sample_times)")
"""Ends the name of a field that belongs to another: to a camera by its calibration, or to a fast signal."""


def find_windows(steps: Collection[str]) -> list[str]:
    """The fields of windows of signals that are faster than the steps."""
    return [path for path in steps if f"{path}{SAMPLES}" in steps and f"{path}{SAMPLE_TIMES}" in steps]


@dataclasses.dataclass(frozen=True)
class RenameFields(EpisodeConnector):
    """Renames fields of the steps and of the episode, each with everything below it. The values stay as they are.

        fields={observation/image_0: observation/front, observation/qpos: observation/state}

    The calibration of a camera (`episode_metadata/observation/image_0_intrinsics`), and the counts and times of the
    windows of a signal (`observation/imu_samples`) follow.

    Attributes:
      fields: old path -> new path. Of several that fit, the longest counts.
    """

    fields: Mapping[str, str]

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        for old in self.fields:
            match_fields([*episode.steps, *episode.metadata], old, "RenameFields")
        steps = {self._rename(path): column for path, column in episode.steps.items()}
        metadata = {self._rename(path): value for path, value in episode.metadata.items()}
        if len(steps) < len(episode.steps) or len(metadata) < len(episode.metadata):
            raise UsageError(f"RenameFields: two fields would have one name: {', '.join(self.fields.values())}")
        return episode.replace(steps=steps, metadata=metadata)

    def _rename(self, path: str) -> str:
        for old in sorted(self.fields, key=len, reverse=True):
            for name in (path, path.removeprefix("episode_metadata/")):
                if below(path, old) or (name.startswith(old) and _COMPANION.fullmatch(name[len(old) :])):
                    return path.removesuffix(name) + self.fields[old] + name[len(old) :]
        return path


@dataclasses.dataclass(frozen=True)
class AddField(EpisodeConnector, reads_images=False):
    """Adds a field with the same value in all steps, for example one that other datasets have.

        field=language_instruction, value=pick up the cube
        field=reward, value=0.0

    Attributes:
      field: the new field.
      value: a text, a number, true or false, or a list of numbers.
      dtype: the dtype of numbers; by default float32 for floats, int64 for integers, bool for true and false.
    """

    field: str
    value: str | bool | float | Sequence[float]
    dtype: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.value, str):
            return
        if self.dtype is not None and (self.dtype not in DTYPES or self.dtype == "string"):
            raise UsageError(f"AddField: dtype={self.dtype} is no dtype of numbers{did_you_mean(self.dtype, DTYPES)}")
        value = np.asarray(self.value)
        if not is_number(value.dtype) or find_changed(value, self._array, rounding=True).any():
            raise UsageError(f"AddField: value={self.value}: expected a text, or numbers of {self._array.dtype}")

    @property
    def _array(self) -> Array:
        """The numbers in their dtype."""
        value = np.asarray(self.value)
        if not is_number(value.dtype):
            return value
        dtype = self.dtype or ("float32" if value.dtype.kind == "f" else value.dtype.name)
        with np.errstate(all="ignore"):
            return value.astype(Field(self.field, dtype).numpy_dtype)

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        check_new(self.field, episode.steps, "AddField: field")
        if isinstance(self.value, str):
            return episode.with_columns({self.field: np.full(len(episode), self.value.encode(), object)})
        return episode.with_columns({self.field: np.broadcast_to(self._array, (len(episode), *self._array.shape))})


def vectors(episode: Episode, path: str, what: str) -> np.ndarray[Any, Any]:
    """A step field as (T, D); raises UsageError if it is not an array of numbers."""
    column = episode.steps.get(path)
    if column is None:
        raise UsageError(f"{what}={path}: no such step field; there are {', '.join(episode.steps)}")
    if not is_numeric(column):
        raise UsageError(f"{what}={path}: the field does not hold numbers")
    values = np.asarray(column)
    return values.reshape(len(values), -1)


def read_values(episode: Episode, field: str, connector: str) -> np.ndarray[Any, Any]:
    """The values of a field: (T, ...) for a step field, (1, ...) for an episode field.

    Raises:
      UsageError: the field does not exist, or holds images.
    """
    if field in episode.steps:
        column = episode.steps[field]
        if isinstance(column, EncodedImages):
            raise UsageError(f"{connector}: {field} holds images")
        return column
    if field not in episode.metadata:
        match_fields([*episode.metadata, *episode.steps], f"{field}", connector)
        raise UsageError(f"{connector}: {field} is a group of fields; name one of them")
    value = episode.metadata[field]
    return np.array([value, None], object)[:-1] if isinstance(value, (str, bytes)) else np.asarray(value)[None]


def decode_text(value: Any) -> str:
    """Decodes the text of a dataset, which is stored as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


@dataclasses.dataclass(frozen=True)
class SelectEpisodes(EpisodeConnector):
    """Keeps the episodes for which a function returns true.

        function=my_project.selection:is_long       is_long(episode) -> bool

        success       steps       language_instruction
        True          42          pick up the cup             kept
        True          12          pick up the cup             dropped

    Attributes:
      function: a function of the episode, or its `module:function`. A file can only name functions that are marked with
        `configurable`.
    """

    function: str | Callable[[Episode], Any]
    functions: ClassVar = {"function": None}

    def __post_init__(self) -> None:
        if isinstance(self.function, str):
            object.__setattr__(self, "function", resolve(self.function, "SelectEpisodes: function"))

    def edit(self, episode: Episode, fields: StepFields) -> Episode | list[Episode]:
        return episode if self.function(episode) else []  # type: ignore[operator]


_DISCOUNT = "discount"
_WIDE = {"b": np.int64, "i": np.int64, "u": np.uint64}


def keep_steps(episode: Episode, kept: Array, fields: StepFields) -> Episode | list[Episode]:
    """Keeps the steps at the indices `kept`: `[]` if there are none, the episode itself if all are kept.

    step        0   1   2   3   4 (last)        kept        1           3
    reward      r0  r1  r2  r3  void            reward      r0+r1+r2+r3 void
    discount    d0  d1  d2  d3  void            discount    d0*d1*d2*d3 void
    is_first    T   F   F   F   F               is_first    T           F
    is_last     F   F   F   F   T               is_last     F           T

    Skipped transitions are merged into the kept transition before them, or into the first one: rewards are added
    without discounting, and discounts are multiplied. So the episode's return and the product of its discounts do not
    change, and a terminated episode still ends with discount 0. The last kept step ends the episode: `is_last`,
    `is_terminal`, and void reward and discount; if the last action is real, the sum and product from it on. A single
    kept step gets the whole sum and product.

    Raises:
      UsageError: a sum overflows the dtype of the reward.
    """
    if not len(kept):
        return []
    if len(kept) == len(episode):
        return episode
    steps: dict[str, Column] = {path: column[kept] for path, column in episode.steps.items()}
    starts = kept.copy()
    if not episode.last_action_is_real:
        starts[-1] = len(episode) - 1
    starts[0] = 0
    for path in all_below(episode.steps, fields.rewards):
        steps[path] = merge_steps(episode, path, starts, np.add, steps[path])
    if _DISCOUNT in steps:
        steps[_DISCOUNT] = merge_steps(episode, _DISCOUNT, starts, np.multiply, steps[_DISCOUNT])
    for path, at in (("is_first", 0), ("is_last", -1), ("is_terminal", -1)):
        if path in steps:
            steps[path] = with_value(steps[path], at, bool(np.asarray(episode.steps[path])[at]))
    return episode.replace(steps=steps)


def slice_steps(episode: Episode, start: int, stop: int, *, terminated: bool = False) -> Episode:
    """Returns the steps `start:stop` as an episode, truncated if it ends before the recorded one.

    Args:
      terminated: end it terminated instead.
    """
    if (start, stop) == (0, len(episode)):
        return episode
    part = episode.slice(start, stop)
    steps = dict(part.steps)
    if "is_first" in steps:
        steps["is_first"] = with_value(steps["is_first"], 0, True)
    return part.replace(
        steps=end_episode(steps, terminated=terminated, real=part.last_action_is_real) if stop < len(episode) else steps
    )


def end_episode(steps: Mapping[str, Column], *, terminated: bool, real: bool = False) -> dict[str, Column]:
    """Ends an episode at the last of these steps, which was inside a longer episode.

    The discount of the step into a terminal state is 0. The void discount of the last step of a truncated episode is 0
    if it was the cut-off terminal transition; it becomes 1.
    """
    ended_steps = dict(steps)
    for path, value in (("is_last", True), ("is_terminal", terminated)):
        if path in ended_steps:
            ended_steps[path] = with_value(ended_steps[path], -1, value)
    if _DISCOUNT in ended_steps:
        discount = np.array(ended_steps[_DISCOUNT])
        if terminated:
            discount[-1 if real else -2 :] = 0
        discount[-1:][discount[-1:] == 0] = not terminated
        ended_steps[_DISCOUNT] = discount
    return ended_steps


def with_value(flags: Column, at: int, value: bool) -> Array:
    """A copy of the flags with a new value at one step."""
    changed = np.array(flags)
    changed[at] = value
    return changed


def merge_steps(episode: Episode, path: str, starts: Array, merge: np.ufunc, kept: Column) -> Column:
    """A field's values, merged from each of `starts` to the next; the kept steps' values if they are not numbers."""
    column = episode.steps[path]
    if isinstance(column, EncodedImages) or not (is_numeric(column) or column.dtype == np.bool_):
        return kept
    merged = merge.reduceat(column.astype(_WIDE.get(column.dtype.kind, np.float64)), starts, axis=0)
    with np.errstate(over="ignore"):
        narrow: Array = merged.astype(column.dtype)
    exact = column.dtype.kind in _WIDE
    if (narrow != merged).any() if exact else (np.isinf(narrow.astype(np.float64)) & np.isfinite(merged)).any():
        raise UsageError(f"{episode.key}: {path}: the sum of the skipped steps overflows {column.dtype}")
    return narrow
