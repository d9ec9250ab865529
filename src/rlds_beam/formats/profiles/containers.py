"""The arrays of an HDF5, `.npz`, or zarr file, or of an episode in it: names, shapes, dtypes, attributes, and rows."""

from __future__ import annotations

import contextlib
import functools
import math
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping
from typing import IO, Any, NamedTuple

import numpy as np

from rlds_beam import storage
from rlds_beam.errors import UsageError, needs
from rlds_beam.formats.arrays.array_episodes import UNREADABLE
from rlds_beam.text import shorten
from rlds_beam.typing import Array

NPZ = (".npz",)
HDF5 = (".hdf5", ".h5")
_FORMAT: Any = np.lib.format  # has no types


class Leaf(NamedTuple):
    """An array of a file.

    Attributes:
      shape: its shape, with rows.
      dtype: its dtype; object for text and bytes.
      trouble: why its values cannot be read; empty if they can.
      chunk: the rows that are compressed together, so that reading one of them reads them all.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    trouble: str = ""
    chunk: int = 1


class Container:
    """The arrays of an open file, or of an episode in it.

    Attributes:
      path: the file.
      group: the episode's group in it; empty if the file is one episode.
      leaves: the arrays by name.
      ended: whether the episode has its end, which the last rows of a file may lack.
      per_episode: the arrays of which the episode has one value.
      notes: what a user should know about the file.
    """

    leaves: Mapping[str, Leaf]
    ended = True
    per_episode: Collection[str] = ()
    notes: Collection[str] = ()

    def __init__(self, path: str, group: str = ""):
        self.path, self.group = path, group

    def read(self, name: str, rows: slice = slice(None)) -> Array:
        """Rows of an array; text and images as an object array of bytes. Raises KeyError if there is none."""
        raise NotImplementedError

    def attribute(self, place: str) -> Any:
        """An attribute (`@name` of the episode, `/data@name` of another group). Raises KeyError if there is none."""
        raise KeyError(f"there is no {place}")

    def has(self, name: str) -> bool:
        """Whether there is an array or group of this name, or an attribute `@name`."""
        return name in self.leaves

    def find(self, place: str, rows: slice = slice(None)) -> Any:
        """An attribute, or rows of an array; None if there is neither."""
        if not self.has(place):
            return None
        return self.attribute(place) if "@" in place else self.read(place, rows)

    def groups(self, pattern: str) -> list[str]:
        """The groups that match a pattern such as `data/demo_*`, sorted by number."""
        del pattern
        return []

    def within(self, group: str) -> Container:
        """The episode of a group."""
        raise KeyError(f"there is no {group}")

    def __str__(self) -> str:
        return f"{self.path}: {self.group}" if self.group else self.path


def matches(pattern: str, names: Collection[str]) -> list[tuple[str, tuple[str, ...]]]:
    """The names that match a pattern, with what its wildcards stand for."""
    parts = re.split(r"(\*\*|\*)", pattern.strip("/"))
    expression = "".join({"*": "([^/]+)", "**": "(.+)"}.get(part, re.escape(part)) for part in parts)
    found = ((name, re.fullmatch(expression, name)) for name in names)
    return [(name, match.groups()) for name, match in found if match]


def natural(text: str) -> list[tuple[int, str]]:
    """A sort key by which `demo_2` comes before `demo_10`."""
    return [(int(part), part) if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


def plain_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of `plain_values`."""
    return np.dtype(object) if dtype.kind in "OSUT" else dtype.newbyteorder("=")


def plain_values(values: Array) -> Array:
    """Numbers in this machine's byte order; text of any shape as an object array of bytes.

    Raises:
      TypeError: the values are other objects.
    """
    if values.dtype.kind not in "OSUT":
        return values.astype(values.dtype.newbyteorder("="), copy=False)
    flat = [_to_bytes(value) for value in values.reshape(-1).tolist()]
    return np.fromiter(flat, object, len(flat)).reshape(values.shape)


def _to_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, np.ndarray) and value.dtype == np.uint8:
        return value.tobytes()
    if not isinstance(value, bytes):
        raise TypeError(f"a {type(value).__name__} is not text")
    return bytes(value)


