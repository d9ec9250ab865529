"""Reads an episode by its profile, and decodes it."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rlds_beam.episodes.columns import exact_cast, exact_flags, find_changed, zeros_of
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field, Schema, by_path, episode_flags, is_name, text_field
from rlds_beam.errors import BadEpisode, Violation
from rlds_beam.formats.arrays.array_episodes import (
    FLAG_FIELDS,
    NO_REWARD,
    ArrayDecoder,
    Arrays,
    discounts,
    number_field,
    with_last,
)
from rlds_beam.formats.arrays.parts import as_images, encode_frames
from rlds_beam.formats.profiles.binding import Bound, bind, find_fact, find_text, row_bytes, with_true_names
from rlds_beam.formats.profiles.containers import Container, JoinedArrays, Leaf
from rlds_beam.formats.profiles.environments import known_environment
from rlds_beam.formats.profiles.model import RECORDED, TO_OBSERVATION, Profile
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import LastAction
from rlds_beam.typing import Array

TEXT = "language_instruction"
_NONE = Leaf((), np.dtype(object))
_STEPS, _FINAL, _EPISODE, _WHERE, _TERMINAL, _ENDED = "steps/", "final/", "episode/", "where", "terminal", "ended"
_PIECE = 32 << 20  # bytes of pixels held at once


@dataclasses.dataclass(frozen=True)
class Layout:
    """A profile bound to the arrays of the first episode.

    Attributes:
      profile: the profile.
      bound: the step fields.
      schema: the schema.
      masks: the names of the filter keys.
      notes: what a user should know about the conversion.
      fps, robot: see `Source`: what the first episode says, or the profile.
      dataset: the dataset's name, if the data says it.
    """

    profile: Profile
    bound: tuple[Bound, ...]
    schema: Schema
    masks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    fps: float | None = None
    robot: str | None = None
    dataset: str = ""

    @property
    def final(self) -> bool:
        """Whether an episode has a last step with a void action."""
        return self.profile.last_step in ("added", RECORDED) or any(binding.final for binding in self.bound)

    @property
    def last_action(self) -> LastAction:
        """See `Source`. Of D4RL's truncated episodes, the last recorded action leads to no known observation."""
        profile = self.profile
        void = self.final or profile.actions == TO_OBSERVATION or profile.last_step == "added_if_terminal"
        return "void" if void else "real"


def bind_layout(profile: Profile, first: Container, raw_images: str, masks: tuple[str, ...] = ()) -> Layout:
    """Binds a profile to an episode. Raises UsageError if the episode lacks what the profile needs."""
    first = _join(first, profile)
    leaves = first.leaves
    named = dataclasses.replace(profile, fields=tuple(with_true_names(rule, first) for rule in profile.fields))
    bound, skipped = bind(named, leaves, lambda name: first.read(name, slice(0, 1))[0], str(first))
    bound = tuple(_as_images(binding, raw_images) for binding in bound)
    notes = [*skipped]
    if profile.reward not in leaves:
        notes.append(NO_REWARD)
    if profile.channels == "bgr":
        notes.append("images are BGR: use FlipChannels")
    fields = [*(binding.field for binding in bound), *_numbers(profile, leaves), *FLAG_FIELDS.values()]
    if find_text(profile, first) is not None:
        fields.append(text_field(TEXT))
    elif profile.text:
        notes.append("the first episode has no text of the task: there are no texts")
    metadata = [text_field("file"), *([text_field("group")] if first.group else [])]
    metadata += [_episode_field(name, values) for name, values in _metadata(profile, first)]
    metadata += [Field(f"mask/{name}", "bool") for name in masks]
    if profile.note:
        notes.append(profile.note.strip())
    if profile.left_out:
        notes.append(f"left out: {profile.left_out}")
    robot = _robot(profile, first)
    if not is_name(robot or ""):
        robot, notes = None, [*notes, "the robot's name cannot be shown: left out"]
    if known := known_environment(find_fact(profile, first, "environment")):
        notes.append(f"the rate is that of {known.name}")
    schema = Schema(by_path(fields, str(first)), by_path(metadata, str(first)))
    dataset = find_fact(profile, first, "name")
    dataset = dataset if isinstance(dataset, str) else ""
    return Layout(profile, bound, schema, masks, tuple(notes), _fps(profile, first), robot, dataset)


