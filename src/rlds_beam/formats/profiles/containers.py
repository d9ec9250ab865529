"""The arrays of an HDF5 or `.npz` file, or of an episode in it: names, shapes, dtypes, attributes, and rows."""

from __future__ import annotations

import contextlib
import functools
import math
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

import numpy as np

from rlds_beam import storage
from rlds_beam.errors import UsageError, needs
from rlds_beam.formats.arrays.array_episodes import MAX_BYTES, UNREADABLE
from rlds_beam.text import shorten
from rlds_beam.typing import Array

NPZ = ".npz"
HDF5 = (".hdf5", ".h5")
_MAX_DEPTH = 32  # of nested groups
_MASKS = "mask"
_NPZ_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, SyntaxError, tokenize.TokenError),
    *UNREADABLE,
)


class Leaf(NamedTuple):
    """An array of a file.

    Attributes:
      shape: its shape, with rows.
      dtype: its dtype; object for text and bytes.
      readable: whether its values can be read: not lists of numbers or references.
      chunk: the rows that are compressed together, so that reading one of them reads them all.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    readable: bool = True
    chunk: int = 1


class Container:
    """The arrays of an open file, or of an episode in it.

    Attributes:
      path: the file.
      group: the episode's group in it; empty if the file is one episode.
      ended: whether the episode has its end, which the last rows of a file may lack.
      seekable: whether rows can be read from the middle without reading those before.
    """

    ended = True
    seekable = True

    def __init__(self, path: str, group: str = ""):
        self.path, self.group = path, group

    @property
    def leaves(self) -> Mapping[str, Leaf]:
        """The arrays by name."""
        raise NotImplementedError

    def read(self, name: str, rows: slice | None = None) -> Array:
        """An array, or some rows; text and images as an object array of bytes. Raises KeyError if there is none."""
        raise NotImplementedError

    def attribute(self, place: str) -> Any:
        """An attribute (`@name` of the episode, `/data@name` of another group). Raises KeyError if there is none."""
        raise KeyError(f"there is no {place}")

    def has(self, name: str) -> bool:
        """Whether there is an array or group of this name, or an attribute `@name`."""
        return name in self.leaves

    def groups(self, pattern: str) -> list[str]:
        """The groups that match a pattern such as `data/demo_*`, sorted by number."""
        del pattern
        return []

    def within(self, group: str) -> Container:
        """The episode of a group."""
        raise KeyError(f"there is no {group}")

    def masks(self) -> Mapping[str, frozenset[str]]:
        """robomimic's filter keys: for each, the names of its episodes."""
        return {}

    def __str__(self) -> str:
        return f"{self.path}: {self.group}" if self.group else self.path


@contextlib.contextmanager
def open_container(path: str) -> Iterator[Container]:
    """Opens a file. Raises OSError if it is damaged, or cannot be read."""
    if path.endswith(NPZ):
        with _open_npz(path) as container:
            yield container
        return
    with open_hdf5(path) as root:
        yield Hdf5Container(path, root)


def matches(pattern: str, names: Collection[str]) -> list[tuple[str, tuple[str, ...]]]:
    """The names that match a pattern, with what its wildcards stand for."""
    parts = re.split(r"(\*\*|\*)", pattern.strip("/"))
    expression = "".join({"*": "([^/]+)", "**": "(.+)"}.get(part, re.escape(part)) for part in parts)
    found = ((name, re.fullmatch(expression, name)) for name in names)
    return [(name, match.groups()) for name, match in found if match]


