"""Binds a profile to a dataset, reads an episode by it, and decodes it."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from rlds_beam import naming
from rlds_beam.encoding.metadata import parsing
from rlds_beam.episodes.columns import exact_cast, find_changed, zeros_of
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import FLAGS, Field, Schema, by_path, episode_flags, is_name, text_field
from rlds_beam.errors import BadEpisode, Violation
from rlds_beam.formats.arrays.array_episodes import (
    FLAG_FIELDS,
    NO_REWARD,
    ArrayDecoder,
    Arrays,
    as_images,
    discounts,
    encode_frames,
    number_field,
    with_last,
)
from rlds_beam.formats.arrays.leaves import field_from_json
from rlds_beam.formats.profiles.binding import Bound, bind, find_role, of_action, read_joined, row_bytes
from rlds_beam.formats.profiles.containers import Container, Leaf, matches
from rlds_beam.formats.profiles.facts import find_fact, find_fps, find_metadata, find_robot, find_text
from rlds_beam.formats.profiles.model import RECORDED, TO_OBSERVATION, FieldRule, Profile
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import LastAction
from rlds_beam.reading.meaning import KEY, Meaning
from rlds_beam.typing import Array

TEXT = "language_instruction"
OWN = "/@rlds_beam"
"""The attribute in which `--to=zarr` keeps the fields."""

_NONE = Leaf((), np.dtype(object))
_FLAG = np.dtype(bool)
_STEPS, _FINAL, _EPISODE, _WHERE, _TERMINAL, _ENDED = "steps/", "final/", "episode/", "where", "terminal", "ended"
_PIECE = 32 << 20  # bytes of pixels held at once


@dataclasses.dataclass(frozen=True)
class Layout:
    """A profile bound to the arrays of the first episode.

    Attributes:
      profile: the profile.
      bound: the step fields.
      schema: the schema.
      last_action: see `Source`.
      masks: the names of the filter keys.
      notes: what a user should know about the conversion.
      fps, robot: see `Source`: what the first episode says, or the profile.
      dataset: the dataset's name, if the data says it.
    """

    profile: Profile
    bound: tuple[Bound, ...]
    schema: Schema
    last_action: LastAction
    masks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    fps: float | None = None
    robot: str | None = None
    dataset: str = ""

    @property
    def final(self) -> bool:
        """Whether an episode has a last step with a void action."""
        return self.profile.last_step in ("added", RECORDED) or any(binding.final for binding in self.bound)


def bind_layout(profile: Profile, first: Container, raw_images: str, masks: tuple[str, ...] = ()) -> Layout:
    """Binds a profile to an episode. Raises UsageError if the episode lacks what the profile needs."""
    leaves = first.leaves
    if first.has(OWN):
        return _own_layout(profile, first, raw_images)
    bound, notes = bind(profile, first, raw_images)
    profile = msgspec.structs.replace(
        profile,
        reward=find_role(profile.reward, leaves),
        discount=find_role(profile.discount, leaves),
        metadata=_expand(profile.metadata, first),
    )
    if profile.reward not in leaves:
        notes.append(NO_REWARD)
    fields = [binding.field for binding in bound]
    for path, name in (("reward", profile.reward), ("discount", profile.discount)):
        fields.append(number_field(path, leaves[name].dtype.name if name in leaves else "float32"))
    fields += [field for path, field in FLAG_FIELDS.items() if not any(one.path == path for one in fields)]
    if find_text(profile, first) is not None:
        fields.append(text_field(TEXT))
    elif profile.text:
        notes.append("the first episode has no text of the task: there are no texts")
    metadata = [text_field("file"), *([text_field("group")] if first.group else [])]
    metadata = [] if profile.episode_ends else metadata
    for name, value in find_metadata(profile, first).items():
        if isinstance(value, bytes) or value.dtype == object:
            metadata.append(text_field(name, () if isinstance(value, bytes) else value.shape))
        else:
            metadata.append(number_field(name, value.dtype.name, value.shape))
    metadata += [Field(f"mask/{name}", "bool") for name in masks]
    if profile.note:
        notes.append(profile.note.strip())
    robot = find_robot(profile, first)
    if not is_name(robot or ""):
        robot, notes = None, [*notes, "the robot's name cannot be shown: left out"]
    fps, environment = find_fps(profile, first)
    if environment:
        notes.append(f"the rate is that of {environment}")
    schema = Schema(by_path(fields, str(first)), by_path(metadata, str(first)))
    dataset = find_fact(profile, first, "name")
    # of D4RL's truncated episodes, the last recorded action leads to no known observation
    is_void = profile.last_step != "kept" or profile.actions == TO_OBSERVATION or any(one.final for one in bound)
    last_action: LastAction = "void" if is_void else "real"
    dataset = dataset if isinstance(dataset, str) else ""
    return Layout(profile, bound, schema, last_action, masks, tuple(notes), fps, robot, dataset)


def _expand(metadata: Mapping[str, str], first: Container) -> dict[str, str]:
    """The places of the episode's own fields, with wildcards filled in."""
    expanded: dict[str, str] = {}
    for name, place in metadata.items():
        if "*" in place and "@" not in place:
            expanded |= {name.replace("*", found[0]): array for array, found in matches(place, first.per_episode)}
        else:
            expanded[name] = place
    return expanded


