"""The episodes of a file (groups, the file, or rows between ends): finds them, reads their arrays, decodes these."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.base import Damage
from rlds_beam.episodes.columns import exact_cast, find_changed, zeros_of
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field, episode_flags
from rlds_beam.errors import BadEpisode, UsageError, Violation
from rlds_beam.formats.arrays.array_episodes import (
    UNREADABLE,
    ArrayDecoder,
    ArrayFormat,
    Arrays,
    cut_windows,
    discounts,
    encode_frames,
    with_last,
)
from rlds_beam.formats.profiles.binding import (
    TEXT,
    Bound,
    Layout,
    find_metadata,
    find_text,
    of_action,
    stored_bytes,
)
from rlds_beam.formats.profiles.containers import (
    HDF5,
    NPZ,
    Container,
    FileRows,
    Hdf5Container,
    matches,
    open_hdf5,
    open_npz,
)
from rlds_beam.formats.profiles.model import RECORDED, TO_OBSERVATION, Profile
from rlds_beam.formats.profiles.zarr_store import ZarrContainer, file_version, open_store
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array

_ROWS = 1 << 16  # observations compared at once
_NOISE = 0.5  # if a larger fraction of next observations differ, they do not mark ends
_PIECE = 32 << 20  # bytes of pixels held at once
_FLAG = np.dtype(bool)
_STEPS, _TIMES, _EPISODE, _WHERE, _TERMINAL, _ENDED = "steps/", "times/", "episode/", "where", "terminal", "ended"
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


@contextlib.contextmanager
def open_container(path: str) -> Iterator[Container]:
    """Opens a file. Raises OSError if it is damaged, or cannot be read."""
    if path.endswith(NPZ):
        with open_npz(path) as container:
            yield container
    elif path.endswith(HDF5):
        with open_hdf5(path) as root:
            yield Hdf5Container(path, root)
    else:
        yield ZarrContainer(open_store(path))


class EpisodeIndex(NamedTuple):
    """The episodes of a file.

    Attributes:
      groups: the group of each; an empty name if the file is an episode.
      starts: the first row of each episode, then the number of rows, if a file holds them end to end.
      ended: whether each of these has an end.
    """

    groups: Sequence[str] = ()
    starts: Array = np.zeros(1, np.int64)
    ended: Array = np.zeros(0, bool)

    def open(self, whole: Container, profile: Profile, i: int) -> Container:
        """An episode of the file. Raises OSError for rows that no episode has."""
        if self.groups:
            return whole.within(self.groups[i]) if self.groups[i] else whole
        starts, ended, leaves, ends = self.starts, self.ended, whole.leaves, profile.episode_ends
        if ends and i < len(ended) and not ended[i]:
            raise OSError(f"there are rows after {starts[i]:,}, where the last episode ends")
        metadata = sorted({name for place in profile.metadata.values() for name, _ in matches(place, leaves)} - {ends})
        per_episode = [name for name in metadata if ends and leaves[name].shape[:1] == leaves[ends].shape]
        rows = range(int(starts[i]), int(starts[i + 1])) if len(ended) else range(0)
        return FileRows(whole, i, rows, not len(ended) or bool(ended[i]), [ends, *metadata], per_episode)


def index_episodes(path: str, profile: Profile) -> EpisodeIndex:
    """Finds the episodes of a file.

    Raises:
      OSError: the file cannot be read, or the arrays of ends are missing or wrong.
    """
    if profile.per_file and not profile.has_several:
        return EpisodeIndex([""])
    key, version = msgspec.json.encode(profile), file_version(path)
    return _read_index(path, version, key) if version else _read_index.__wrapped__(path, None, key)


@functools.lru_cache(maxsize=64)
def _read_index(path: str, version: object, encoded: bytes) -> EpisodeIndex:
    del version
    profile = msgspec.json.decode(encoded, type=Profile)
    with open_container(path) as whole:
        if not profile.per_file:
            return EpisodeIndex(whole.groups(profile.episodes))
        if profile.episode_ends:
            return _index_numbers(whole, profile.episode_ends)
        names = [name for name in profile.ends if name in whole.leaves]
        if not names:
            raise OSError(f"it has no {profile.ends[0]}, which marks the ends of episodes")
        rows = (*whole.leaves[names[0]].shape, 0)[0]
        is_end = np.zeros(rows, bool)
        for name in names:
            flags = _read_flags(whole, name)
            if len(flags) != rows:
                raise OSError(f"{name} has {len(flags)} values, expected a flag for {rows} rows")
            is_end |= flags
        for name, later in profile.final.items():
            is_end |= _jumps(whole, name, later, rows)
    starts = np.unique(np.concatenate([[0], np.flatnonzero(is_end) + 1, [rows]]))
    return EpisodeIndex((), starts, is_end[starts[1:] - 1])


def _index_numbers(whole: Container, name: str) -> EpisodeIndex:
    """The episodes by their ends; rows after the last one are an episode without an end."""
    leaf = whole.leaves.get(name)
    if leaf is None or leaf.dtype.kind not in "iu" or len(leaf.shape) != 1:
        kind = "nothing" if leaf is None else f"{leaf.dtype}{list(leaf.shape)}"
        raise OSError(f"{kind} is in {name}, expected a whole number for each episode")
    ends = whole.read(name).astype(np.int64)
    for i in np.flatnonzero(np.diff(ends, prepend=0) < 0)[:1].tolist():
        before = int(ends[i - 1]) if i else 0
        raise OSError(f"{name} is not ascending: episode {i:,} ends at {ends[i]:,}, after {before:,}")
    last = int(ends[-1]) if len(ends) else 0
    data = name.replace("meta/", "data/").partition("/")[0]
    rows = max((other.shape[0] for key, other in whole.leaves.items() if key.startswith(f"{data}/")), default=0)
    more = [rows] if rows > last else []
    return EpisodeIndex((), np.array([0, *ends, *more]), np.arange(len(ends) + len(more)) < len(ends))


def _read_flags(container: Container, name: str) -> Array:
    """bool [rows]: an array of flags. Raises OSError for values other than 0 and 1."""
    values: Array = container.read(name).reshape(-1)
    wrong = np.flatnonzero(find_changed(values, values.astype(bool)))
    if len(wrong):
        raise OSError(f"{name} is {values[wrong[0]]} at row {wrong[0]}, expected 0 or 1")
    return values.astype(bool)


def _jumps(whole: Container, name: str, later: str, rows: int) -> Array:
    """bool [rows]: whether the next observation differs from the next row's observation, as where a flag is missing."""
    jumps = np.zeros(rows, bool)
    leaves = whole.leaves
    if not {name, later} <= leaves.keys() or leaves[name].shape != leaves[later].shape or leaves[name].shape[0] != rows:
        return jumps
    for start in range(0, rows - 1, _ROWS):
        stop = min(start + _ROWS, rows - 1)
        after, following = whole.read(later, slice(start, stop)), whole.read(name, slice(start + 1, stop + 1))
        jumps[start:stop] = (after != following).reshape(stop - start, -1).any(axis=1)
    return jumps if jumps.mean() <= _NOISE else np.zeros(rows, bool)


