"""Frames: the steps of an episode as TF-Agents `Trajectory` leaves, columnar.

A frame holds one step: observation, action, reward, and the step types of this step and the next one. For an episode
of T steps whose last action is void (n = T):

    frame            0      1 ... n-2     n-1 (the boundary)
    step_type        FIRST  MID           LAST
    next_step_type   MID    MID, LAST     FIRST

and (LAST, LAST) for an episode of one step. Observation, action, reward, and discount are those of the step, except for
the discount of a terminal episode:

- `terminal_discount=boundary`: 0 on frame n-1. Bit-identical to TF-Agents' `convert_rlds_to_trajectories`.
- `terminal_discount=transition`: also 0 on frame n-2, which steps into the terminal state. TF-Agents trains on the
  discount of frame t for the step from t to t+1 and masks the boundary, so this 0 stops bootstrapping at the end.

If it is real (`Episode.last_action_is_real`, or `last_step=keep`), one step is added first, and these rules apply to
the T + 1 steps. The recorded last step becomes an ordinary one whose action and reward are trained on, and the added
step gets `is_last`. Its observation was not recorded: it repeats the last one with zero action and reward, so the last
transition of a truncated episode bootstraps from the last observed state. In a terminal episode, `transition` puts the
0 on the recorded last step. With `last_step=absorbing`, the step added to a terminal episode is all zeros, the
absorbing state of RLDS's `concat_if_terminal`.

A record may carry fields besides its trajectory (`--keep`): text, episode metadata, and the episode's key.

They are not in the `.spec`, so TF-Agents ignores them; TFDS and `load_trajectories(kept=True)` read them. A step field
has one value per frame of an item. An episode field has one value per item: with `across_episodes`, the value of its
first frame's episode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from rlds_beam.encoding.example.rows import BYTES_LIST, FLOAT_LIST, INT64_LIST, bytes_entry, entry_head
from rlds_beam.encoding.wire import packed_varints
from rlds_beam.episodes.columns import (
    all_below,
    below,
    concatenate,
    is_text,
    text_bytes,
    with_final_observation,
    zeros_like,
)
from rlds_beam.episodes.episode import EPISODE_KEY, Column, Episode, EpisodeKey
from rlds_beam.episodes.schema import FIRST, LAST, MID, Field, Schema
from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean
from rlds_beam.trajectories.leaves import cast_columns, layout, policy_info_columns
from rlds_beam.trajectories.options import CASTS, FrameOptions
from rlds_beam.typing import Array

AnyColumn = TypeVar("AnyColumn", bound=Column)

LISTS = {"float32": FLOAT_LIST, "int64": INT64_LIST}
"""dtype -> field of tf.train.Feature; other dtypes that TF-Agents reads (`CASTS`) are raw bytes."""

_FLAGS = ("discount", "is_last", "is_terminal")


@dataclasses.dataclass(frozen=True)
class Frames:
    """The frames of one episode (or of a piece of a stream of episodes).

    Attributes:
      columns: path of a `Trajectory` leaf -> column with leading axis n, in the order in which `tf.nest` flattens a
        `Trajectory`: `step_type` int32, `observation[/...]`, `action[/...]`, `policy_info[/...]`, `next_step_type`
        int32, `reward[/...]`, `discount` float32 (always one scalar per frame). The others have the dtype and shape of
        the data. Images stay encoded; an added image of zeros is `columns.ZERO_IMAGE`. Columns are often views: never
        write into them.
      key: the key of the (last) episode.
      kept: the columns that items carry besides the trajectory (`Kept`), by path, with leading axis n.
    """

    columns: Mapping[str, Column]
    key: EpisodeKey
    kept: Mapping[str, Column] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        """The number of frames, n."""
        return len(next(iter(self.columns.values())))

    def __getitem__(self, path: str) -> Column:
        return self.columns[path]

    def slice(self, start: int, stop: int | None = None) -> Frames:
        """Returns the frames `start:stop` (views)."""
        columns, kept = (
            {path: column[start:stop] for path, column in part.items()} for part in (self.columns, self.kept)
        )
        return dataclasses.replace(self, columns=columns, kept=kept)

    def append(self, other: Frames) -> Frames:
        """Returns these frames followed by those of `other`, with the key of `other`."""
        columns = {path: concatenate([column, other[path]]) for path, column in self.columns.items()}
        kept = {path: concatenate([column, other.kept[path]]) for path, column in self.kept.items()}
        return dataclasses.replace(other, columns=columns, kept=kept)


def padding_frames(path: str, column: AnyColumn, count: int) -> AnyColumn:
    """Returns `count` padding frames for the leaf at `path`: zeros, except that the step type is LAST.

    Their next_step_type, 0, is FIRST, so learners treat a padding frame as a boundary.
    """
    padding = zeros_like(column, count)
    if path == "step_type":
        cast(Array, padding)[:] = LAST
    return cast(AnyColumn, padding)


def pad_column(path: str, column: AnyColumn, count: int) -> AnyColumn:
    """Appends `count` padding frames to a column; returns the column itself if `count` is 0."""
    return cast(AnyColumn, concatenate([column, padding_frames(path, column, count)])) if count else column


def frame_count(episode: Episode, options: FrameOptions) -> int:
    """The number of frames n of an episode."""
    return len(episode) + _adds_step(episode, options)


def _adds_step(episode: Episode, options: FrameOptions) -> bool:
    return episode.last_action_is_real if options.last_step is None else options.last_step != "drop"


def to_frames(episode: Episode, options: FrameOptions, keep: Sequence[Kept] = ()) -> Frames:
    """Converts a valid episode (`validate_episode` found nothing) to frames; see the module's docstring.

    Text fields of the observation are left out (`trajectory_spec` lists them). Unchanged data is not copied.

    Args:
      keep: the fields that the frames carry besides the trajectory.

    Raises:
      UsageError: an option names a field that does not exist or is text, the steps lack a required field, or
        `policy_info_fn` cannot be imported or returns the wrong type.
      BadEpisode: a cast would change a value.
      RldsBeamError: `policy_info_fn` raised.
    """
    steps = episode.steps
    plan = layout(tuple(steps), tuple(p for p, c in steps.items() if is_text(c)), options)
    if _adds_step(episode, options):
        if options.policy_info_fn is None:  # it may read any field
            used = {*plan.observation, *plan.action, *plan.reward, *(path for _, path in plan.policy_info), *_FLAGS}
            used |= {entry.field.path for entry in keep if entry.of_step}
            steps = {path: column for path, column in steps.items() if path in used}
        longer = episode.replace(steps=steps, last_action_is_real=True)
        steps = with_final_observation(longer, absorbing=options.last_step == "absorbing").steps
    frames = len(steps["discount"])
    types = np.full(frames + 1, MID, np.int32)
    types[0], types[frames - 1], types[frames] = FIRST, LAST, FIRST
    policy_info: Mapping[str, Column] = {path: steps[source] for path, source in plan.policy_info}
    if options.policy_info_fn:
        policy_info = policy_info_columns(options.policy_info_fn, steps, policy_info, episode.key)
    discounts = cast(Array, steps["discount"]).astype(np.float32, copy=False).reshape(frames)
    if cast(Array, steps["is_terminal"])[-1]:
        discounts = discounts.copy()
        discounts[-2 if options.terminal_discount == "transition" else -1 :] = 0
    columns: dict[str, Column] = {"step_type": types[:frames]}
    columns |= {path: steps[path] for path in (*plan.observation, *plan.action)}
    columns |= policy_info
    columns["next_step_type"] = types[1:] if frames > 1 else types[:1]
    columns |= {path: steps[path] for path in plan.reward}
    columns["discount"] = discounts
    if options.cast:
        void = dict.fromkeys((*plan.action, *plan.reward), 1)  # the last step is `is_last`
        columns = cast_columns(columns, options.casts, void)
    kept = {entry.field.path: entry.column(episode, steps, frames) for entry in keep}
    return Frames(columns, episode.key, kept)


@dataclasses.dataclass(frozen=True)
class Kept:
    """A kept field.

    Attributes:
      field: the path in a record, and the dtype and shape of one value.
      of_step: whether each frame has a value.
    """

    field: Field
    of_step: bool

    def record_field(self, item_shape: tuple[int | None, ...]) -> Field:
        """The field in a record: encoding `none` (a list of values, including text) or `bytes`."""
        shape = (*item_shape, *self.field.shape) if self.of_step else self.field.shape
        encoding = "none" if self.field.dtype in (*LISTS, "string") else "bytes"
        return Field(self.field.path, self.field.dtype, shape, encoding)

    def column(self, episode: Episode, steps: Mapping[str, Column], frames: int) -> np.ndarray[Any, Any]:
        """The values [frames, ...]; an episode field is repeated for each frame."""
        if self.of_step:
            return np.asarray(steps[self.field.path])
        key = self.field.path == EPISODE_KEY
        value = str(episode.key).encode() if key else episode.metadata[self.field.path]
        if self.field.dtype == "string" and not self.field.shape:
            column = np.empty(frames, object)
            column[:] = [value] * frames
            return column
        array = np.asarray(value, self.field.numpy_dtype)
        return np.broadcast_to(array, (frames, *array.shape))

    def entry(self, values: np.ndarray[Any, Any]) -> bytes:
        """The entry of Features.feature for the values of one item."""
        path, dtype = self.field.path, self.field.dtype
        if dtype == "string":
            return bytes_entry(path, [text_bytes(value, path) for value in values.reshape(-1)])
        packed = packed_varints(values.reshape(-1)) if dtype == "int64" else np.ascontiguousarray(values).tobytes()
        return entry_head(path, LISTS.get(dtype, BYTES_LIST), len(packed)) + packed


def keep_fields(names: Iterable[str], schema: Schema, leaves: Iterable[str]) -> tuple[Kept, ...]:
    """Resolves `--keep`: step fields, episode fields, groups of either, or `episode_key`.

    Args:
      leaves: the paths of the trajectory.

    Raises:
      UsageError: a field does not exist, is already in the trajectory, or cannot be stored in a record.
    """
    kept: dict[str, Kept] = {}
    for name in names:
        matching = [Kept(schema.steps[path], True) for path in all_below(schema.steps, name)]
        matching += [Kept(schema.metadata[path], False) for path in all_below(schema.metadata, name)]
        if name == EPISODE_KEY and not matching:
            matching = [Kept(Field(EPISODE_KEY, "string"), False)]
        if not matching:
            known = [EPISODE_KEY, *schema.steps, *schema.metadata]
            longer = [path for path in known if path.endswith(f"/{name}")]
            hint = f"; did you mean {longer[0]}?" if longer else did_you_mean(name, known, most=3) or "."
            raise UsageError(f"--keep={name}: there is no such field{hint} The fields are: {', '.join(known)}")
        kept |= {entry.field.path: entry for entry in matching}
    taken = {*leaves}
    for path, chosen in kept.items():
        if any(below(leaf, path) or below(path, leaf) for leaf in taken):
            raise UsageError(f"--keep={path}: the trajectory already has a leaf of that name")
        field = chosen.field
        if field.dtype not in (*CASTS, "bool", "string") or field.holds_image_files or None in field.shape:
            raise UsageError(f"--keep={path}: only text and numbers of a fixed shape can be kept, not {field}")
    return tuple(kept.values())


def kept_entries(kept: Sequence[Kept], columns: Mapping[str, Column], index: np.ndarray[Any, Any]) -> bytes:
    """The entries of one item with frames `index` (negative: padding)."""
    entries = []
    for member in kept:
        column = np.asarray(columns[member.field.path])
        values = column[index if member.of_step else index[:1]]
        if member.of_step:
            values[index < 0] = b"" if member.field.dtype == "string" else 0
        entries.append(member.entry(values))
    return b"".join(entries)