def _own_layout(profile: Profile, first: Container, raw_images: str) -> Layout:
    """The fields that `--to=zarr` wrote."""
    where, about = f"{first.path}: {OWN.strip('/@')}", first.attribute(OWN)
    steps, metadata, places = [], [], {}
    with parsing(where):
        for info in about["fields"]:
            field, key = field_from_json(info, where), info["key"]
            if not naming.is_file_path(key) or key.split("/")[0] not in ("data", "meta"):
                raise ValueError(f"{key!r} is not the key of an array")
            if info["of_episode"]:
                metadata.append(field)
                places[field.path] = key
                continue
            frames = "png"
            if field.holds_image_files:
                pixels = dataclasses.replace(field, encoding="bytes", feature="Tensor")
                field = (
                    dataclasses.replace(field, encoding="png") if raw_images == "png" else as_images(pixels, raw_images)
                )
                frames = field.encoding
            steps.append(Bound(field, key, FieldRule(key), (key,), None, frames))
    profile = msgspec.structs.replace(profile, reward="", discount="", metadata=places)
    meaning = Meaning.from_json(about.get(KEY, {}), where)
    bound = by_path((binding.field for binding in steps), where)
    added = {"reward": Field("reward", "float32"), "discount": Field("discount", "float32"), **FLAG_FIELDS}
    schema = Schema(
        {**bound, **{path: field for path, field in added.items() if path not in bound}}, by_path(metadata, where)
    )
    notes = () if "reward" in bound else (NO_REWARD,)
    last_action: LastAction = "void" if meaning.last_action == "void" else "real"
    return Layout(profile, tuple(steps), schema, last_action, (), notes, meaning.fps, meaning.robot)