def natural(text: str) -> list[tuple[int, str]]:
    """A sort key by which `demo_2` comes before `demo_10`."""
    return [(int(part), part) if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


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
                storage.check_regular(path)
                file: Any = path
            else:
                file = stack.enter_context(storage.open_read(path))
            yield stack.enter_context(h5py.File(file, "r"))
        except UNREADABLE as error:
            if isinstance(error, UsageError) or (isinstance(error, OSError) and path in str(error)):
                raise
            raise OSError(f"{path}: {' '.join(map(str, error.args))}") from error


def find_object(group: Any, path: str) -> Any:
    """h5py's dataset or group at a path below a group.

    External links, external storage, and virtual datasets make HDF5 open other files, so they are refused.

    Raises:
      KeyError: nothing is there.
      OSError: its values are in another file.
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
    if not isinstance(node, h5py.Group | h5py.Dataset):
        raise OSError(f"{path} is neither a dataset nor a group")
    return node


def is_dataset(node: Any) -> bool:
    """Whether an object of h5py is a dataset, not a group."""
    return hasattr(node, "dtype")


def list_datasets(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The datasets below a group by path, sorted by name."""
    if is_dataset(group):
        raise OSError("expected a group, found a dataset")
    if prefix.count("/") > _MAX_DEPTH:
        raise OSError(f"the group {prefix} is more than {_MAX_DEPTH} groups deep, or linked to itself")
    for name in sorted(group):
        node = find_object(group, name)
        if is_dataset(node):
            yield f"{prefix}{name}", node
        else:
            yield from list_datasets(node, f"{prefix}{name}/")


class Hdf5Container(Container):
    """An open HDF5 file, or the group of an episode in it.

    Args:
      path: the file.
      root: its root (h5py's).
      group: the path of the episode's group; empty for the root.
    """

    def __init__(self, path: str, root: Any, group: str = ""):
        super().__init__(path, group)
        self._root = root
        self._group = find_object(root, group) if group else root
        if is_dataset(self._group):
            raise OSError(f"{group}: expected a group, found a dataset")

    @functools.cached_property
    def _datasets(self) -> dict[str, Any]:
        return dict(list_datasets(self._group))

    @functools.cached_property
    def leaves(self) -> Mapping[str, Leaf]:
        return {name: _hdf5_leaf(dataset) for name, dataset in self._datasets.items()}

    def read(self, name: str, rows: slice | None = None) -> Array:
        return read_array(self._datasets[name], rows)

    def attribute(self, place: str) -> Any:
        """A number, an array of numbers, or text as bytes. Raises TypeError for other values."""
        group, _, name = place.rpartition("@")
        value = (find_object(self._root, group) if group else self._group).attrs[name]
        if isinstance(value, str):
            return value.encode()
        array = np.asarray(value)
        if isinstance(value, bytes) or (array.dtype.kind in "SU" and not array.shape):
            return _to_bytes(array.item())
        if array.dtype.kind not in "biuf":
            raise TypeError(f"the attribute {place} holds neither numbers nor one text")
        return array

    def has(self, name: str) -> bool:
        try:
            return find_object(self._group, name) is not None if "@" not in name else self.attribute(name) is not None
        except KeyError:
            return False
        except TypeError:
            return True

    def groups(self, pattern: str) -> list[str]:
        parent, _, name = pattern.strip("/").rpartition("/")
        node = find_object(self._root, parent) if parent else self._root
        if is_dataset(node):
            raise OSError(f"{parent} is a dataset, not a group")
        found = [match for match, _ in matches(name, list(node))]
        return [f"{parent}/{match}".strip("/") for match in sorted(found, key=natural)]

    def within(self, group: str) -> Container:
        return Hdf5Container(self.path, self._root, group)

    def masks(self) -> Mapping[str, frozenset[str]]:
        found = {}
        if _MASKS in self._root and not is_dataset(find_object(self._root, _MASKS)):
            for name, dataset in list_datasets(find_object(self._root, _MASKS)):
                values = read_array(dataset).reshape(-1)
                if values.dtype == object and "/" not in name:
                    found[name] = frozenset(value.decode("utf-8", "replace") for value in values)
        return found

    def numbered_groups(self, parent: str = "") -> str:
        """The pattern of numbered groups, at the root or one level below; empty if there are none."""
        group = find_object(self._root, parent) if parent else self._root
        names = list(group)
        stems = {name.rstrip("0123456789") for name in names}
        numbered = [name for name in names if name[-1:].isdecimal() and not is_dataset(find_object(group, name))]
        if numbered and len(stems) == 1:
            return f"{parent}/{stems.pop()}*".strip("/")
        if parent:
            return ""
        below = (self.numbered_groups(name) for name in names if not is_dataset(find_object(group, name)))
        return next(filter(None, below), "")


def _hdf5_leaf(dataset: Any) -> Leaf:
    is_text = dataset.dtype.kind in "SU"
    varies = (dataset.dtype.metadata or {}).get("vlen") if dataset.dtype.kind == "O" else None
    readable = dataset.shape is not None and (dataset.dtype.kind != "O" or varies in (str, bytes) or varies == np.uint8)
    dtype = np.dtype(object) if is_text else dataset.dtype
    return Leaf(tuple(dataset.shape or ()), dtype, readable, (*(dataset.chunks or ()), 1)[0])


def read_array(dataset: Any, rows: slice | None = None) -> Array:
    """The values of a dataset, or some of its rows. Text and values of varying length are an object array of bytes.

    Raises:
      TypeError: the values have another type.
      ValueError: the values are larger than `MAX_BYTES`.
    """
    if not _hdf5_leaf(dataset).readable:
        raise TypeError(f"{dataset.name} holds lists or objects; supported: text, images, and numbers of one shape")
    shape = dataset.shape
    place: Any = ()
    if shape and rows is not None:
        start, stop, _ = rows.indices(shape[0])
        place, shape = slice(start, max(start, stop)), (max(stop - start, 0), *shape[1:])
    if (size := math.prod(shape) * dataset.dtype.itemsize) > MAX_BYTES:
        raise ValueError(f"{dataset.name} has {size:,} bytes; an episode may have at most {MAX_BYTES:,}")
    values = np.asarray(dataset[place])
    if dataset.dtype.kind not in "OS":
        return values
    flat = [_to_bytes(value) for value in values.reshape(-1).tolist()]
    texts: Array = np.fromiter(flat, object, len(flat)).reshape(shape)
    return texts


def _to_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, np.ndarray) and value.dtype == np.uint8:
        return value.tobytes()
    if not isinstance(value, bytes):
        raise TypeError(f"a {type(value).__name__} is not text")
    return bytes(value)