def _join(container: Container, profile: Profile) -> Container:
    """The container with the arrays that the profile joins; as it is if there are none."""
    names = [rule.dataset for rule in profile.fields if "+" in rule.dataset]
    names += [
        later + name.removeprefix(group)
        for name in names
        for group, later in profile.final.items()
        if name.startswith(f"{group}/")
    ]
    return JoinedArrays(container, names) if names else container


def _fps(profile: Profile, first: Container) -> float | None:
    fps, seconds, steps = (find_fact(profile, first, name) for name in ("fps", "step_seconds", "decimation"))
    if _is_rate(seconds) and _is_rate(steps):
        fps = round(1 / (seconds * steps), 6)
    elif known := known_environment(find_fact(profile, first, "environment")):
        fps = known.fps
    return fps if _is_rate(fps) else profile.fps


def _is_rate(number: Any) -> bool:
    return type(number) in (int, float) and 0 < number <= 1_000_000


def _robot(profile: Profile, first: Container) -> str | None:
    """The robot, or several joined by a comma."""
    robots = find_fact(profile, first, "robot")
    robots = [robots] if isinstance(robots, str) else robots
    known = isinstance(robots, list) and robots and all(isinstance(robot, str) for robot in robots)
    return ", ".join(robots[:8]) if known else profile.robot


def _numbers(profile: Profile, leaves: Mapping[str, Leaf]) -> Iterator[Field]:
    """The fields `reward` and `discount`."""
    for path, name in (("reward", profile.reward), ("discount", profile.discount)):
        yield number_field(path, leaves[name].dtype.name if name in leaves else "float32")


def _metadata(profile: Profile, container: Container) -> Iterator[tuple[str, Any]]:
    for name, place in profile.metadata.items():
        if container.has(place):
            yield name, container.attribute(place) if "@" in place else container.read(place)


def _episode_field(name: str, value: Any) -> Field:
    if isinstance(value, bytes) or value.dtype == object:
        return text_field(name, () if isinstance(value, bytes) else value.shape)
    return number_field(name, value.dtype.name, value.shape)


def read_episode(layout: Layout, container: Container, name: str, masks: Mapping[str, bool]) -> Arrays:
    """The arrays of an episode, as packed into its record.

    Args:
      layout: the fields.
      container: the episode.
      name: the file's name in the dataset.
      masks: for each filter key, whether it lists the episode.
    """
    container = _join(container, layout.profile)
    leaves, arrays = container.leaves, {}
    for binding in layout.bound:
        if binding.name in leaves:
            arrays[_STEPS + binding.field.path] = _rows(
                binding, container, binding.name, slice(binding.rule.start, binding.rule.stop)
            )
        if binding.final is not None and (*leaves.get(binding.final, _NONE).shape, 0)[0]:
            arrays[_FINAL + binding.field.path] = _rows(binding, container, binding.final, slice(-1, None))
    profile = layout.profile
    for path, own in (("reward", profile.reward), ("discount", profile.discount)):
        if own in leaves and path in layout.schema.steps:
            arrays[_STEPS + path] = container.read(own)
    arrays[_TERMINAL] = _terminal(profile, container)
    arrays[_ENDED] = np.array([container.ended]) if profile.per_file else _ends(profile, container)
    if TEXT in layout.schema.steps:
        arrays[_STEPS + TEXT] = _text(find_text(profile, container) or b"")
    for field, value in _metadata(profile, container):
        arrays[_EPISODE + field] = _text(value) if isinstance(value, bytes) else np.asarray(value)
    for mask in layout.masks:
        arrays[f"{_EPISODE}mask/{mask}"] = np.array(masks.get(mask, False))
    arrays[_EPISODE + "file"] = _text(name.encode("utf-8", "replace"))
    if "group" in layout.schema.metadata:
        arrays[_EPISODE + "group"] = _text(container.group.encode("utf-8", "replace"))
    arrays[_WHERE] = _text(f"{name}: {container.group}".rstrip(": ").encode("utf-8", "replace"))
    return arrays


def _as_images(binding: Bound, raw_images: str) -> Bound:
    field = as_images(binding.field, raw_images)
    return binding if field == binding.field else binding._replace(field=field, frames=field.encoding)


def _text(value: bytes) -> Array:
    return np.array([value, None], object)[:1]