def read_episode(layout: Layout, container: Container, name: str, masks: Mapping[str, bool]) -> Arrays:
    """The arrays of an episode, as packed into its record.

    Args:
      layout: the fields.
      container: the episode.
      name: the file's name in the dataset.
      masks: for each filter key, whether it lists the episode.
    """
    leaves, profile = container.leaves, layout.profile
    arrays: dict[str, Array] = {}
    for binding in layout.bound:
        if all(part in leaves for part in binding.parts):
            arrays[_STEPS + binding.field.path] = _rows(binding, container, binding.parts, binding.rule.rows)
        if binding.final is not None and all((*leaves.get(part, _NONE).shape, 0)[0] for part in binding.final):
            arrays[_FINAL + binding.field.path] = _rows(binding, container, binding.final, slice(-1, None))
    for path, own in (("reward", profile.reward), ("discount", profile.discount)):
        if own in leaves and path in layout.schema.steps:
            arrays[_STEPS + path] = container.read(own)
    arrays[_TERMINAL] = _terminal(profile, container)
    flags = [] if profile.per_file else [read_flags(container, name) for name in profile.ends if name in leaves]
    ended = container.ended if profile.per_file else not profile.ends
    arrays[_ENDED] = np.any(flags, axis=0) if flags else np.array([ended])
    texts = {_WHERE: f"{name}: {container.group}".rstrip(": "), _EPISODE + "file": name}
    if "group" in layout.schema.metadata:
        texts[_EPISODE + "group"] = container.group
    for place, text in texts.items():
        arrays[place] = _text(text.encode("utf-8", "replace"))
    if TEXT in layout.schema.steps and profile.text:
        arrays[_STEPS + TEXT] = _text(find_text(profile, container) or b"")
    for field, value in find_metadata(profile, container).items():
        arrays[_EPISODE + field] = _text(value) if isinstance(value, bytes) else value
    for mask in layout.masks:
        arrays[f"{_EPISODE}mask/{mask}"] = np.array(masks.get(mask, False))
    return arrays


def _text(value: bytes) -> Array:
    return np.array([value, None], object)[:1]