class _Member(NamedTuple):
    """An array of an `.npz` file.

    Attributes:
      stream: its bytes; seeking back in a compressed one reads it again from its start.
      start: where the values begin.
      fortran: whether they are in Fortran order.
    """

    stream: IO[bytes]
    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool


@contextlib.contextmanager
def _open_npz(path: str) -> Iterator[Container]:
    """Opens an `.npz` file. Raises OSError if it is not one, is damaged, or holds Python objects."""
    with contextlib.ExitStack() as closing:
        try:
            archive = closing.enter_context(zipfile.ZipFile(closing.enter_context(storage.open_read(path))))
            infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            if not infos:
                raise OSError("it holds no arrays")
            members = {}
            for info in infos:
                stream = closing.enter_context(archive.open(info))
                name = info.filename.removesuffix(".npy")
                members[name] = _read_header(stream, name)
        except _NPZ_ERRORS as error:
            raise OSError(f"not an .npz file, or damaged: {shorten(error)}") from error
        yield NpzContainer(path, members, all(info.compress_type == zipfile.ZIP_STORED for info in infos))


def _read_header(stream: IO[bytes], name: str) -> _Member:
    formats: Any = np.lib.format
    version = formats.read_magic(stream)
    read = formats.read_array_header_1_0 if version == (1, 0) else formats.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise OSError(f"{name} holds Python objects, which may run any code when they are read: save numbers or text")
    return _Member(stream, stream.tell(), shape, dtype, fortran and len(shape) > 1)


class NpzContainer(Container):
    """An open `.npz` file."""

    def __init__(self, path: str, members: Mapping[str, _Member], seekable: bool):
        super().__init__(path)
        self._members, self.seekable = members, seekable

    @functools.cached_property
    def leaves(self) -> Mapping[str, Leaf]:
        found = {}
        for name, member in self._members.items():
            dtype = np.dtype(object) if member.dtype.kind in "SU" else member.dtype.newbyteorder("=")
            found[name] = Leaf(member.shape, dtype, bool(member.shape))
        return found

    def read(self, name: str, rows: slice | None = None) -> Array:
        member = self._members[name]
        if not member.shape:
            return _as_native(self._read(name, 0, ()))
        start, stop, _ = (rows or slice(None)).indices(member.shape[0])
        stop = max(start, stop)
        if member.fortran:
            return _as_native(self._read(name, 0, member.shape[::-1]).T[start:stop])
        row = math.prod(member.shape[1:]) * member.dtype.itemsize
        return _as_native(self._read(name, start * row, (stop - start, *member.shape[1:])))

    def _read(self, name: str, offset: int, shape: tuple[int, ...]) -> Array:
        member = self._members[name]
        size = math.prod(shape) * member.dtype.itemsize
        if size > MAX_BYTES:
            raise OSError(f"{name} has {size:,} bytes to read at once, more than {MAX_BYTES:,}")
        try:
            member.stream.seek(member.start + offset)
            data = member.stream.read(size)
        except _NPZ_ERRORS as error:
            raise OSError(f"{name} cannot be read: {shorten(error)}") from error
        if len(data) != size:
            raise OSError(f"{name} is cut short")
        return np.frombuffer(data, member.dtype).reshape(shape)