@dataclasses.dataclass(frozen=True)
class ProfileFormat(ArrayFormat):
    """Files with a profile.

    Attributes:
      layout: the fields.
      root: the directory of the dataset, to which the names of files are relative.
      name: the name of the format.
    """

    layout: Layout
    root: str = ""
    name: str = "hdf5"

    @property
    def profile(self) -> Profile:
        return self.layout.profile

    def index(self, path: str) -> EpisodeIndex:
        return index_episodes(path, self.profile)

    def count(self, path: str) -> int:
        index = self.index(path)
        return len(index.groups) or len(index.ended)

    def is_splittable(self, path: str) -> bool:
        return not self.profile.per_file or (self.profile.has_several and not path.endswith(NPZ))

    def file_name(self, path: str) -> str:
        """The name of a file, relative to the directory of the dataset."""
        within = self.root and path.startswith(self.root) and path != self.root
        return path[len(self.root) :].lstrip("/") if within else storage.split(path)[1]

    def episodes(self, path: str, start: int, stop: int) -> Iterator[Arrays | Damage]:
        with open_container(path) as whole:
            name, index = self.file_name(whole.path), self.index(path)
            for i in range(start, stop):
                place = name
                try:
                    episode = index.open(whole, self.profile, i)
                    place = f"{name}: {episode.group}".rstrip(": ")
                    arrays = read_episode(self.layout, episode, name)
                except (*UNREADABLE, UsageError) as error:
                    yield Damage(i, i + 1, f"{place} cannot be read: {' '.join(str(error).split())}", b"")
                    continue
                yield arrays
                del arrays