def _rows(binding: Bound, container: Container, name: str, rows: slice) -> Array:
    """The values of a field. Frames of pixels become images by pieces, so a long episode is never held as pixels."""
    leaf = container.leaves[name]
    count = (*leaf.shape, 0)[0]
    start, stop, _ = rows.indices(count)
    if not binding.has_pixels(leaf):
        return _values(binding, container.read(name, None if (start, stop) == (0, count) else slice(start, stop)))
    chunk = max(leaf.chunk, 1)
    step = chunk * max(_PIECE // (chunk * math.prod(leaf.shape[1:]) * leaf.dtype.itemsize), 1)
    places = [start, *range(start - start % chunk + step, stop, step), max(start, stop)]
    pieces = (container.read(name, slice(a, b)) for a, b in itertools.pairwise(places))
    return encode_frames(pieces, binding.frames)


def _values(binding: Bound, array: Array) -> Array:
    """The values; images without the zeros that pad them, and frames that are stored as bytes as pixels."""
    is_rows = array.dtype == object and array.ndim == 1
    shape = next((shape for shape in binding.rule.raw_shapes if shape == binding.field.shape), None)
    if is_rows and shape and all(len(row) == math.prod(shape) for row in array):
        frames = (np.frombuffer(row, np.uint8).reshape(1, *shape) for row in array)
        if binding.encoded:
            return encode_frames(frames, binding.frames)
        return np.concatenate([np.zeros((0, *shape), np.uint8), *frames])
    if binding.encoded and (is_rows or (array.dtype == np.uint8 and array.ndim == 2)):
        return np.fromiter(map(row_bytes, array), object, len(array))
    return array


def _ends(profile: Profile, container: Container) -> Array:
    """bool [rows]: where the arrays of a group say that its episode ends; [1] if the profile names none."""
    found = [name for name in profile.ends if name in container.leaves]
    if not found:
        return np.array([not profile.ends])
    flags = []
    for name in found:
        values = container.read(name).reshape(-1)
        wrong = np.flatnonzero(find_changed(values, values.astype(bool)))
        if len(wrong):
            raise ValueError(f"{name} is {values[wrong[0]]} at row {wrong[0]}, expected 0 or 1")
        flags.append(values.astype(bool))
    ended: Array = np.any(flags, axis=0)
    return ended


def _terminal(profile: Profile, container: Container) -> Array:
    """bool [1]: whether the episode ends in a terminal state."""
    place = profile.terminal
    if isinstance(place, bool):
        return np.array([place])
    try:
        values = np.asarray(container.attribute(place) if "@" in place else container.read(place, slice(-1, None)))
    except KeyError:
        return np.array([False])
    last: Array = values.reshape(-1)[-1:] if values.size else np.array([False])
    return np.equal(last, 0) if place == profile.discount else last


@dataclasses.dataclass(frozen=True)
class ProfileDecoder(ArrayDecoder):
    """Decodes the arrays of an episode. Attributes: see `ArrayDecoder`; `layout`: the fields."""

    layout: Layout

    def convert_arrays(self, arrays: Arrays) -> tuple[Mapping[str, Column], Mapping[str, Any]]:
        place = arrays[_WHERE][0].decode("utf-8", "replace")
        steps: dict[str, Column] = {}
        for binding in self.layout.bound:
            if _STEPS + binding.field.path not in arrays:
                detail = f"{place} has no {binding.name}"
                raise BadEpisode(Violation("missing_field", detail, binding.field.path))
            steps[binding.field.path] = _column(binding, arrays[_STEPS + binding.field.path], place)
        rows, profile = self._rows(steps, place), self.layout.profile
        steps |= self._numbers(arrays, rows, place)
        terminal = bool(exact_flags(arrays[_TERMINAL], f"is_terminal ({place}: {profile.terminal})")[-1])
        if profile.actions == TO_OBSERVATION and rows:
            steps = {path: with_last(column[1:]) if _of_action(path) else column for path, column in steps.items()}
            discount = steps.get("discount")
            if rows > 1 and isinstance(discount, np.ndarray):
                discount[-1] = discount[-2]
        if self.layout.final or (terminal and profile.last_step == "added_if_terminal"):
            steps = {
                path: column if len(column) > rows else with_last(column, self._last(arrays, path, place))
                for path, column in steps.items()
            }
        count = len(steps["reward"]) if rows else 0
        ended = arrays[_ENDED]
        if ended[:-1].any():
            detail = f"{place} ends at row {int(ended.argmax())} of {len(ended)}"
            raise BadEpisode(Violation("wrong_dtype_or_shape", detail, "is_last"))
        marks = episode_flags(count, last=bool(ended[-1:].any()), terminal=terminal)
        steps |= marks
        steps.setdefault("discount", discounts(marks["is_terminal"], real=self.layout.last_action == "real"))
        if TEXT in self.schema.steps:
            if _STEPS + TEXT not in arrays:
                raise BadEpisode(Violation("missing_field", f"{place} has no text of the task", TEXT))
            steps[TEXT] = np.full(count, arrays[_STEPS + TEXT][0], object)
        if not rows:
            steps = {path: column[:0] for path, column in steps.items()}
        return steps, self._metadata(arrays, place)

    def _rows(self, steps: Mapping[str, Column], place: str) -> int:
        names = {binding.field.path: binding.name for binding in self.layout.bound}
        path = next(path for path in steps if path.split("/")[0] == "action")
        recorded = self.layout.profile.last_step == RECORDED
        for other, column in steps.items():
            if recorded and len(column) == len(steps[path]) + 1:
                continue
            if len(column) != len(steps[path]):
                detail = f"{place}: {names[other]} has {len(column)} rows, but {names[path]} has {len(steps[path])}"
                raise BadEpisode(Violation("wrong_dtype_or_shape", detail, other))
        return len(steps[path])

    def _last(self, arrays: Arrays, path: str, place: str) -> Column | None:
        bound = next((binding for binding in self.layout.bound if binding.field.path == path), None)
        if bound is None or bound.final is None:
            return None
        if _FINAL + path not in arrays:
            raise BadEpisode(Violation("missing_field", f"{place} has no {bound.final}", path))
        return _column(bound, arrays[_FINAL + path], place)

    def _numbers(self, arrays: Arrays, rows: int, place: str) -> dict[str, Column]:
        """The columns `reward` and, if the files have it, `discount`."""
        profile = self.layout.profile
        columns: dict[str, Column] = {}
        for path, name in (("reward", profile.reward), ("discount", profile.discount)):
            field, given = self.schema.steps[path], arrays.get(_STEPS + path)
            if given is None and path == "discount" and not name:
                continue
            if given is None and path == "reward" and NO_REWARD in self.layout.notes:
                columns[path] = np.zeros(rows, field.numpy_dtype)
            elif given is None:
                raise BadEpisode(Violation("missing_field", f"{place} has no {name}", path))
            elif given.size != rows or len(given) != rows:
                detail = f"{place}: {name} has the shape {list(given.shape)}, but the episode has {rows} rows"
                raise BadEpisode(Violation("wrong_dtype_or_shape", detail, path))
            else:
                columns[path] = exact_cast(given.reshape(rows), field.numpy_dtype, path)
        return columns

    def _metadata(self, arrays: Arrays, place: str) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for path, field in self.schema.metadata.items():
            value = arrays.get(_EPISODE + path)
            if value is None:
                metadata[path] = zeros_of(field, 1)[0]
                continue
            if field.dtype == "string" and not field.shape:
                value = value[0] if value.shape == (1,) else value
                metadata[path] = value
            elif value.shape != field.shape:
                detail = f"{place}: {path} has the shape {list(value.shape)}, expected {list(field.shape)}"
                raise BadEpisode(Violation("wrong_dtype_or_shape", detail, path))
            else:
                metadata[path] = exact_cast(value[None], field.numpy_dtype, path)[0]
        return metadata


def _of_action(path: str) -> bool:
    return path.partition("/")[0] in ("action", "reward", "discount")


def _column(binding: Bound, array: Array, place: str) -> Column:
    """The column of a field. Raises BadEpisode if the values do not fit it."""
    field = binding.field
    is_rows = array.dtype == object and array.ndim == 1
    if binding.encoded and is_rows:
        return EncodedImages(array, field.shape, field.dtype, field.encoding)
    if binding.encoded or array.shape[1:] != field.shape or (array.dtype == object) != (field.dtype == "string"):
        kind = "bytes" if array.dtype == object else array.dtype.name
        detail = f"{place}: {binding.name} holds {kind}{list(array.shape)}, but the first episode has {field}"
        raise BadEpisode(Violation("wrong_dtype_or_shape", detail, field.path))
    return exact_cast(array, field.numpy_dtype, field.path)
