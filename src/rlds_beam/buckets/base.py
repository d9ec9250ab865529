"""The contract of a store, and what all of them share: paths and patterns."""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, NamedTuple, TypeVar

from rlds_beam.errors import UsageError

AT_ONCE = 32
"""Concurrent requests to a store: a request mostly waits."""

KEPT_CONNECTIONS = 128
"""Idle connections to a store that are kept, at most; an open file makes several requests at once."""

Value = TypeVar("Value")
Result = TypeVar("Result")


class Entry(NamedTuple):
    """An object, or a directory: a common prefix of objects.

    Attributes:
      path: the full path; of a directory, without a slash at its end.
      size: bytes; None for a directory.
      checksum: CRC32C or entity tag; empty if the listing does not include it.
    """

    path: str
    size: int | None
    checksum: str = ""


class Store(abc.ABC):
    """A client of one store. Threads may share it; processes may not."""

    @abc.abstractmethod
    def check(self, path: str) -> None:
        """Asks for the path's bucket once, within ten seconds.

        Raises:
          BucketAccessError: the bucket cannot be used; the message says what to do.
        """

    @abc.abstractmethod
    def open_read(self, path: str) -> BinaryIO:
        """Opens an object for reading; seekable.

        Raises:
          FileNotFoundError: there is no such object.
        """

    @abc.abstractmethod
    def open_write(self, path: str) -> BinaryIO:
        """Opens a new object for writing; it exists, or replaces the old one, once it is closed."""

    @abc.abstractmethod
    def find(self, path: str) -> Entry | None:
        """The object with this name, with its checksum; None if there is none."""

    @abc.abstractmethod
    def entries(self, prefix: str, *, below: bool) -> Iterator[Entry]:
        """Objects whose paths begin with `prefix`, sorted by path.

        Args:
          prefix: a path, or the start of one.
          below: also those behind further slashes; without it, these are one entry for each directory.
        """

    @abc.abstractmethod
    def rename(self, source: str, destination: str) -> None:
        """Moves an object, replacing any at the destination."""

    @abc.abstractmethod
    def delete(self, paths: Sequence[str]) -> None:
        """Deletes objects; one that does not exist is fine."""


def split_path(path: str) -> tuple[str, str]:
    """(bucket, name) of a path; the name may be empty.

    Raises:
      UsageError: there is no bucket in it.
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
    """The objects that match a pattern: `*` and `?` stop at slashes, `**` does not; sorted.

    Args:
      store: a client of the store.
      pattern: a path, or, with `directory`, what follows it. An object of exactly this name is the only match.
      directory: taken literally, whatever characters are in it.
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
    """A glob pattern as a regular expression."""
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
    """`function` of each value, in their order, computed by several threads."""
    values = list(values)
    if len(values) < 2:
        return [function(value) for value in values]
    with ThreadPoolExecutor(min(AT_ONCE, len(values))) as pool:
        return list(pool.map(function, values))
