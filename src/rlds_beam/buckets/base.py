"""The interface of an object store, and shared code for paths and patterns."""

from __future__ import annotations

import abc
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeVar

from rlds_beam.errors import BucketAccessError, BucketError, UsageError
from rlds_beam.naming import is_file_path
from rlds_beam.text import printable

if TYPE_CHECKING:
    from rlds_beam.buckets.ranges import RangeReader

AT_ONCE = 32
"""Concurrent requests to a store; requests mostly wait."""

KEPT_CONNECTIONS = 128
"""Maximum idle connections kept per store; an open file makes several requests at once."""

MAX_ANSWER_BYTES = 128 << 20
"""Maximum size in bytes of an answer that is not part of a file: a page of a listing, or a description."""

MAX_LISTED = 2_000_000
"""Maximum number of files and directories of a listing."""

_MIN_PAGE = 200
"""The smallest number that a page counts toward `MAX_LISTED`, so that empty pages end."""

MAX_SECONDS = 300.0
"""Seconds for a request with all its retries, and for each 1,000 files of a listing ..."""

_MIN_BYTES_PER_SECOND = 8 << 10
"""... and the least speed at which the bytes of a file must arrive."""

CHECK_SECONDS = 20.0
"""Seconds for the first request for a bucket. Clients give up after ten, but wait on if a byte arrives now and then."""

COPY_SECONDS = 3600.0
"""Seconds for a copy inside of a store."""

UNREADABLE = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What clients raise for an answer that the store would not send."""

Value = TypeVar("Value")
Result = TypeVar("Result")


class WrongAnswer(ValueError):
    """An answer that no store should send; the text goes on after the store's name: `sends no ETag`."""


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
        return bucket_name(path)

    def pin(self, path: str) -> str:
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

    def open_ranges(self, path: str) -> RangeReader:
        """Opens an object for reading ranges, from many threads.

        Raises:
          FileNotFoundError: the object does not exist.
        """
        from rlds_beam.buckets.ranges import RangeReader

        file, lock = self.open_read(path), threading.Lock()

        def fetch(start: int, stop: int) -> bytes:
            with lock:
                file.seek(start)
                return file.read(stop - start)

        return RangeReader(lambda: None, fetch)

    @abc.abstractmethod
    def open_write(self, path: str) -> BinaryIO:
        """Opens an object for writing; it is created or replaced on close."""

    @abc.abstractmethod
    def find(self, path: str) -> Entry | None:
        """Looks up an object and its checksum; None if it does not exist."""

    @abc.abstractmethod
    def entries(self, prefix: str, *, below: bool) -> Iterator[Entry]:
        """Lists objects whose paths start with `prefix`, sorted by path. Those that cannot be files are left out.

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


def bucket_name(path: str) -> str:
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
    return [entry for entry in entries if entry.size is not None and expression.fullmatch(entry.path)]


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


def within(
    function: Callable[[], Result], path: str, endpoint: str, *, size: int = 0, seconds: float | None = None
) -> Result:
    """Calls a function that makes requests, in a thread, since clients limit only the time of each read.

    Args:
      function: makes requests; it goes on if it takes too long.
      path: the path that they are for, for errors.
      endpoint: the address of the store, for errors.
      size: the number of bytes of a file that it sends or receives, which may take more time.
      seconds: the time that it may take; `MAX_SECONDS` by default.

    Raises:
      BucketAccessError: it takes too long.
    """
    seconds = (MAX_SECONDS if seconds is None else seconds) + size / _MIN_BYTES_PER_SECOND
    results: list[Result] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call, name="request", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # too many threads, or the interpreter is shutting down
        return function()
    thread.join(seconds)
    for error in errors:
        raise error
    if not results:
        raise BucketAccessError(f"{path}: {endpoint} takes more than {seconds:,.0f} s to answer; check the network")
    return results[0]


def describe_answer(error: BaseException) -> str:
    """Describes an error of `UNREADABLE`, to go on after the store's name."""
    if isinstance(error, WrongAnswer):
        return str(error)
    return f"sends an answer that cannot be read ({type(error).__name__}: {printable(error, 80)})"


def check_length(length: object, most: int) -> None:
    """Raises WrongAnswer if a Content-Length header says that more than `most` bytes follow."""
    text = str(length)
    if text.isdigit() and (len(text) > 19 or int(text) > most):
        raise WrongAnswer(f"was asked for at most {most:,} bytes, and sends {printable(text, 30)}")


def limit_parts(parts: Iterable[bytes], most: int | None = None) -> Iterator[bytes]:
    """Passes the parts of an answer on.

    Raises:
      WrongAnswer: they have more than `most` bytes, by default `MAX_ANSWER_BYTES`.
    """
    most, received = MAX_ANSWER_BYTES if most is None else most, 0
    for part in parts:
        received += len(part)
        if received > most:
            raise WrongAnswer(f"sends more than the {most:,} bytes that are allowed")
        yield part


class Listing:
    """Counts the pages of a listing, and checks what they hold.

    Raises:
      BucketError: the listing does not end, or an object has no size.
    """

    def __init__(self, path: str, endpoint: str):
        self._path, self._endpoint = path, endpoint
        self._cursors: set[str] = set()
        self._listed, self._start = 0, time.monotonic()

    def add_page(self, entries: int, cursor: str | None) -> None:
        """Counts a page.

        Args:
          entries: the number of its entries.
          cursor: what asks for the next page; empty or None if it is the last one.
        """
        self._listed += max(entries, _MIN_PAGE)
        if cursor and cursor in self._cursors:
            raise self.error("sends a listing that repeats itself")
        if cursor and self._listed > MAX_LISTED:
            raise self.error(f"lists more than {MAX_LISTED:,} files: name a directory with fewer")
        if time.monotonic() - self._start > MAX_SECONDS * (1 + self._listed / 1000):
            raise self.error("lists files too slowly")
        self._cursors.add(cursor or "")

    def is_file(self, name: str, size: object) -> bool:
        """Whether an object may be a file: a name that leads elsewhere or has control characters may not."""
        if type(size) is not int or size < 0:
            raise self.error(f"says that the size of {printable(name)} is {printable(repr(size), 40)}")
        return is_file_path("/".join(filter(None, name.split("/"))))

    def error(self, problem: str) -> BucketError:
        """The error for a problem of the store."""
        return BucketError(f"{self._path}: {self._endpoint} {problem}")


def check_extent(content_range: str | None, start: int, stop: int) -> int:
    """Checks the header of an answer to a request for a part of a file; returns the size of the file.

    Raises:
      WrongAnswer: it is missing, or the answer has other bytes than those from `start` to `stop`.
    """
    match = re.fullmatch(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", content_range or "")
    first, last, size = map(int, match.groups()) if match else (-1, -1, -1)
    if first != start or last != min(stop, size) - 1:
        said = printable(content_range, 60) if content_range else "no Content-Range"
        raise WrongAnswer(f"was asked for the bytes {start} to {stop - 1} of the file, and answers with {said}")
    return size


def at_once(function: Callable[[Value], Result], values: Iterable[Value]) -> list[Result]:
    """Maps `function` over values with several threads; results are in order."""
    values = list(values)
    if len(values) < 2:
        return [function(value) for value in values]
    with ThreadPoolExecutor(min(AT_ONCE, len(values))) as pool:
        return list(pool.map(function, values))