@contextlib.contextmanager
def open_hdf5(path: str) -> Iterator[Any]:
    """Opens an HDF5 file with h5py; one in a bucket is read by ranges. Errors name the file.

    Raises:
      OSError: the file is missing, damaged, or not HDF5.
      MissingExtraError: h5py is not installed.
    """
    with needs("hdf5", f"reading {path} needs h5py"):
        import h5py
    with contextlib.ExitStack() as stack:
        try:
            if storage.scheme(path) is None:
                storage.open_read(path).close()
                file: Any = path
            else:
                file = stack.enter_context(storage.open_read(path))
            yield stack.enter_context(h5py.File(file, "r"))
        except UNREADABLE as error:
            if isinstance(error, UsageError) or (isinstance(error, OSError) and path in str(error)):
                raise
            raise OSError(f"{path}: {' '.join(map(str, error.args))}") from error


def find_object(group: Any, path: str) -> Any:
    """h5py's dataset or group at a path below a group (from the root if it begins with a slash).

    Raises:
      KeyError: nothing is there.
      OSError: its values are in another file, which is never opened for a file of somebody else.
    """
    import h5py

    node = group.file if path.startswith("/") else group
    for name in filter(None, path.split("/")):
        link = node.get(name, getlink=True) if isinstance(node, h5py.Group) else None
        if link is None:
            raise KeyError(f"there is no {path}")
        if isinstance(link, h5py.ExternalLink):
            raise OSError(f"{path} is an external link, with values in another file; copy them into this one")
        node = find_object(node, link.path) if isinstance(link, h5py.SoftLink) else node[name]
    if isinstance(node, h5py.Dataset) and (node.is_virtual or node.external):
        raise OSError(f"{path} is a dataset with values in another file; copy them into this one")
    return node