def read_episode(layout: Layout, container: Container, name: str) -> Arrays:
    """The arrays of an episode, as packed into its record.

    Args:
      layout: the fields.
      container: the episode.
      name: the file's name in the dataset.
    """
    leaves, profile = container.leaves, layout.profile
    arrays: dict[str, Array] = {}
    for binding in layout.bound:
        if all(part in leaves for part in binding.parts):
            rows = _rows(binding, container, binding.parts, binding.rule.rows)
            if binding.final is not None:
                rows = np.concatenate([rows, _rows(binding, container, binding.final, slice(-1, None))])
            arrays[_STEPS + binding.field.path] = rows
    times = {profile.times, *(binding.rule.times for binding in layout.bound)}
    arrays |= {_TIMES + dataset: container.read(dataset) for dataset in sorted(times & leaves.keys())}
    arrays[_TERMINAL] = _terminal(profile, container)
    flags = [] if profile.per_file else [_read_flags(container, name) for name in profile.ends if name in leaves]
    ended = container.ended if profile.per_file else not profile.ends
    arrays[_ENDED] = np.any(flags, axis=0) if flags else np.array([ended])
    texts = {_WHERE: f"{name}: {container.group}".rstrip(": "), _EPISODE + "file": name}
    if "group" in layout.schema.metadata:
        texts[_EPISODE + "group"] = container.group
    values: dict[str, Array | bytes] = {place: text.encode("utf-8", "replace") for place, text in texts.items()}
    if TEXT in layout.schema.steps and profile.text:
        values[_STEPS + TEXT] = find_text(profile, container) or b""
    values |= {_EPISODE + field: value for field, value in find_metadata(profile, container).items()}
    arrays |= {place: np.array([v, None], object)[:1] if isinstance(v, bytes) else v for place, v in values.items()}
    return arrays