def _as_native(array: Array) -> Array:
    """Text as an object array of bytes; other arrays with the machine's byte order."""
    if array.dtype.kind in "SU":
        flat = [value if isinstance(value, bytes) else str(value).encode() for value in array.reshape(-1)]
        return np.fromiter(flat, object, len(flat)).reshape(array.shape)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


class FileRows(Container):
    """Some rows of a file that holds episodes end to end.

    Args:
      whole: the file.
      first, last: the rows of the episode.
      rows: the rows of the file.
      ended: whether an array says that the episode ends.
    """

    def __init__(self, whole: Container, first: int, last: int, rows: int, ended: bool):
        super().__init__(whole.path, f"rows {first} to {last}")
        self.ended = ended
        self.attribute, self.has = whole.attribute, whole.has  # type: ignore[method-assign]
        self._whole, self._first, self._last, self._rows = whole, first, last, rows

    @functools.cached_property
    def leaves(self) -> Mapping[str, Leaf]:
        """The arrays with a row for each step."""
        count = self._last - self._first
        return {
            name: leaf._replace(shape=(count, *leaf.shape[1:]))
            for name, leaf in self._whole.leaves.items()
            if leaf.shape[:1] == (self._rows,)
        }

    def read(self, name: str, rows: slice | None = None) -> Array:
        if name not in self.leaves:
            return self._whole.read(name, rows)
        start, stop, _ = (rows or slice(None)).indices(self._last - self._first)
        return self._whole.read(name, slice(self._first + start, self._first + max(start, stop)))


class JoinedArrays(Container):
    """An episode whose arrays include joined ones: `obs/a+b` is `obs/a` and `obs/b` side by side.

    Args:
      container: the episode.
      names: the names of joined arrays. Those whose parts do not fit are left out; a part `b?` may be missing.
    """

    def __init__(self, container: Container, names: Sequence[str]):
        super().__init__(container.path, container.group)
        self.ended = container.ended
        self.attribute, self.has = container.attribute, container.has  # type: ignore[method-assign]
        self._container = container
        parts = {name: _parts(name, container.leaves) for name in names if name not in container.leaves}
        self._joined = {name: found for name, found in parts.items() if found}

    @functools.cached_property
    def leaves(self) -> Mapping[str, Leaf]:
        leaves = dict(self._container.leaves)
        for name, parts in self._joined.items():
            own = [leaves[part] for part in parts]
            width = sum(math.prod(leaf.shape[1:]) for leaf in own)
            leaves[name] = Leaf((own[0].shape[0], width), np.result_type(*(leaf.dtype for leaf in own)))
        return leaves

    def read(self, name: str, rows: slice | None = None) -> Array:
        if name not in self._joined:
            return self._container.read(name, rows)
        arrays = [self._container.read(part, rows) for part in self._joined[name]]
        return np.concatenate([array.reshape(len(array), -1) for array in arrays], axis=1)


def _parts(name: str, leaves: Mapping[str, Leaf]) -> list[str]:
    """The arrays to join; empty if one is missing, or is no number or vector in each of the same rows."""
    group, _, last = name.rpartition("/")
    parts = [f"{group}/{part}".lstrip("/") for part in last.split("+")]
    found = [part.rstrip("?") for part in parts if not part.endswith("?") or part.rstrip("?") in leaves]
    own = [leaves[part] for part in found if part in leaves]
    fits = all(leaf.readable and len(leaf.shape) in (1, 2) and leaf.dtype.kind in "biuf" for leaf in own)
    return found if len(own) == len(found) and fits and len({leaf.shape[0] for leaf in own}) == 1 else []
