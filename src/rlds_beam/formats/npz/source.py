"""NumPy's `.npz` files as a source: `--from=npz`. A profile says which array is which field, and where episodes end."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.base import Damage
from rlds_beam.episodes.casting import exact_cast
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field, Schema, text_field
from rlds_beam.errors import BadEpisode, UsageError, Violation
from rlds_beam.formats.arrays.array_episodes import (
    FLAG_FIELDS,
    ArrayDecoder,
    ArrayFormat,
    Arrays,
    discounts,
    number_field,
    with_last,
)
from rlds_beam.formats.arrays.sources_of_files import SourceOfFiles, find_files, no_features, splits_of_files
from rlds_beam.formats.npz.members import UNREADABLE_NPZ, Member, damage, open_npz
from rlds_beam.formats.npz.options import NpzOptions
from rlds_beam.formats.npz.profiles import NpzProfile, find_profile, fitting, proposal
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.encoding import encode_png
from rlds_beam.options import Options
from rlds_beam.reading.looking import names_in

Array: TypeAlias = "np.ndarray[Any, Any]"

_END, _NEXT = "end", "next"
_ROWS = 1 << 20
_MOST = 4 << 30
_TRIED = 20


@dataclasses.dataclass(frozen=True)
class NpzLayout:
    """A profile bound to the arrays of the first file.

    Attributes:
      profile: the profile.
      arrays: the array of each step field.
    """

    profile: NpzProfile
    arrays: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Episodes:
    """The episodes of a file.

    Attributes:
      starts: the first row of each, then the number of rows.
      terminal, ended: bool, whether each ended in a terminal state, and whether it ended at all.
      stored: whether its arrays can be read from the middle.
    """

    starts: Array
    terminal: Array
    ended: Array
    stored: bool


@functools.lru_cache(maxsize=64)
def _episodes(path: str, stamp: Any, profile: NpzProfile) -> Episodes:
    del stamp
    with open_npz(path) as members:
        if missing := profile.missing(members):
            raise OSError(f"it has no {missing[0]}, which profile {profile.name} reads")
        rows = _row_count(members, profile)
        stored = all(member.stored for member in members.values())
        if not profile.ends:
            ended = np.ones(1, bool)
            values = members[str(profile.terminal)].rows(rows - 1, rows) if _by_array(profile, members, rows) else None
            return Episodes(np.array([0, rows]), _is_terminal(profile, values, 1), ended, stored)
        ends = np.zeros(rows, bool)
        for name in profile.ends:
            ends |= _flags(members, name, rows) if name in members else False
        starts = np.unique(np.concatenate([[0], np.flatnonzero(ends) + 1, [rows]]))
        last = starts[1:] - 1
        by_array = profile.terminal if isinstance(profile.terminal, str) else ""
        terminal = _flags(members, by_array, rows) if by_array in members else np.full(rows, bool(profile.terminal))
        return Episodes(starts, terminal[last], ends[last], stored)


def _row_count(members: Mapping[str, Member], profile: NpzProfile) -> int:
    name = next(array for path, array in profile.fields if path.partition("/")[0] == "action")
    if not members[name].shape:
        raise OSError(f"{name} has no rows")
    return members[name].shape[0]


def _by_array(profile: NpzProfile, members: Mapping[str, Member], rows: int) -> bool:
    """Whether an array says how a file with one episode ends."""
    name = profile.terminal
    return isinstance(name, str) and name in members and members[name].shape[:1] == (rows,) and rows > 0


def _is_terminal(profile: NpzProfile, values: Array | None, count: int) -> Array:
    """bool [count]: whether the rows that end episodes are terminal."""
    if values is None:
        return np.full(count, profile.terminal is True)
    flat = values.reshape(count, -1)[:, 0]
    terminal: Array = flat == 0 if profile.terminal == profile.discount else flat != 0
    return terminal


def _flags(members: Mapping[str, Member], name: str, rows: int) -> Array:
    """Whether each row of an array is other than 0. Raises OSError for other rows or values."""
    member = members[name]
    if member.shape[:1] != (rows,) or member.dtype.kind not in "biuf" or int(np.prod(member.shape[1:])) != 1:
        raise OSError(f"{name} has the shape {list(member.shape)} ({member.dtype}), expected a flag for {rows} rows")
    parts = [member.rows(i, min(i + _ROWS, rows)).reshape(-1) for i in range(0, rows, _ROWS)]
    values: Array = np.concatenate(parts) if parts else np.zeros(0)
    wrong = np.flatnonzero((values != 0) & (values != 1))
    if len(wrong):
        raise OSError(f"{name} is {values[wrong[0]]} at row {wrong[0]}, expected 0 or 1")
    return values.astype(bool)


@dataclasses.dataclass(frozen=True)
class NpzFormat(ArrayFormat):
    """`.npz` files. A file with compressed arrays, which can only be read from the start, is not cut into ranges.

    Attributes:
      layout: the profile and its arrays.
    """

    layout: NpzLayout
    name = "npz"

    def count(self, path: str) -> int:
        return len(self._of(path).ended)

    def is_splittable(self, path: str) -> bool:
        try:
            return self._of(path).stored
        except OSError:
            return False

    def episodes(self, path: str, start: int, stop: int) -> Iterator[Arrays | Damage]:
        found, profile = self._of(path), self.layout.profile
        with open_npz(path) as members:
            absent = [array for array in self.layout.arrays.values() if array not in members]
            if absent:
                raise OSError(f"it has no {absent[0]}, unlike the first file")
            for i in range(start, stop):
                first, last = (int(row) for row in found.starts[i : i + 2])
                try:
                    size = sum(_size(members[array], last - first) for array in self.layout.arrays.values())
                    if size > _MOST:
                        raise OSError(f"rows {first} to {last} have {size} bytes, more than {_MOST}")
                    arrays = {path: _rows(members[a], first, last) for path, a in self.layout.arrays.items()}
                    if profile.next_observation in members and last > first:
                        arrays[_NEXT] = _rows(members[profile.next_observation], last - 1, last)
                except UNREADABLE_NPZ as error:
                    yield Damage(i, i + 1, f"rows {first} to {last} cannot be read: {damage(error)}", b"")
                    continue
                yield {**arrays, _END: np.array([found.terminal[i], found.ended[i]])}
                del arrays

    def _of(self, path: str) -> Episodes:
        try:
            return _episodes(path, storage.stamp(path), self.layout.profile)
        except UNREADABLE_NPZ as error:
            raise OSError(damage(error)) from error


def _size(member: Member, rows: int) -> int:
    return int(np.prod(member.shape[1:], dtype=np.float64)) * member.dtype.itemsize * rows


def _rows(member: Member, first: int, last: int) -> Array:
    if len(member.shape) == 0 or member.shape[0] < last:
        raise OSError(f"{member.name} has the shape {list(member.shape)}, too few rows")
    return member.rows(first, last)


@dataclasses.dataclass(frozen=True)
class NpzDecoder(ArrayDecoder):
    """Decodes rows into episodes. Attributes: see `ArrayDecoder`; `layout`: the profile and its arrays."""

    layout: NpzLayout

    def convert(self, arrays: Arrays) -> tuple[Mapping[str, Column], Mapping[str, Any]]:
        terminal, ended = (bool(flag) for flag in arrays[_END])
        steps: dict[str, Column] = {
            path: self._column(path, arrays[path], self.layout.arrays[path]) for path in self.layout.arrays
        }
        rows = len(next(iter(steps.values())))
        if self.layout.profile.actions == "to_observation":
            steps = {path: with_last(c[1:]) if rows and _of_action(path) else c for path, c in steps.items()}
            discount = steps.get("discount")
            if rows > 1 and isinstance(discount, np.ndarray):
                discount[-1] = discount[-2]
        elif rows and (_NEXT in arrays or terminal):
            last = {}
            if _NEXT in arrays:
                last["observation"] = self._column("observation", arrays[_NEXT], self.layout.profile.next_observation)
            steps = {path: with_last(column, last.get(path)) for path, column in steps.items()}
        count = len(next(iter(steps.values())))
        end = np.arange(count) == count - 1
        steps |= {"is_first": np.arange(count) == 0, "is_last": end & ended, "is_terminal": end & terminal}
        if not self.layout.profile.reward:
            steps["reward"] = np.zeros(count, np.float32)
        if not self.layout.profile.discount:
            steps["discount"] = discounts(np.asarray(steps["is_terminal"]))
        return steps, {}

    def _column(self, path: str, values: Array, name: str) -> Column:
        field = self.schema.steps[path]
        if path in ("reward", "discount") and values.size == len(values):
            values = values.reshape(len(values))
        if values.shape[1:] != field.shape or (values.dtype == object) != (field.dtype == "string"):
            kind = "text" if values.dtype == object else values.dtype.name
            detail = f"{name} holds {kind}{list(values.shape[1:])}, but the first file has {field}"
            raise BadEpisode(Violation("wrong_dtype_or_shape", detail, path))
        if field.encoding == "png":
            if values.dtype != np.uint8:
                raise BadEpisode(Violation("wrong_dtype_or_shape", f"{name} holds {values.dtype}", path))
            data = np.fromiter(map(bytes, encode_png(values)), object, len(values))
            return EncodedImages(data, field.shape, field.dtype, "png")
        return exact_cast(values, field.numpy_dtype, path)


def _of_action(path: str) -> bool:
    return path.partition("/")[0] in ("action", "reward", "discount")


@dataclasses.dataclass(frozen=True)
class NpzSource(SourceOfFiles):
    """`.npz` files. Attributes: see `Source`; `layout`: the profile and its arrays."""

    layout: NpzLayout = NpzLayout(NpzProfile("", ()), {})
    options_class: ClassVar[type[Options]] = NpzOptions

    def describe(self) -> str:
        about = f"profile {self.layout.profile.name}"
        note = [] if self.layout.profile.reward else ["there is no reward: it is 0"]
        return "\n".join([super().describe(), about, *note])

    def plan(self) -> dict[str, Any]:
        return {"profile": dataclasses.asdict(self.layout.profile), "arrays": dict(self.layout.arrays)}

    @classmethod
    def recognize(cls, path: str) -> str | None:
        try:
            inside = next((name for name in names_in(path) if name.endswith(".npz")), None)
            if inside is None and not path.endswith(".npz"):
                return None
            with open_npz(path if inside is None else storage.join(path, inside)) as members:
                profile = fitting(members)
                names = ", ".join(list(members)[:4])
        except Exception:  # whatever the path holds; `open` says what is wrong
            return None
        return f".npz with {names}" + ("" if profile is None else f" (profile {profile.name})")

    @classmethod
    def open(
        cls,
        input: str | Sequence[str],
        *,
        split: str | None = None,
        features: str | None = None,
        options: NpzOptions | None = None,
    ) -> NpzSource:
        no_features("npz", features)
        options = options or NpzOptions()
        found = find_files(input, (".npz",), "npz")
        layout, schema = _first_layout(found.splits["train"], found.where, options)
        suffix = f"{layout.profile.val_suffix}.npz"
        if layout.profile.val_suffix:
            paths = found.splits["train"]
            val = tuple(path for path in paths if path.endswith(suffix))
            by_split = {"train": tuple(path for path in paths if path not in val), "val": val}
            found = dataclasses.replace(found, splits={name: own for name, own in by_split.items() if own})
        files = NpzFormat(layout)
        splits = splits_of_files(files, found, split)
        return cls(f"{found.name}/1.0.0", schema, NpzDecoder(schema, layout), splits, files, layout=layout)


def _first_layout(paths: Sequence[str], where: str, options: NpzOptions) -> tuple[NpzLayout, Schema]:
    """The layout of the first file that can be read. Raises UsageError if none can."""
    error = ""
    for path in paths[:_TRIED]:
        try:
            with open_npz(path) as members:
                profile = find_profile(options.profile) if options.profile else fitting(members)
                if profile is None:
                    shapes = {name: member.shape for name, member in members.items()}
                    raise UsageError(
                        f"{path} has {', '.join(shapes)}, which no profile fits. Here is a proposal: edit it, save it "
                        f"as profile.yaml, and pass --profile=profile.yaml\n\n{proposal('mine', shapes)}"
                    )
                if missing := profile.missing(members):
                    raise UsageError(
                        f"{path} has no {missing[0]}, which profile {profile.name} reads; it has {', '.join(members)}"
                    )
                return _layout(members, profile, options.raw_images)
        except UNREADABLE_NPZ as unreadable:
            if isinstance(unreadable, UsageError):
                raise
            error = error or f"{path} cannot be read: {damage(unreadable)}"
    raise UsageError(error or f"{where} has no files")


def _layout(members: Mapping[str, Member], profile: NpzProfile, raw_images: str) -> tuple[NpzLayout, Schema]:
    """Binds a profile: other arrays with a row for each action become fields with the same name."""
    arrays = dict(profile.fields)
    arrays |= {path: name for path, name in (("reward", profile.reward), ("discount", profile.discount)) if name}
    rows, taken = _row_count(members, profile), {*arrays.values(), *profile.ends, profile.next_observation}
    for name, member in members.items():
        path = name.replace("infos/", "info/", 1)
        if (
            name not in taken
            and member.shape[:1] == (rows,)
            and _is_field(member)
            and path not in (*arrays, *FLAG_FIELDS)
        ):
            arrays[path] = name
    fields = {path: _field(path, members[name], raw_images) for path, name in arrays.items()}
    for path in ("reward", "discount"):
        fields.setdefault(path, Field(path, "float32"))
    return NpzLayout(profile, arrays), Schema({**fields, **FLAG_FIELDS})


def _is_field(member: Member) -> bool:
    return member.dtype.kind in "biufSU" and 0 not in member.shape[1:]


def _field(path: str, member: Member, raw_images: str) -> Field:
    if not member.shape:
        raise UsageError(f"{member.name} is one value, but {path} needs a row for each step")
    shape = member.shape[1:]
    if path in ("reward", "discount"):
        return number_field(path, member.dtype.newbyteorder("=").name)
    if member.dtype.kind in "SU":
        return text_field(path, shape)
    if member.dtype == np.uint8 and len(shape) == 3 and shape[-1] in (1, 3, 4):
        return (
            Field(path, "uint8", shape, "png", "Image") if raw_images == "png" else Field(path, "uint8", shape, "bytes")
        )
    return number_field(path, member.dtype.newbyteorder("=").name, shape)
