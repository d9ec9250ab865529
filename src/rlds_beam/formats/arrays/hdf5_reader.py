"""Read HDF5 files with h5py, on local disks and in buckets."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlds_beam import storage
from rlds_beam.errors import needs
from rlds_beam.reading.directory_listing import names_in
from rlds_beam.typing import Array

UNREADABLE = (OSError, KeyError, RuntimeError, ValueError, TypeError)
"""Raised by h5py for damaged files and missing objects."""

ENDINGS = (".hdf5", ".h5")
"""Endings of D4RL's files."""
_MAX_TRIED = 3
"""Maximum number of files to open in a directory to recognize its format."""

MAX_BYTES = 4 << 30
"""Maximum size of an episode's array, and of one of its chunks."""

_MAX_RATIO = 2000
"""Maximum compression ratio; HDF5's DEFLATE reaches at most 1,032."""

_UNSTORED = 16 << 20
"""Bytes that may be missing in the file: a dataset that was never written reads as its fill value."""

_MAX_PIECE_BYTES = 64 << 20
"""Bytes to read at once: h5py holds the interpreter's lock meanwhile, and Ctrl-C waits for it."""

_MIN_TEXT_BYTES = 64
"""Memory of a value of text or bytes, however short."""

_MAX_ALIASES = 2
"""How often the datasets of an episode may hold the same values of varying length, by links."""

_MAX_ATTRIBUTE_BYTES = 64 << 20
"""Maximum size of an attribute."""

_MAX_LINKS = 32
"""Maximum length of a chain of soft links, and depth of nested groups."""