def _rows(binding: Bound, container: Container, parts: tuple[str, ...], rows: slice) -> Array:
    """The values of a field; images without the zeros that pad them, and frames that are stored as bytes as pixels.

    Frames of pixels become images by pieces, so a long episode is never held as pixels.
    """
    field, leaf = binding.field, container.leaves[parts[0]]
    count = (*leaf.shape, 0)[0]
    start, stop, _ = rows.indices(count)
    is_encoded = field.holds_image_files
    if binding.is_pixels and is_encoded and leaf.dtype == field.dtype and leaf.shape[1:] == field.shape:
        chunk = max(leaf.chunk, 1)
        step = chunk * max(_PIECE // (chunk * math.prod(leaf.shape[1:]) * leaf.dtype.itemsize), 1)
        places = [start, *range(start - start % chunk + step, stop, step), max(start, stop)]
        pieces = (container.read(parts[0], slice(a, b)) for a, b in itertools.pairwise(places))
        return encode_frames(pieces, field.encoding)
    arrays = [container.read(part, rows) for part in parts]
    array = arrays[0]
    if len(arrays) > 1:
        array = np.concatenate([part.reshape(len(part), -1) for part in arrays], axis=1)
    is_rows = array.dtype == object and array.ndim == 1
    if is_rows and binding.is_pixels and all(len(row) == math.prod(field.closed_shape) for row in array):
        frames = (np.frombuffer(row, np.uint8).reshape(1, *field.closed_shape) for row in array)
        if is_encoded:
            return encode_frames(frames, field.encoding)
        return np.concatenate([np.zeros((0, *field.closed_shape), np.uint8), *frames])
    if is_encoded and (is_rows or (array.dtype == np.uint8 and array.ndim == 2)):
        # JPEGs end with FF D9 and PNGs with AE 42 60 82, so no byte of an image is lost.
        return np.fromiter((stored_bytes(row).rstrip(b"\0") for row in array), object, len(array))
    return array


def _terminal(profile: Profile, container: Container) -> Array:
    """bool [1]: whether the episode ends in a terminal state."""
    place = profile.terminal
    if isinstance(place, bool):
        return np.array([place])
    found = container.find(place, slice(-1, None))
    last: Array = np.asarray(False if found is None else found).reshape(-1)[-1:]
    if not last.size:
        return np.array([False])
    discount = profile.fields.get("discount")
    return np.equal(last, 0) if discount and place == discount.dataset else last


@dataclasses.dataclass(frozen=True)
class ProfileDecoder(ArrayDecoder):
    """Decodes the arrays of an episode. Attributes: see `ArrayDecoder`; `layout`: the fields."""

    layout: Layout

    def convert_arrays(self, arrays: Arrays) -> tuple[Mapping[str, Column], Mapping[str, Any]]:
        place, profile, bound = arrays[_WHERE][0].decode("utf-8", "replace"), self.layout.profile, self.layout.bound
        steps: dict[str, Column] = {}
        for binding in bound:
            column = _column(binding, arrays, place)
            steps[binding.field.path] = column
            if size := binding.rule.window:
                datasets, unit = (binding.rule.times, profile.times), profile.time_unit
                samples, times = (_read_times(arrays[_TIMES + name], unit, place) for name in datasets)
                steps |= cut_windows(binding.field, size, samples, times, np.asarray(column).__getitem__)
        rows = self._count_rows(steps, place)
        if "reward" not in steps:
            steps["reward"] = np.zeros(rows, np.float32)
        terminal = bool(exact_cast(arrays[_TERMINAL], _FLAG, f"is_terminal ({place}: {profile.terminal})")[-1])
        if profile.actions == TO_OBSERVATION and rows:
            led = ("action", "reward", "discount")
            steps = {p: with_last(column[1:]) if p.split("/")[0] in led else column for p, column in steps.items()}
            discount = steps.get("discount")
            if rows > 1 and isinstance(discount, np.ndarray):
                discount[-1] = discount[-2]
        has_final = any(binding.final for binding in bound)
        is_added = profile.last_step in ("added", RECORDED) or (terminal and profile.last_step == "added_if_terminal")
        for path, column in steps.items() if has_final or is_added else ():
            if len(column) <= rows:
                steps[path] = with_last(column)
        count = len(steps["reward"]) if rows else 0
        ended = arrays[_ENDED]
        if ended[:-1].any():
            raise _misfit(f"{place} ends at row {int(ended.argmax())} of {len(ended)}", "is_last")
        steps = {**episode_flags(count, last=bool(ended[-1:].any()), terminal=terminal), **steps}
        if "discount" not in steps:
            steps["discount"] = discounts(
                np.asarray(steps["is_terminal"]), real=self.layout.meaning.last_action == "real"
            )
        if TEXT in self.schema.steps and profile.text:
            steps[TEXT] = np.full(count, arrays[_STEPS + TEXT][0], object)
        if not rows:
            steps = {path: column[:0] for path, column in steps.items()}
        return steps, self._metadata(arrays, place)

    def _count_rows(self, steps: Mapping[str, Column], place: str) -> int:
        """The rows of the action. Raises BadEpisode if others differ; observations may have the last one as well."""
        bound = {binding.field.path: binding for binding in self.layout.bound}
        path = next(filter(of_action, steps), next(iter(steps)))
        rows = len(steps[path])
        for other, binding in bound.items():
            has_final = binding.final is not None and rows > 0
            more = 1 if has_final or self.layout.profile.last_step == RECORDED else 0
            count = len(steps[other])
            if not rows + has_final <= count <= rows + more:
                raise _misfit(f"{place}: {binding.name} has {count} rows, but {bound[path].name} has {rows}", other)
        return rows

    def _metadata(self, arrays: Arrays, place: str) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for path, field in self.schema.metadata.items():
            value = arrays.get(_EPISODE + path)
            if value is None:
                metadata[path] = zeros_of(field, 1)[0]
            else:
                is_one = field.dtype == "string" and not field.shape and value.shape == (1,)
                metadata[path] = _fit(field, value if is_one else value[None], path, place)[0]
        return metadata


def _read_times(times: Array, unit: str, place: str) -> Array:
    """Times as int64 nanoseconds. Raises ValueError if they are not ascending numbers."""
    scale = _NANOSECONDS[unit]
    exact = np.round(times.astype(np.float64) * scale) if times.dtype.kind == "f" else times.astype(np.int64) * scale
    if not np.isfinite(exact).all() or (np.diff(exact) < 0).any():
        raise ValueError(f"{place}: the times are not ascending")
    return np.asarray(exact, np.int64).reshape(-1)


def _misfit(detail: str, path: str) -> BadEpisode:
    return BadEpisode(Violation("wrong_dtype_or_shape", detail, path))


def _column(binding: Bound, arrays: Arrays, place: str) -> Column:
    """The column of a field. Raises BadEpisode if the values are missing, or do not fit it."""
    field = binding.field
    array = arrays.get(_STEPS + field.path)
    if array is None:
        raise BadEpisode(Violation("missing_field", f"{place} has no {binding.name}", field.path))
    if not field.shape and math.prod(array.shape[1:]) == 1:
        array = array.reshape(len(array))
    if field.holds_image_files and array.dtype == object and array.ndim == 1:
        return EncodedImages(array, field.shape, field.dtype, field.encoding)
    return _fit(field, array, binding.name, place)


def _fit(field: Field, array: Array, name: str, place: str) -> Array:
    """The rows of a field with its dtype. Raises BadEpisode if they do not fit it."""
    is_text = array.dtype == object
    if field.holds_image_files or array.shape[1:] != field.shape or is_text != (field.dtype == "string"):
        stored = "bytes" if is_text else array.dtype.name
        detail = f"{place}: {name} holds {stored}{list(array.shape)}, but the first episode has {field}"
        raise _misfit(detail, field.path)
    return exact_cast(array, field.numpy_dtype, field.path)
