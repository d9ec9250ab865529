"""Write HDF5 files with the same datasets for each episode, through h5py's low-level API.

Times and creation order are not tracked, so the same data and HDF5 version give the same bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rlds_beam.errors import UsageError, needs
from rlds_beam.formats.arrays.array_episodes import split_bytes
from rlds_beam.formats.arrays.parts import Part, PartColumn, sized_columns
from rlds_beam.typing import Array

_NUMBERS = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8)}
"""Sizes that HDF5 supports, by dtype kind."""


@dataclasses.dataclass(frozen=True)
class EpisodeDataset:
    """A dataset that each episode has.

    Attributes:
      path: the path in the file; `{}` is the episode number.
      dtype: a NumPy dtype; or `text` (UTF-8) or `bytes`, for values of varying length.
      shape: the shape of one row.
      scalar: whether it is one value, not an array of rows.
    """

    path: str
    dtype: np.dtype[Any] | Literal["text", "bytes"]
    shape: tuple[int, ...] = ()
    scalar: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.dtype, str) and self.dtype.itemsize not in _NUMBERS.get(self.dtype.kind, ()):
            raise UsageError(f"HDF5 has no type for {self.dtype}")

    @property
    def part_columns(self) -> tuple[PartColumn, ...]:
        """The part columns that hold its values."""
        if isinstance(self.dtype, str):
            return sized_columns(self.path)
        return (PartColumn(self.path, int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize),)


def check_h5py(to: str) -> None:
    """Raises MissingExtraError unless h5py is installed."""
    with needs("hdf5", f"--to={to} writes HDF5 files, which needs h5py"):
        import h5py  # noqa: F401


def write_hdf5(
    path: str,
    parts: Sequence[Part],
    datasets: Sequence[EpisodeDataset],
    *,
    groups: Sequence[str] = (),
    total_steps: str | None = None,
    singles: Mapping[str, Any] | None = None,
) -> None:
    """Writes a local file.

    Args:
      path: the path of the file.
      parts: the parts in order; their columns are the `part_columns` of the datasets.
      datasets: the datasets of each episode.
      groups: the groups of each episode, including empty ones.
      total_steps: the dataset with a row for each step. Its group in the root gets the attributes `id` (the episode
        number) and `total_steps`.
      singles: the datasets that the file has once, by name.
    """
    import h5py

    with h5py.File(_create(path)) as file:
        for name, value in (singles or {}).items():
            file.create_dataset(name, data=value, track_times=False)
        writer = _EpisodeWriter(file.id, datasets, _groups(datasets, groups), total_steps)
        number = 0
        for part in parts:
            for columns in part.episodes():
                writer.write(number, columns)
                number += 1
        file.flush()  # closing might hide a write error


def _create(path: str) -> Any:
    from h5py import h5f, h5p

    access, creation = h5p.create(h5p.FILE_ACCESS), h5p.create(h5p.FILE_CREATE)
    access.set_fclose_degree(h5f.CLOSE_STRONG)
    access.set_libver_bounds(h5f.LIBVER_V18, h5f.LIBVER_V18)
    access.set_sieve_buf_size(0)  # write values at once, so that disk errors are raised here
    creation.set_obj_track_times(False)
    return h5f.create(path.encode(), h5f.ACC_TRUNC, creation, access)


def _groups(datasets: Sequence[EpisodeDataset], more: Sequence[str]) -> list[str]:
    """The groups of an episode, parents first."""
    paths = [dataset.path.rpartition("/")[0] for dataset in datasets]
    parents: dict[str, None] = {}
    for path in (*paths, *more):
        names = path.split("/") if path else []
        parents |= dict.fromkeys("/".join(names[: i + 1]) for i in range(len(names)))
    return [*parents]


class _EpisodeWriter:
    """Creates the objects of episodes."""

    def __init__(self, file: Any, datasets: Sequence[EpisodeDataset], groups: Sequence[str], total_steps: str | None):
        import h5py
        from h5py import h5p, h5s, h5t

        self._h5py, self._file, self._groups, self._total_steps = h5py, file, groups, total_steps
        self._group_options = h5p.create(h5p.GROUP_CREATE)
        self._group_options.set_obj_track_times(False)
        self._options = h5p.create(h5p.DATASET_CREATE)
        self._options.set_obj_track_times(False)
        objects = {"text": h5py.string_dtype(), "bytes": h5py.vlen_dtype(np.uint8)}
        dtypes = [objects[d.dtype] if isinstance(d.dtype, str) else d.dtype for d in datasets]
        self._int64, self._scalar = h5t.py_create(np.dtype("<i8")), h5s.create(h5s.SCALAR)
        self._types = [(h5t.py_create(dtype, logical=True), h5t.py_create(dtype)) for dtype in dtypes]  # file, memory
        self._datasets = datasets

    def write(self, number: int, columns: Sequence[Array]) -> None:
        """Writes an episode, given uint8 (rows, row bytes) for each part column."""
        groups = {"": self._file}
        for path in self._groups:
            above, name = _place(path, number)
            groups[path] = self._h5py.h5g.create(groups[above], name, gcpl=self._group_options)
        at = 0
        for dataset, types in zip(self._datasets, self._types, strict=True):
            count = len(dataset.part_columns)
            values = _values(dataset, columns[at : at + count])
            at += count
            above, name = _place(dataset.path, number)
            self._dataset(groups[above], name, types, values)
            if dataset.path == self._total_steps:
                group = groups[dataset.path.partition("/")[0]]
                for attribute, value in (("id", number), ("total_steps", len(values))):
                    self._attribute(group, attribute, value)

    def _dataset(self, group: Any, name: bytes, types: tuple[Any, Any], values: Array) -> None:
        h5d, h5s = self._h5py.h5d, self._h5py.h5s
        space = h5s.create_simple(values.shape) if values.shape else self._scalar
        dataset = h5d.create(group, name, types[0], space, self._options)
        if values.size:
            dataset.write(h5s.ALL, h5s.ALL, values, types[1])

    def _attribute(self, group: Any, name: str, value: int) -> None:
        attribute = self._h5py.h5a.create(group, name.encode(), self._int64, self._scalar)
        attribute.write(np.array(value, "<i8"))


def _place(path: str, number: int) -> tuple[str, bytes]:
    """The path of an object's group, and the object's name in it."""
    above, _, name = path.rpartition("/")
    return above, (name if above else name.replace("{}", str(number), 1)).encode()


def _values(dataset: EpisodeDataset, columns: Sequence[Array]) -> Array:
    if isinstance(dataset.dtype, str):
        data, lengths = columns
        values = split_bytes(data.tobytes(), lengths.reshape(-1).view("<i8"))
        if dataset.dtype == "bytes":
            for i, value in enumerate(values):
                values[i] = np.frombuffer(value, np.uint8)
        return values
    (rows,) = columns
    shape = (len(rows), *dataset.shape)
    values = rows.reshape(-1).view(dataset.dtype).reshape(shape)
    return values.reshape(()) if dataset.scalar else values
