"""Reading HDF5 files, through h5py; local files only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from rlds_beam import storage
from rlds_beam.errors import UsageError, needs

Array: TypeAlias = "np.ndarray[Any, Any]"

UNREADABLE = (OSError, KeyError, RuntimeError, ValueError, TypeError)
"""What h5py raises for damaged files and objects that are missing."""


@contextlib.contextmanager
def open_hdf5(path: str) -> Iterator[Any]:
    """An `h5py.File`, to be read. What h5py raises within, of a damaged file, becomes an OSError that names the file.

    Raises:
      UsageError: it is not on a local disk.
      OSError: it is not there, or no HDF5 file, or damaged.
      MissingExtraError: h5py is not installed.
    """
    if storage.scheme(path) is not None:
        raise UsageError(f"cannot read {path}: HDF5 files are read from local disks only; copy it first")
    with needs("hdf5", f"reading {path} needs h5py"):
        import h5py
    storage.check_regular(path)
    with h5py.File(path, "r") as file:
        try:
            yield file
        except OSError:
            raise
        except UNREADABLE as error:
            raise OSError(f"{path}: {' '.join(map(str, error.args))}") from error


def is_dataset(one: Any) -> bool:
    """Whether an object of a file is a dataset, and no group."""
    return hasattr(one, "dtype")


def datasets_of(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The datasets below a group by path, in the order of their names."""
    for name in sorted(group):
        path = f"{prefix}{name}"
        one = group[name]
        if is_dataset(one):
            yield path, one
        else:
            yield from datasets_of(one, f"{path}/")


def is_text(dataset: Any) -> bool:
    """Whether it holds text (or bytes) of any length, or of a fixed one."""
    return dataset.dtype.kind in "OS"


def is_readable(dataset: Any) -> bool:
    """Whether it holds values of one size, text, or bytes (images): no lists of numbers, no references."""
    if dataset.dtype.kind != "O":
        return dataset.shape is not None
    kind = _length_varies(dataset.dtype)
    return kind in (str, bytes) or kind == np.uint8


def check_readable(dataset: Any) -> None:
    """Raises TypeError for a dataset that is not `is_readable`."""
    if not is_readable(dataset):
        kind = _length_varies(dataset.dtype)
        found = "objects" if kind is None else f"lists of {kind}"
        raise TypeError(f"{dataset.name} holds {found}; only text, images and numbers of one shape can be read")


def _length_varies(dtype: np.dtype[Any]) -> Any:
    """What values of any length are of, as h5py says it: str, bytes, or a dtype; None of other objects."""
    metadata: Any = dtype.metadata or {}
    return metadata.get("vlen")


def read_array(dataset: Any) -> Array:
    """The values of a dataset; those of any length as an object array of bytes.

    Raises:
      TypeError: they are other objects.
    """
    check_readable(dataset)
    values: Any = dataset[()]
    if not isinstance(values, np.ndarray):
        values = np.asarray(values, object) if isinstance(values, str | bytes) else np.asarray(values)
    if values.dtype.kind in "SU":
        values = values.astype(object)
    if values.dtype != object:
        return np.asarray(values)
    flat = [_bytes(value) for value in values.reshape(-1)]
    made = np.fromiter(flat, object, len(flat))
    return made.reshape(values.shape)


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, np.ndarray) and value.dtype == np.uint8:
        return value.tobytes()
    if not isinstance(value, bytes):
        raise TypeError(f"a {type(value).__name__} is not text")
    return value