def list_datasets(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The datasets below a group by path, sorted by name."""
    for name in sorted(group):
        node = find_object(group, name)
        if hasattr(node, "dtype"):
            yield f"{prefix}{name}", node
        else:
            yield from list_datasets(node, f"{prefix}{name}/")


class Hdf5Container(Container):
    """An open HDF5 file, or the group of an episode in it.

    Args:
      path: the file.
      root: its root (h5py's).
      group: the path of the episode's group; empty for the root.
      masks: robomimic's filter keys: for each, the names of its episodes.
    """

    def __init__(self, path: str, root: Any, group: str = "", masks: Mapping[str, Collection[bytes]] = {}):
        super().__init__(path, group)
        self._root = root
        self._group = find_object(root, group)
        if hasattr(self._group, "dtype"):
            raise OSError(f"{group}: expected a group, found a dataset")
        self.per_episode = self._listed = masks

    @functools.cached_property
    def _datasets(self) -> dict[str, Any]:
        return dict(list_datasets(self._group))

    @functools.cached_property
    def leaves(self) -> Mapping[str, Leaf]:  # type: ignore[override]
        return {name: _hdf5_leaf(dataset) for name, dataset in self._datasets.items()}

    def read(self, name: str, rows: slice = slice(None)) -> Array:
        if name in self._listed:
            return np.array(self.group.rpartition("/")[2].encode() in self._listed[name])
        dataset, leaf = self._datasets[name], self.leaves[name]
        if leaf.trouble:
            raise TypeError(f"{dataset.name} {leaf.trouble}; supported: text, images, and numbers of one shape")
        return plain_values(np.asarray(dataset[rows] if leaf.shape else dataset[()]))

    def attribute(self, place: str) -> Any:
        """A number, an array of numbers, or text as bytes. Raises TypeError for other values."""
        group, _, name = place.rpartition("@")
        value = find_object(self._group, group).attrs[name]
        if isinstance(value, str):
            return value.encode()
        array = np.asarray(value)
        if isinstance(value, bytes) or (array.dtype.kind in "SU" and not array.shape):
            return _to_bytes(array.item())
        if array.dtype.kind not in "biuf":
            raise TypeError(f"the attribute {place} holds neither numbers nor one text")
        return array

    def has(self, name: str) -> bool:
        group, is_attribute, attribute = name.rpartition("@")
        try:
            node = find_object(self._group, group if is_attribute else name)
        except KeyError:
            return False
        return attribute in node.attrs if is_attribute else True

    def groups(self, pattern: str) -> list[str]:
        parent, _, name = pattern.strip("/").rpartition("/")
        found = [match for match, _ in matches(name, list(Hdf5Container(self.path, self._root, parent)._group))]
        return [f"{parent}/{match}".strip("/") for match in sorted(found, key=natural)]

    def within(self, group: str) -> Container:
        return Hdf5Container(self.path, self._root, group, self._masks)

    @functools.cached_property
    def _masks(self) -> Mapping[str, Collection[bytes]]:
        try:
            masks = find_object(self._root, "mask")
        except KeyError:
            return {}
        datasets = {} if hasattr(masks, "dtype") else dict(list_datasets(masks))
        return {f"mask/{name}": {*plain_values(np.asarray(data[()])).flat} for name, data in datasets.items()}


def _hdf5_leaf(dataset: Any) -> Leaf:
    varies = (dataset.dtype.metadata or {}).get("vlen") if dataset.dtype.kind == "O" else None
    readable = dataset.shape is not None and (dataset.dtype.kind != "O" or varies in (str, bytes) or varies == np.uint8)
    trouble = "" if readable else "holds lists of numbers or references"
    return Leaf(tuple(dataset.shape or ()), plain_dtype(dataset.dtype), trouble, (*(dataset.chunks or ()), 1)[0])


class NpzContainer(Container):
    """An open `.npz` file, whose arrays are read by rows."""

    def __init__(self, path: str, archive: zipfile.ZipFile, closing: contextlib.ExitStack):
        super().__init__(path)
        self.leaves: dict[str, Leaf] = {}
        self._members: dict[str, tuple[IO[bytes], int, np.dtype[Any], bool]] = {}  # with the place of the first row
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                continue
            name, stream = info.filename.removesuffix(".npy"), closing.enter_context(archive.open(info))
            is_first = _FORMAT.read_magic(stream) == (1, 0)
            read = _FORMAT.read_array_header_1_0 if is_first else _FORMAT.read_array_header_2_0
            shape, fortran, dtype = read(stream)
            if dtype.hasobject:
                raise OSError(f"{name} holds Python objects, which may run any code: save numbers or text")
            self._members[name] = stream, stream.tell(), dtype, fortran
            self.leaves[name] = Leaf(shape, plain_dtype(dtype))
        if not self.leaves:
            raise OSError("it holds no arrays")

    def read(self, name: str, rows: slice = slice(None)) -> Array:
        stream, origin, dtype, fortran = self._members[name]
        shape = self.leaves[name].shape
        try:
            if fortran or not shape:
                stream.seek(0)
                values: Array = _FORMAT.read_array(stream, allow_pickle=False)
                values = values[rows] if shape else values
            else:
                start, stop, _ = rows.indices(shape[0])
                count, row_bytes = max(stop - start, 0), math.prod(shape[1:]) * dtype.itemsize
                stream.seek(origin + start * row_bytes)  # back in a compressed one: reads it from its start
                values = np.frombuffer(stream.read(count * row_bytes), dtype).reshape(count, *shape[1:])
        except Exception as error:  # zipfile and zlib raise many kinds for damaged files
            raise OSError(f"{name} cannot be read: {shorten(error)}") from error
        return plain_values(values)


@contextlib.contextmanager
def open_npz(path: str) -> Iterator[Container]:
    """Opens an `.npz` file. Raises OSError if it is not one, is damaged, or holds Python objects."""
    with contextlib.ExitStack() as closing:
        try:
            archive = closing.enter_context(zipfile.ZipFile(closing.enter_context(storage.open_read(path))))
            container = NpzContainer(path, archive, closing)
        except Exception as error:  # zipfile and numpy raise many kinds for damaged files
            raise OSError(f"not an .npz file, or damaged: {shorten(error)}") from error
        yield container


class FileRows(Container):
    """Rows of a file that holds episodes end to end.

    Args:
      whole: the file.
      number: the episode's number.
      rows: its rows.
      ended: whether an array says that the episode ends.
      per_file: the arrays without a row for each step.
      per_episode: those of them with a row for each episode.
    """

    def __init__(
        self,
        whole: Container,
        number: int,
        rows: range,
        ended: bool,
        per_file: Collection[str],
        per_episode: Collection[str],
    ):
        super().__init__(whole.path, f"rows {rows.start} to {rows.stop}")
        self.ended, self.per_episode = ended, per_episode
        self.attribute, self.has = whole.attribute, whole.has  # type: ignore[method-assign]
        self._whole, self._number, self._rows = whole, number, rows
        self.leaves = {
            name: leaf._replace(shape=(len(rows), *leaf.shape[1:]))
            for name, leaf in whole.leaves.items()
            if name not in per_file
        }

    def read(self, name: str, rows: slice = slice(None)) -> Array:
        if name in self.per_episode:
            value: Array = self._whole.read(name, slice(self._number, self._number + 1))[0]
            return value
        if name not in self.leaves:
            return self._whole.read(name, rows)
        own = self._rows[rows]
        return self._whole.read(name, slice(own.start, max(own.start, own.stop)))
