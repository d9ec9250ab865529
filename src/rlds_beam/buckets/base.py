"""The interface of an object store, and shared code for paths and patterns."""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, NamedTuple, TypeVar

from rlds_beam.errors import UsageError

AT_ONCE = 32
"""Concurrent requests to a store; requests mostly wait."""

KEPT_CONNECTIONS = 128
"""Maximum idle connections kept per store; an open file makes several requests at once."""

Value = TypeVar("Value")
Result = TypeVar("Result")


class Entry(NamedTuple):
    """An object or a directory (a common prefix of objects).

    Attributes:
      path: the full path; directories have no trailing slash.
      size: the size in bytes; None for a directory.
      checksum: the CRC32C or entity tag; empty if the listing does not include it.
    """

    path: str
    size: int | None
    checksum: str = ""


class Store(abc.ABC):
    """A client for one object store. Thread-safe, but must not be shared between processes."""

    def root(self, path: str) -> str:
        """The part of a path that `check` is about: the bucket."""
        return bucket_of(path)

    def pinned(self, path: str) -> str:
        """The same path with the current version in it, if the store has versions of whole directories."""
        return path

    @abc.abstractmethod
    def check(self, path: str) -> None:
        """Checks access to the path's bucket with one request, within ten seconds.

        Raises:
          BucketAccessError: the bucket cannot be used.
        """

    @abc.abstractmethod
    def open_read(self, path: str) -> BinaryIO:
        """Opens an object as a seekable file.

        Raises:
          FileNotFoundError: the object does not exist.
        """

    @abc.abstractmethod
    def open_write(self, path: str) -> BinaryIO:
        """Opens an object for writing; it is created or replaced on close."""

    @abc.abstractmethod
    def find(self, path: str) -> Entry | None:
        """Looks up an object and its checksum; None if it does not exist."""

    @abc.abstractmethod
    def entries(self, prefix: str, *, below: bool) -> Iterator[Entry]:
        """Lists objects whose paths start with `prefix`, sorted by path.

        Args:
          prefix: a path, or the start of one.
          below: also list objects in subdirectories; otherwise each subdirectory is one entry.
        """

    @abc.abstractmethod
    def rename(self, source: str, destination: str) -> None:
        """Moves an object, replacing any at the destination."""

    @abc.abstractmethod
    def delete(self, paths: Sequence[str]) -> None:
        """Deletes objects; missing ones are ignored."""


def split_path(path: str) -> tuple[str, str]:
    """Splits a path into (bucket, name); the name may be empty.

    Raises:
      UsageError: the path has no bucket.
    """
    scheme, _, rest = path.partition("://")
    bucket, _, name = rest.partition("/")
    if not bucket:
        raise UsageError(f"{path}: expected {scheme}://BUCKET/PATH")
    return bucket, name


def bucket_of(path: str) -> str:
    """The bucket of a path, with its scheme (`s3://bucket`)."""
    return f"{path.partition('://')[0]}://{split_path(path)[0]}"


def matching(store: Store, pattern: str, directory: str = "") -> list[Entry]:
    """The objects that match a pattern, sorted; `*` and `?` stop at slashes, `**` does not.

    Args:
      store: the store to list.
      pattern: a path, relative to `directory` if given. If an object has exactly this name, it is the only match.
      directory: a literal prefix; its characters are never wildcards.
    """
    root = f"{directory.rstrip('/')}/" if directory else ""
    prefix = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    if (prefix == pattern or not directory) and (match := store.find(root + pattern)) is not None:
        return [match]
    if prefix == pattern:
        return []
    expression = re.compile(re.escape(root) + _expression(pattern), re.DOTALL)
    entries = store.entries(root + prefix, below="/" in pattern[len(prefix) :] or "**" in pattern)
    return [one for one in entries if one.size is not None and expression.fullmatch(one.path)]


def _expression(pattern: str) -> str:
    """Converts a glob pattern to a regular expression."""
    text, i = "", 0
    while i < len(pattern):
        end = pattern.find("]", i + 2)
        if pattern.startswith("**", i):
            text, i = f"{text}.*", i + 2
        elif pattern[i] in "*?":
            text, i = text + ("[^/]*" if pattern[i] == "*" else "[^/]"), i + 1
        elif pattern[i] == "[" and end > 0:
            inside = pattern[i + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            text, i = f"{text}[{'^' + inside[1:] if inside[0] == '!' else inside}]", end + 1
        else:
            text, i = text + re.escape(pattern[i]), i + 1
    return text


def at_once(function: Callable[[Value], Result], values: Iterable[Value]) -> list[Result]:
    """Maps `function` over values with several threads; results are in order."""
    values = list(values)
    if len(values) < 2:
        return [function(value) for value in values]
    with ThreadPoolExecutor(min(AT_ONCE, len(values))) as pool:
        return list(pool.map(function, values))