def _rows(binding: Bound, container: Container, parts: tuple[str, ...], rows: slice) -> Array:
    """The values of a field. Frames of pixels become images by pieces, so a long episode is never held as pixels."""
    leaf = container.leaves[parts[0]]
    count = (*leaf.shape, 0)[0]
    start, stop, _ = rows.indices(count)
    if len(parts) > 1 or not binding.has_pixels(leaf):
        whole = (start, stop) == (0, count)
        return _values(binding, read_joined(container, parts, None if whole else slice(start, stop)))
    chunk = max(leaf.chunk, 1)
    step = chunk * max(_PIECE // (chunk * math.prod(leaf.shape[1:]) * leaf.dtype.itemsize), 1)
    places = [start, *range(start - start % chunk + step, stop, step), max(start, stop)]
    pieces = (container.read(parts[0], slice(a, b)) for a, b in itertools.pairwise(places))
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


def read_flags(container: Container, name: str) -> Array:
    """bool [rows]: an array of flags. Raises ValueError for values other than 0 and 1."""
    values: Array = container.read(name).reshape(-1)
    wrong = np.flatnonzero(find_changed(values, values.astype(bool)))
    if len(wrong):
        raise ValueError(f"{name} is {values[wrong[0]]} at row {wrong[0]}, expected 0 or 1")
    return values.astype(bool)


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
        place, profile = arrays[_WHERE][0].decode("utf-8", "replace"), self.layout.profile
        steps: dict[str, Column] = {}
        for binding in self.layout.bound:
            path = binding.field.path
            if _STEPS + path not in arrays:
                raise BadEpisode(Violation("missing_field", f"{place} has no {binding.name}", path))
            steps[path] = _column(binding, arrays[_STEPS + path], place)
        rows = self._count_rows(steps, place)
        steps |= self._numbers(arrays, rows, place)
        terminal = bool(exact_cast(arrays[_TERMINAL], _FLAG, f"is_terminal ({place}: {profile.terminal})")[-1])
        if profile.actions == TO_OBSERVATION and rows:
            led = ("action", "reward", "discount")
            steps = {p: with_last(column[1:]) if p.split("/")[0] in led else column for p, column in steps.items()}
            discount = steps.get("discount")
            if rows > 1 and isinstance(discount, np.ndarray):
                discount[-1] = discount[-2]
        if self.layout.final or (terminal and profile.last_step == "added_if_terminal"):
            for path, column in steps.items():
                if len(column) <= rows:
                    steps[path] = with_last(column, self._last(arrays, path, place))
        count = len(steps["reward"]) if rows else 0
        ended = arrays[_ENDED]
        if ended[:-1].any():
            detail = f"{place} ends at row {int(ended.argmax())} of {len(ended)}"
            raise BadEpisode(Violation("wrong_dtype_or_shape", detail, "is_last"))
        steps = {**episode_flags(count, last=bool(ended[-1:].any()), terminal=terminal), **steps}
        if "discount" not in steps:
            steps["discount"] = discounts(np.asarray(steps["is_terminal"]), real=self.layout.last_action == "real")
        if TEXT in self.schema.steps and profile.text:
            if _STEPS + TEXT not in arrays:
                raise BadEpisode(Violation("missing_field", f"{place} has no text of the task", TEXT))
            steps[TEXT] = np.full(count, arrays[_STEPS + TEXT][0], object)
        if not rows:
            steps = {path: column[:0] for path, column in steps.items()}
        return steps, self._metadata(arrays, place)

    def _count_rows(self, steps: Mapping[str, Column], place: str) -> int:
        names = {binding.field.path: binding.name for binding in self.layout.bound}
        path = next(filter(of_action, steps), next(iter(steps)))
        more = 1 if self.layout.profile.last_step == RECORDED else 0
        for other, column in steps.items():
            if not len(steps[path]) <= len(column) <= len(steps[path]) + more:
                detail = f"{place}: {names[other]} has {len(column)} rows, but {names[path]} has {len(steps[path])}"
                raise BadEpisode(Violation("wrong_dtype_or_shape", detail, other))
        return len(steps[path])

    def _last(self, arrays: Arrays, path: str, place: str) -> Column | None:
        """The value of the last step; None if it is void."""
        bound = next((binding for binding in self.layout.bound if binding.field.path == path), None)
        if bound is None or bound.final is None:
            return None
        if _FINAL + path not in arrays:
            raise BadEpisode(Violation("missing_field", f"{place} has no {'+'.join(bound.final)}", path))
        return _column(bound, arrays[_FINAL + path], place)

    def _numbers(self, arrays: Arrays, rows: int, place: str) -> dict[str, Column]:
        """The columns `reward` and, if the files have it, `discount`."""
        profile = self.layout.profile
        columns: dict[str, Column] = {}
        for path, name in (("reward", profile.reward), ("discount", profile.discount)):
            field, given = self.schema.steps[path], arrays.get(_STEPS + path)
            if given is not None and any(binding.field.path == path for binding in self.layout.bound):
                continue
            if given is None and path == "reward" and NO_REWARD in self.layout.notes:
                columns[path] = np.zeros(rows, field.numpy_dtype)
            elif given is None and path == "discount" and (not name or profile.episode_ends):
                continue
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
            elif field.dtype == "string" and not field.shape:
                metadata[path] = value[0] if value.shape == (1,) else value
            elif value.shape != field.shape:
                detail = f"{place}: {path} has the shape {list(value.shape)}, expected {list(field.shape)}"
                raise BadEpisode(Violation("wrong_dtype_or_shape", detail, path))
            else:
                metadata[path] = exact_cast(value[None], field.numpy_dtype, path)[0]
        return metadata


def _column(binding: Bound, array: Array, place: str) -> Column:
    """The column of a field. Raises BadEpisode if the values do not fit it."""
    field = binding.field
    if field.path in FLAGS:
        return exact_cast(array, _FLAG, field.path).reshape(len(array))
    if binding.encoded and array.dtype == object and array.ndim == 1:
        return EncodedImages(array, field.shape, field.dtype, field.encoding)
    if binding.encoded or array.shape[1:] != field.shape or (array.dtype == object) != (field.dtype == "string"):
        kind = "bytes" if array.dtype == object else array.dtype.name
        detail = f"{place}: {binding.name} holds {kind}{list(array.shape)}, but the first episode has {field}"
        raise BadEpisode(Violation("wrong_dtype_or_shape", detail, field.path))
    return exact_cast(array, field.numpy_dtype, field.path)
