"""Shared by the clients for S3, Google Cloud Storage, and Azure: limits of time and size, checks, and errors."""

from __future__ import annotations

import abc
import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, BinaryIO, ClassVar, NamedTuple

from rlds_beam.buckets import base, files, ranges
from rlds_beam.buckets.base import Entry, Listing, Result, Store, WrongAnswer, limit_parts, split_path
from rlds_beam.errors import BucketAccessError, BucketError, RldsBeamError


class Page(NamedTuple):
    """A page of a listing.

    Attributes:
      objects: (name, size, checksum) of each object, as the store sends them.
      directories: the common prefixes.
      cursor: what asks for the next page; empty or None if it is the last one.
    """

    objects: Sequence[tuple[str, Any, str]]
    directories: Sequence[str]
    cursor: str | None


class ObjectStore(Store):
    """A client for one kind of bucket.

    Subclasses make the requests with a library; the methods below, from `open` on, may raise its errors.

    Attributes:
      scheme: the scheme of its paths.
      packages: the packages whose errors mean that a connection failed, or that the library cannot go on.
      deleted_at_once: the number of objects that a request can delete.
      url: the address of the store, for errors.
      own_errors: errors of the library that are also `UNREADABLE`, but not about an answer.
    """

    scheme: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    deleted_at_once: ClassVar[int] = 1
    url: str
    own_errors: Any = ()

    def check(self, path: str) -> None:
        bucket, name = split_path(path)

        def probe() -> None:
            try:
                next(self.pages(bucket, name, below=True, brief=True), None)
            except Exception as error:
                if self.status(error) < 500:
                    raise  # server errors may be temporary; later requests retry more often

        self.call(path, probe, kind=BucketAccessError, seconds=base.CHECK_SECONDS)

    def open_read(self, path: str) -> BinaryIO:
        bucket, name = split_path(path)
        window = files.FIRST_WINDOW
        size, version, first = self.call(path, lambda: self.open(bucket, name, window), size=window)
        return files.reader(functools.partial(self._fetch, path, version), size, first)

    def open_ranges(self, path: str) -> ranges.RangeReader:
        bucket, name = split_path(path)
        _, version, _ = self.call(path, lambda: self.open(bucket, name, 1))
        sign = functools.partial(self.sign, bucket, name, version)
        return ranges.RangeReader(sign, functools.partial(self._fetch, path, version))

    def _fetch(self, path: str, version: str, start: int, stop: int) -> bytes:
        """Reads exactly these bytes of a version of an object."""

        def get() -> bytes:
            content = self.get(*split_path(path), version, start, stop)
            if len(content) != stop - start:
                raise WrongAnswer(f"was asked for {stop - start:,} bytes, and sends {len(content):,}")
            return content

        return self.call(path, get, size=stop - start)

    def open_write(self, path: str) -> BinaryIO:
        bucket, name = split_path(path)
        return files.writer(lambda file, size: self.call(path, lambda: self.put(bucket, name, file, size), size=size))

    def find(self, path: str) -> Entry | None:
        bucket, name = split_path(path)
        if not name or name.endswith("/"):
            return None
        with contextlib.suppress(FileNotFoundError):
            size, checksum = self.call(path, lambda: self.head(bucket, name))
            Listing(path, self.url).is_file(name, size)
            return Entry(path, size, checksum)
        return None

    def entries(self, prefix: str, *, below: bool) -> Iterator[Entry]:
        bucket, name = split_path(prefix)
        root, listing = f"{self.scheme}://{bucket}/", Listing(prefix, self.url)
        pages = self.pages(bucket, name, below=below)
        while (page := self.call(prefix, lambda: next(pages, None))) is not None:
            listing.add_page(len(page.objects) + len(page.directories), page.cursor)
            listed = [Entry(root + name, *about) for name, *about in page.objects if listing.is_file(name, about[0])]
            listed += [Entry(root + name.rstrip("/"), None) for name in page.directories if listing.is_file(name, 0)]
            yield from sorted(
                entry for entry in listed if entry.path.startswith(prefix) and not entry.path.endswith("/")
            )

    def rename(self, source: str, destination: str) -> None:
        where = *split_path(source), *split_path(destination)
        self.call(source, lambda: self.copy(*where), seconds=base.COPY_SECONDS)
        self.delete([source])

    def delete(self, paths: Sequence[str]) -> None:
        def delete(start: int) -> None:
            some = paths[start : start + self.deleted_at_once]
            names = [split_path(path)[1] for path in some]
            with contextlib.suppress(FileNotFoundError):
                self.call(some[0], lambda: self.remove(split_path(some[0])[0], names))

        base.at_once(delete, range(0, len(paths), self.deleted_at_once))

    def call(
        self, path: str, function: Callable[[], Result], kind: type[BucketError] = BucketError, **limits: Any
    ) -> Result:
        """Makes requests for a path, within the limits of `within`; raises what `explain_errors` raises."""
        with self.explain_errors(path, kind):
            return base.within(function, path, self.url, **limits)

    @contextlib.contextmanager
    def explain_errors(self, path: str, kind: type[BucketError] = BucketError) -> Iterator[None]:
        """Converts the library's errors to `kind`, or to FileNotFoundError."""
        try:
            yield
        except RldsBeamError:
            raise
        except Exception as error:
            if kind is not BucketAccessError and self.is_missing(error):
                raise FileNotFoundError(f"no such file: {path}") from error
            if isinstance(error, base.UNREADABLE) and not isinstance(error, self.own_errors):
                raise kind(f"{path}: {self.url} {base.describe_answer(error)}") from error
            if not type(error).__module__.startswith(self.packages):
                raise
            if self.status(error) == 412:
                raise kind(
                    f"{path} was replaced while it was read; run the command again when nothing writes to it"
                ) from error
            raise kind(self.describe(path, error)) from error

    def does_not_answer(self, path: str, error: Exception, hint: str) -> str:
        """The line for a connection that fails."""
        return f"{base.bucket_name(path)}: {self.url} does not answer ({type(error).__name__}); check the network{hint}"

    @abc.abstractmethod
    def open(self, bucket: str, name: str, window: int) -> tuple[int, str, bytes]:
        """Reads an object's size, version, and at most `window` of its first bytes."""

    @abc.abstractmethod
    def sign(self, bucket: str, name: str, version: str) -> ranges.Address | None:
        """An address of an object that refuses other versions, for `ranges.SIGNED_SECONDS`; None if there is none."""

    @abc.abstractmethod
    def get(self, bucket: str, name: str, version: str, start: int, stop: int) -> bytes:
        """Reads the bytes from `start` to `stop` of a version of an object; status 412 if it was replaced."""

    @abc.abstractmethod
    def put(self, bucket: str, name: str, file: IO[bytes], size: int) -> None:
        """Writes an object."""

    @abc.abstractmethod
    def head(self, bucket: str, name: str) -> tuple[Any, str]:
        """Reads an object's size and checksum."""

    @abc.abstractmethod
    def pages(self, bucket: str, prefix: str, *, below: bool, brief: bool = False) -> Iterator[Page]:
        """Lists objects as `entries` does; if `brief`, at most one, and gives up after a few seconds."""

    @abc.abstractmethod
    def copy(self, bucket: str, name: str, to_bucket: str, to_name: str) -> None:
        """Copies an object in the store."""

    @abc.abstractmethod
    def remove(self, bucket: str, names: Sequence[str]) -> None:
        """Deletes `deleted_at_once` objects or fewer."""

    @abc.abstractmethod
    def is_missing(self, error: Exception) -> bool:
        """Whether an error says that there is no such object."""

    @abc.abstractmethod
    def status(self, error: Exception) -> int:
        """The HTTP status of an error; 0 if there was no answer."""

    @abc.abstractmethod
    def describe(self, path: str, error: Exception) -> str:
        """Describes an error of the library in one line."""


def limited_adapter() -> Any:
    """An adapter of requests that limits answers, and checks that a part of an object is the one asked for."""
    from requests.adapters import HTTPAdapter

    class LimitedAdapter(HTTPAdapter):
        def send(self, request: Any, *arguments: Any, **options: Any) -> Any:
            answer = super().send(request, *arguments, **options)
            most, stream = base.MAX_ANSWER_BYTES, answer.raw.stream
            asked = request.headers.get("x-ms-range") or request.headers.get("Range", "")  # Azure's, all others
            if (part := re.fullmatch(r"bytes=(\d+)-(\d+)", asked)) is not None:
                start, stop = int(part[1]), int(part[2]) + 1
                if answer.status_code < 300:
                    most = stop - start
                if answer.status_code == 206:
                    base.check_extent(answer.headers.get("Content-Range"), start, stop)
            base.check_length(answer.headers.get("Content-Length"), most)
            answer.raw.stream = lambda *sizes, **how: limit_parts(stream(*sizes, **how), most)
            return answer

    return LimitedAdapter(pool_maxsize=base.KEPT_CONNECTIONS)