@contextlib.contextmanager
def open_hdf5(path: str) -> Iterator[Hdf5Group]:
    """Opens an HDF5 file and returns its root. Converts h5py's errors to an OSError that names the file.

    A file in a bucket is read by ranges.

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
            file = stack.enter_context(h5py.File(file, "r"))
        except OSError as error:
            raise error if path in str(error) else OSError(f"{path}: {error}") from error
        try:
            yield Hdf5Group(file, path)
        except OSError as error:
            if path in str(error):
                raise
            raise OSError(f"{path}: {error}") from error
        except UNREADABLE as error:
            raise OSError(f"{path}: {' '.join(map(str, error.args))}") from error


def has_objects(path: str, names: Sequence[str]) -> str | None:
    """The name of an HDF5 file, or of the first readable one in a directory, if it has these objects.

    For `Source.recognize`.

    Raises:
      OSError: the file is damaged.
      MissingExtraError: h5py is not installed.
    """
    for name in [name for name in names_in(path) if name.endswith(ENDINGS)][:_MAX_TRIED]:
        with contextlib.suppress(OSError):
            return has_objects(storage.join(path, name), names)
    if not path.endswith(ENDINGS) or not storage.exists(path):
        return None
    with open_hdf5(path) as file:
        return storage.split(path)[1] if all(name in file for name in names) else None


class Hdf5Group:
    """A group of an untrusted HDF5 file; all that it returns is stored in that file.

    External links, external storage and virtual datasets make a reader open other files. They are refused without
    opening those files. Soft links lead to other places in the same file, and are followed.
    """

    def __init__(self, group: Any, path: str):
        self._group, self._path = group, path

    def __iter__(self) -> Iterator[str]:
        """The names in the group. Raises OSError if one is there twice: the lists of a damaged file may have no end."""
        names: dict[bytes, None] = {}
        twice: list[bytes] = []

        def add(name: bytes) -> str | None:
            if name not in names:
                return names.setdefault(name)
            twice.append(name)
            return "stop"

        self._group.id.links.iterate(add)
        if twice:
            raise OSError(f"the group {self._group.name} lists an object twice")
        return iter([name.decode("utf-8", "surrogateescape") for name in names])

    def __len__(self) -> int:
        return len(self._group)

    def __contains__(self, path: str) -> bool:
        try:
            self._find(path)
        except KeyError:
            return False
        return True

    def __getitem__(self, path: str) -> Any:
        """The dataset (h5py's) or group at a path.

        Raises:
          KeyError: nothing is there.
          OSError: it is in another file, or neither a dataset nor a group.
        """
        return self._find(path)

    def attribute(self, name: str) -> Any:
        """An attribute: a number, an array of numbers, or text as bytes.

        Raises:
          KeyError: there is none.
          TypeError: it is something else.
          ValueError: it is larger than `_MAX_ATTRIBUTE_BYTES`.
        """
        attributes = self._group.attrs
        if name not in attributes:
            raise KeyError(f"there is no attribute {name}")
        stored = attributes.get_id(name)
        if math.prod(stored.shape or (1,)) * stored.dtype.itemsize > _MAX_ATTRIBUTE_BYTES:
            raise ValueError(f"the attribute {name} is larger than {_MAX_ATTRIBUTE_BYTES >> 20} MiB")
        if stored.dtype.kind == "O" and stored.shape:  # each value may be as large as the file
            raise TypeError(f"the attribute {name} holds neither numbers nor one text")
        value = attributes[name]
        if isinstance(value, str | bytes):
            return value.encode() if isinstance(value, str) else value
        array = np.asarray(value)
        if array.dtype.kind in "biuf":
            return array
        if array.dtype.kind in "SU" and not array.shape:
            return _bytes(array.item())
        raise TypeError(f"the attribute {name} holds neither numbers nor one text")

    @property
    def address(self) -> int:
        """The group's address in the file."""
        import h5py

        return int(h5py.h5o.get_info(self._group.id).addr)

    def _find(self, path: str, links: int = _MAX_LINKS) -> Any:
        node: Any = Hdf5Group(self._group.file, self._path) if path.startswith("/") else self
        for name in path.split("/"):
            if name in ("", "."):
                continue
            if not isinstance(node, Hdf5Group):
                raise KeyError(f"there is no {path}")
            node = node._child(name, links)
        return node

    def _child(self, name: str, links: int) -> Any:
        import h5py

        where, label = f"{self._group.name.rstrip('/')}/{name}", name.encode("utf-8", "surrogateescape")
        if not self._group.id.links.exists(label):
            raise KeyError(f"there is no {where}")
        kind = self._group.id.links.get_info(label).type
        if kind == h5py.h5l.TYPE_SOFT:
            if not links:
                raise KeyError(f"{where} is a link to itself")
            return self._find(self._group.id.links.get_val(label).decode("utf-8", "surrogateescape"), links - 1)
        if kind != h5py.h5l.TYPE_HARD:
            raise _foreign(where, "an external link")
        child = self._group[name]
        if isinstance(child, h5py.Group):
            return Hdf5Group(child, self._path)
        if not isinstance(child, h5py.Dataset):
            raise OSError(f"{where} is neither a dataset nor a group")
        if child.is_virtual:
            raise _foreign(where, "a virtual dataset")
        if child.external is not None:
            raise _foreign(where, "a dataset with external storage")
        return child


def _foreign(where: str, what: str) -> OSError:
    return OSError(f"{where} is {what}, with values in another file; copy them into this one")


def is_dataset(node: Any) -> bool:
    """Whether an object is a dataset, not a group."""
    return not isinstance(node, Hdf5Group)


def list_datasets(group: Hdf5Group, prefix: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """The datasets below a group by path, sorted by name. Raises OSError if a group is in it twice."""
    seen = set() if seen is None else seen
    if is_dataset(group):
        raise OSError("expected a group, found a dataset")
    if group.address in seen or prefix.count("/") > _MAX_LINKS:
        raise OSError(f"the group {prefix or '/'} is linked twice, or more than {_MAX_LINKS} groups deep")
    seen.add(group.address)
    for name in sorted(group):
        node = group[name]
        if is_dataset(node):
            yield f"{prefix}{name}", node
        else:
            yield from list_datasets(node, f"{prefix}{name}/", seen)


def is_text(dataset: Any) -> bool:
    """Whether a dataset holds text or bytes, of fixed or varying length."""
    return dataset.dtype.kind in "OS"


def is_readable(dataset: Any) -> bool:
    """Whether a dataset holds numbers, text, or bytes (images), not lists of numbers or references."""
    if dataset.dtype.kind != "O":
        return dataset.shape is not None
    kind = _length_varies(dataset.dtype)
    return kind in (str, bytes) or kind == np.uint8


def check_readable(dataset: Any) -> None:
    """Raises TypeError for a dataset that is not `is_readable`."""
    if not is_readable(dataset):
        kind = _length_varies(dataset.dtype)
        contents = "objects" if kind is None else f"lists of {kind}"
        raise TypeError(f"{dataset.name} holds {contents}; supported: text, images, and numbers of one shape")


def _length_varies(dtype: np.dtype[Any]) -> Any:
    """h5py's element type of values of varying length: str, bytes, or a dtype; None for other objects."""
    metadata: Any = dtype.metadata or {}
    return metadata.get("vlen")


def check_stored(dataset: Any) -> Any:
    """Returns the dataset if it is safe to read: the shape and fill value of a small file may claim terabytes.

    Raises:
      ValueError: it is larger than an episode may be, or than its stored bytes could hold.
      TypeError: it is a group.
    """
    if not is_dataset(dataset):
        raise TypeError("expected a dataset, found a group")
    if dataset.shape is None:
        raise ValueError(f"{dataset.name} is empty")
    stored, size = dataset.id.get_storage_size(), dataset.nbytes
    chunk = dataset.dtype.itemsize * math.prod(dataset.chunks or (0,))
    written = dataset.id.get_type().get_size() * math.prod(dataset.shape)
    is_cut = not dataset.chunks and 0 < stored < written  # rows of it would be read as zeros
    if is_cut or (size > _UNSTORED and size > _MAX_RATIO * stored):
        raise ValueError(f"{dataset.name} claims {max(size, written):,} bytes, but the file stores only {stored:,}")
    if chunk > MAX_BYTES:
        raise ValueError(f"{dataset.name} has chunks of {chunk:,} bytes; at most {MAX_BYTES:,} are supported")
    return dataset


def read_array(dataset: Any, rows: slice | None = None) -> Array:
    """The values of a dataset, or some of its rows. Values of varying length become an object array of bytes.

    Raises:
      TypeError: the values have another type.
      ValueError: the values are larger than `MAX_BYTES`, or the dataset claims more than the file stores.
    """
    check_readable(check_stored(dataset))
    shape = dataset.shape
    if shape and rows is not None:
        start, stop, _ = rows.indices(shape[0])
        shape = (max(stop - start, 0), *shape[1:])
    else:
        start = 0
    width = max(dataset.dtype.itemsize, _MIN_TEXT_BYTES) if is_text(dataset) else dataset.dtype.itemsize
    size = math.prod(shape) * width
    if size > MAX_BYTES:
        raise ValueError(f"{dataset.name} has {size:,} bytes; an episode may have at most {MAX_BYTES:,}")
    if is_text(dataset):
        return _read_text(dataset, start, shape)
    if size <= _MAX_PIECE_BYTES or not shape:
        return np.asarray(dataset[start : start + shape[0]] if shape else dataset[()])
    values = np.empty(shape, dataset.dtype)
    chunk = (dataset.chunks or (1,))[0]
    step = chunk * max(_MAX_PIECE_BYTES // (chunk * size // shape[0]), 1)
    for low in range(start - start % chunk, start + shape[0], step):
        piece = slice(max(low, start), min(low + step, start + shape[0]))
        dataset.read_direct(values, piece, slice(piece.start - start, piece.stop - start))
    return values


def _read_text(dataset: Any, start: int, shape: tuple[int, ...]) -> Array:
    """Reads text or bytes in pieces.

    All values of varying length may be the same large one of a small file, so each piece has at most as many as fit in
    `_MAX_PIECE_BYTES` if each were as large as the file, and together they have at most the bytes of the file, which
    never compresses them.
    """
    limit, total = _file_size(dataset) if dataset.dtype.kind == "O" else MAX_BYTES, 0
    values, count = np.empty(shape, object), (1, *shape)[-1]
    if dataset.dtype.kind == "O":
        _check_lengths(dataset, start, math.prod(shape), limit)
    step = max(1, _MAX_PIECE_BYTES // (max(limit, 1) if dataset.dtype.kind == "O" else dataset.dtype.itemsize))
    for index in np.ndindex(shape[:-1]):
        place = (index[0] + start, *index[1:]) if index else ()
        first = start if len(shape) == 1 else 0
        for low in range(0, count, step):
            high = min(low + step, count)
            read = dataset[(*place, slice(first + low, first + high))] if shape else [dataset[()]]
            piece = [_bytes(value) for value in read]
            total += sum(map(len, piece))
            if total > limit:
                raise ValueError(f"{dataset.name} claims more bytes than its file has ({limit:,})")
            if shape:
                values[(*index, slice(low, high))] = piece
            else:
                values[()] = piece[0]
    return values


def _check_lengths(dataset: Any, row: int, count: int, limit: int) -> None:
    """Raises ValueError if a value of varying length claims more bytes than the file, which HDF5 would allocate.

    Only for values that are in no chunks: there, each has a length of 4 bytes, and a place in the file.
    """
    place, stored = dataset.id.get_offset(), dataset.id.get_storage_size()
    if place is None or not count or dataset.file.driver == "fileobj":  # of a store
        return
    size = stored // dataset.size
    with storage.open_read(str(dataset.file.filename)) as file:
        file.seek(place + row * math.prod(dataset.shape[1:]) * size)
        content = file.read(count * size)
    longest = max((int.from_bytes(content[at : at + 4], "little") for at in range(0, len(content), size)), default=0)
    if longest > limit:
        raise ValueError(f"{dataset.name} has a value of {longest:,} bytes, but its file has {limit:,}")


def _file_size(dataset: Any) -> int:
    return min(int(dataset.file.id.get_filesize()), MAX_BYTES)


class DatasetReader:
    """Reads the datasets of one episode, and bounds their total size: many names may lead to one dataset."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._texts: dict[str, int] = {}

    def read(self, dataset: Any, rows: slice | None = None) -> Array:
        """Like `read_array`.

        Raises:
          TypeError: the values have another type.
          ValueError: the values are too large, alone or together with those that were read before.
        """
        values = read_array(dataset, rows)
        is_varying = dataset.dtype.kind == "O"
        sizes, most = self._numbers, MAX_BYTES
        if is_varying:
            sizes, most = self._texts, _MAX_ALIASES * _file_size(dataset)
        size = sum(map(len, values.reshape(-1))) if is_varying else values.nbytes
        sizes[dataset.name] = max(size, sizes.get(dataset.name, 0))
        if (total := sum(sizes.values())) > most:
            raise ValueError(f"its arrays have {total:,} bytes up to {dataset.name}; at most {most:,} are supported")
        return values


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, np.ndarray) and value.dtype == np.uint8:
        return value.tobytes()
    if not isinstance(value, bytes):
        raise TypeError(f"a {type(value).__name__} is not text")
    return value
