"""HDF5 files whose episodes a profile finds, as a record format."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rlds_beam import storage
from rlds_beam.formats.arrays.hdf5_reader import (
    DatasetReader,
    Hdf5Group,
    is_dataset,
    is_readable,
    list_datasets,
    open_hdf5,
    read_array,
)
from rlds_beam.formats.profiles.binding import Container, Leaf, matches
from rlds_beam.formats.profiles.files import ProfileFormat
from rlds_beam.typing import Array

_MASKS = "mask"


class Hdf5Episode:
    """An episode in an open HDF5 file (`profiles.containers.Container`).

    Args:
      path: the file.
      root: its root.
      group: the path of the episode's group; empty for the root.
    """

    def __init__(self, path: str, root: Hdf5Group, group: str = ""):
        self.path, self.group, self._root = path, group, root
        self._group: Any = root[group] if group else root
        self._reader = DatasetReader()
        if is_dataset(self._group):
            raise OSError(f"{group} is a dataset, not a group")

    ended = True

    def within(self, group: str) -> Hdf5Episode:
        """The episode of another group of the file."""
        return Hdf5Episode(self.path, self._root, group)

    @functools.cached_property
    def _datasets(self) -> dict[str, Any]:
        return dict(list_datasets(self._group))

    @functools.cached_property
    def leaves(self) -> Mapping[str, Leaf]:
        """The datasets by name."""
        return {name: _leaf(dataset) for name, dataset in self._datasets.items()}

    def read(self, name: str, rows: slice | None = None) -> Array:
        """Rows of a dataset; text and images as an object array of bytes."""
        return self._reader.read(self._datasets[name], rows)

    def attribute(self, place: str) -> Any:
        """An attribute of the episode (`@name`) or of another group (`/data@name`)."""
        group, _, name = place.rpartition("@")
        node = (self._root if group == "/" else self._root[group]) if group else self._group
        return node.attribute(name) if isinstance(node, Hdf5Group) else _missing(place)

    def has(self, name: str) -> bool:
        """Whether there is a dataset, group, or attribute of this name."""
        if "@" not in name:
            return name in self._group
        try:
            self.attribute(name)
        except KeyError:
            return False
        except (TypeError, ValueError):
            return True
        return True


def _leaf(dataset: Any) -> Leaf:
    dtype = np.dtype(object) if dataset.dtype.kind in "SU" else dataset.dtype
    return Leaf(tuple(dataset.shape or ()), dtype, is_readable(dataset), (*(dataset.chunks or ()), 1)[0])


def _missing(place: str) -> Any:
    raise KeyError(f"there is no {place}")


def find_groups(root: Hdf5Group, pattern: str) -> list[str]:
    """The groups that match a pattern such as `data/demo_*`, sorted by number."""
    parent, _, name = pattern.strip("/").rpartition("/")
    node = root[parent] if parent else root
    if is_dataset(node):
        raise OSError(f"{parent} is a dataset, not a group")
    found = [match for match, _ in matches(name, list(node))]
    return [f"{parent}/{match}".strip("/") for match in sorted(found, key=natural)]


def natural(text: str) -> list[tuple[int, str]]:
    """A sort key by which `demo_2` comes before `demo_10`."""
    return [(int(part), part) if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


def read_masks(root: Hdf5Group) -> dict[str, frozenset[str]]:
    """robomimic's filter keys: for each, the names of its episodes."""
    if _MASKS not in root or is_dataset(root[_MASKS]):
        return {}
    masks = {}
    for name, dataset in list_datasets(root[_MASKS]):
        values = read_array(dataset).reshape(-1)
        if values.dtype == object and "/" not in name:
            masks[name] = frozenset(value.decode("utf-8", "replace") for value in values)
    return masks


@dataclasses.dataclass(frozen=True)
class Hdf5Format(ProfileFormat):
    """HDF5 files with a profile.

    Attributes:
      split_masks: the filter keys that are splits; the episodes of a file are in the order of these.
    """

    split_masks: tuple[str, ...] = ()
    name = "hdf5"

    @staticmethod
    @contextlib.contextmanager
    def whole(path: str) -> Iterator[Hdf5Episode]:
        with open_hdf5(path) as root:
            yield Hdf5Episode(path, root)

    def count(self, path: str) -> int:
        return super().count(path) if self.layout.profile.per_file else len(self._groups(path)[0])

    def groups(self, path: str) -> list[str]:
        return super().groups(path) if self.layout.profile.per_file else self._groups(path)[0]

    def is_splittable(self, path: str) -> bool:
        return super().is_splittable(path) or not self.layout.profile.per_file

    def episode(self, whole: Container, i: int) -> tuple[Container, Mapping[str, bool]]:
        if self.layout.profile.per_file or not isinstance(whole, Hdf5Episode):
            return super().episode(whole, i)
        groups, masks = self._groups(whole.path)
        listed = {mask: groups[i].rpartition("/")[2] in names for mask, names in masks.items()}
        return whole.within(groups[i]), listed

    def _groups(self, path: str) -> tuple[list[str], Mapping[str, frozenset[str]]]:
        """The groups of a file's episodes, and its filter keys."""
        return _cached_groups(path, storage.stamp(path), self.layout.profile.episodes, self.split_masks)


@functools.lru_cache(maxsize=64)
def _cached_groups(
    path: str, stamp: Any, pattern: str, split_masks: tuple[str, ...]
) -> tuple[list[str], Mapping[str, frozenset[str]]]:
    del stamp
    with open_hdf5(path) as root:
        groups, masks = find_groups(root, pattern), read_masks(root)
    order = {group: i for i, split in enumerate(split_masks) for group in masks.get(split, ())}
    return sorted(groups, key=lambda group: order.get(group.rpartition("/")[2], len(split_masks))), masks
