"""Files by URL: s3://, gs://, and az:// through obstore; hf:// and any other scheme through fsspec, only to read.

Credentials are those that obstore finds in the environment; with boto3 also profiles of AWS with their endpoints, and
with google-auth the identities that it knows. Only obstore's synchronous functions are used: the others sometimes abort
the process when it ends.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, NamedTuple

from fsspec.spec import AbstractBufferedFile

from rlds_beam.errors import BucketAccessError, BucketError, UsageError
from rlds_beam.text import shorten, without_secrets

_CLIENT = {"allow_http": True, "timeout": "300s", "connect_timeout": "5s"}  # `timeout` includes the body
_RETRIES = {"max_retries": 8, "retry_timeout": datetime.timedelta(seconds=90)}
_FIRST_RETRIES = {"max_retries": 2, "retry_timeout": datetime.timedelta(seconds=10)}
_BLOCK, _BLOCKS = 2 << 20, 8  # bytes of a request for a file that is read, and the most in memory; one is read ahead
_CREDENTIALS = "; credentials are taken from the environment, with rlds-beam[s3] or [gcs] from profiles and logins, too"
_AWS_ROLES = {"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"}  # which obstore knows itself
_RANGES_PER_CALL = 10  # obstore sends as many requests at once
_POOL = ThreadPoolExecutor(40, thread_name_prefix="remote")
"""Threads that wait for ranges: with ten requests each, 1 Gbit/s of images of 15 kB, 30 ms away."""
_VERSIONS = ("ETag", "etag", "blob_id", "checksum", "mtime", "modified", "last_modified", "created")
"""What fsspec's filesystems say about a file that changes with its content; the first is used."""


class Entry(NamedTuple):
    """A file, or a directory with its files.

    Attributes:
      path: the path, without a trailing slash.
      size: the size in bytes; None for a directory.
      checksum: changes with the content, for example an entity tag; empty if there is none.
    """

    path: str
    size: int | None
    checksum: str = ""


_opener: int | None = None
"""The process that opened a remote file first, or its parent, whose threads a forked process lacks."""


def open_store(path: str) -> Store:
    """The store of a path.

    Raises:
      UsageError: nothing reads this scheme, or an extra is missing.
      BucketAccessError: the bucket cannot be used.
    """
    global _opener
    scheme, _, rest = path.partition("://")
    if _opener not in (None, os.getpid()):
        raise UsageError(
            f"{path}: this process was forked from one that had opened remote files, whose threads it lacks: start it "
            'with multiprocessing_context="forkserver" (torch), or with the start method spawn'
        )
    _opener = os.getpid()
    return _open_bucket(scheme, rest.partition("/")[0]) if scheme in ("s3", "gs", "az") else Filesystem(scheme)


@contextlib.contextmanager
def _explain(path: str, kind: type[BucketError] = BucketError) -> Iterator[None]:
    """Turns errors of the libraries into FileNotFoundError, or `kind` with one line of their text."""
    try:
        yield
    except Exception as error:
        if isinstance(error, FileNotFoundError) and kind is BucketError:
            raise FileNotFoundError(f"no such file: {path}") from None
        denied = type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError")
        raise kind(f"{path}: {shorten_error(error)}{_CREDENTIALS if denied else ''}") from None


def shorten_error(error: BaseException) -> str:
    """One line of a vendor's error, without addresses, and with the code and the message of the answer."""
    text = str(error).partition("\n\nDebug source")[0]
    what, _, rest = text.partition(": Error performing")
    answer = [match[1] for match in (re.search(rf"<{tag}>([^<]+)", rest) for tag in ("Code", "Message")) if match]
    reason = ": ".join(answer) or rest.rpartition(" - ")[2].partition("\n")[0].rstrip(": ")
    what = what.strip() or type(error).__name__
    return shorten(without_secrets(f"{what}: {reason}" if reason else what), 300)


class Bucket:
    """A bucket of S3 or Google Cloud Storage, or a container of Azure."""

    def __init__(self, scheme: str, bucket: str):
        import obstore
        import obstore.store

        self._obstore: Any = obstore
        self._root = f"{scheme}://{bucket}/"
        kind = {"s3": obstore.store.S3Store, "gs": obstore.store.GCSStore, "az": obstore.store.AzureStore}[scheme]
        with _explain(self._root, BucketAccessError):
            open_store: Any = functools.partial(kind, bucket, client_options=_CLIENT, **_settings(scheme))
            first = open_store(retry_config=_FIRST_RETRIES)  # the first request fails soon if none can succeed
            next(iter(obstore.list(first, chunk_size=1)), None)
            self._store = open_store(retry_config=_RETRIES)

    def _name(self, path: str) -> str:
        return path.removeprefix(self._root)

    def _entry(self, about: Any) -> Entry:
        return Entry(self._root + about["path"], about["size"], about["e_tag"] or "")

    def info(self, path: str) -> Entry:
        """A file. Raises FileNotFoundError if it does not exist."""
        with _explain(path):
            return self._entry(self._obstore.head(self._store, self._name(path)))

    def list(self, directory: str, below: bool) -> Sequence[Entry]:
        """The files in a directory, in any order: all `below` it, or with its subdirectories."""
        prefix = f"{directory.rstrip('/')}/".removeprefix(self._root).rstrip("/")
        with _explain(directory):
            if below:
                folders = []
                files = [about for page in self._obstore.list(self._store, prefix, chunk_size=1000) for about in page]
            else:
                found = self._obstore.list_with_delimiter(self._store, prefix)
                folders, files = found["common_prefixes"], found["objects"]
        entries = [Entry(self._root + name, None) for name in folders]
        return entries + [self._entry(about) for about in files if about["path"] not in folders]

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        """Reads parts of a file, at once."""
        starts, ends = zip(*ranges, strict=True)
        with _explain(path):
            parts = self._obstore.get_ranges(self._store, self._name(path), starts=starts, ends=ends, coalesce=0)
            return [bytes(part) for part in parts]

    def write(self, path: str, file: IO[bytes]) -> None:
        """Creates or replaces a file."""
        with _explain(path):
            self._obstore.put(self._store, self._name(path), file)

    def rename(self, source: str, destination: str) -> None:
        """Renames a file, replacing the destination."""
        with _explain(source):
            self._obstore.rename(self._store, self._name(source), self._name(destination))

    def delete(self, path: str) -> None:
        """Removes a file. Raises FileNotFoundError, except S3, if it does not exist."""
        with _explain(path):
            self._obstore.delete(self._store, self._name(path))


_open_bucket = functools.cache(Bucket)


def _settings(scheme: str) -> dict[str, Any]:
    """obstore's settings beyond the environment variables that it reads; without credentials, requests are unsigned."""
    if scheme == "s3" and ("AWS_ACCESS_KEY_ID" not in os.environ or "AWS_PROFILE" in os.environ):
        return _s3_settings()
    if scheme != "gs":
        return {}
    try:
        import google.auth
        from obstore.auth.google import GoogleCredentialProvider

        credentials, _ = google.auth.default(["https://www.googleapis.com/auth/devstorage.read_write"])
        return {"credential_provider": GoogleCredentialProvider(credentials)}
    except Exception:  # not installed, or there are no credentials
        known = {"GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_BEARER_TOKEN"} & os.environ.keys()
        return {} if known else {"skip_signature": True}


def _s3_settings() -> dict[str, Any]:
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return {} if _AWS_ROLES & os.environ.keys() else {"skip_signature": True}
    session = boto3.session.Session()
    url = session.client("s3", region_name=session.region_name or "us-east-1").meta.endpoint_url
    endpoint = {} if url.endswith(".amazonaws.com") else {"endpoint": url}
    if session.get_credentials() is None:
        return {**endpoint, "skip_signature": True}
    return {**endpoint, "credential_provider": Boto3CredentialProvider(session)}


class Filesystem:
    """A filesystem of fsspec, for example the Hugging Face Hub, with the methods of `Bucket` that read."""

    def __init__(self, scheme: str):
        import fsspec

        options: Any = {"use_listings_cache": False} if scheme != "hf" else {"endpoint": os.environ.get("HF_ENDPOINT")}
        try:
            self._files: Any = fsspec.filesystem(scheme, **options)
        except (ImportError, ValueError) as error:
            raise UsageError(f"fsspec does not read {scheme}:// ({shorten_error(error)})") from error

    def _entry(self, path: str, about: Any) -> Entry:
        if about["type"] == "directory":
            return Entry(path, None)
        version = next((about[name] for name in _VERSIONS if about.get(name)), "")
        return Entry(path, int(about["size"]), str(version))

    def info(self, path: str) -> Entry:
        with _explain(path):
            entry = self._entry(path, self._files.info(path))
            if entry.size is None:
                raise FileNotFoundError
        return entry

    def list(self, directory: str, below: bool) -> Sequence[Entry]:
        with contextlib.suppress(FileNotFoundError), _explain(directory):
            root = self._files._strip_protocol(directory).rstrip("/")
            listed = self._files.find(directory, detail=True).values() if below else self._files.ls(directory)
            found = ((about["name"][len(root) :].strip("/"), about) for about in listed)
            return [self._entry(f"{directory.rstrip('/')}/{name}", about) for name, about in found if name]
        return []

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        parts = []
        with _explain(path), self._files.open(path, "rb", cache_type="none") as file:
            for start, stop in ranges:
                file.seek(start)
                parts.append(file.read(stop - start))
        return parts

    def pin(self, path: str) -> str:
        """A path on the Hub with the current commit of its branch or tag in it."""
        with _explain(path, BucketAccessError):
            at = self._files.resolve_path(path)
            commit = self._files._api.repo_info(at.repo_id, repo_type=at.repo_type, revision=at.revision).sha
        return f"hf://{at.repo_type}s/{at.repo_id}@{commit}/{at.path_in_repo}".rstrip("/")


Store = Bucket | Filesystem


class Reader(AbstractBufferedFile):
    """A remote file, opened for reading. Raises FileNotFoundError if it does not exist."""

    def __init__(self, path: str):
        self._store = open_store(path)
        size, options = self._store.info(path).size, {"maxblocks": _BLOCKS}
        super().__init__(None, path, "rb", _BLOCK, True, "background", options, size)

    def read(self, length: int = -1) -> bytes:
        """Reads at most `length` bytes; -1: to the end. Some versions of fsspec fail beyond the end."""
        left = max(0, self.size - self.loc)
        content: bytes = super().read(left if length < 0 else min(length, left))
        return content

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self._store.read_ranges(self.path, [(start, end)])[0]


def request_ranges(path: str, ranges: Sequence[tuple[int, int]]) -> list[Callable[[], bytes]]:
    """Starts to read many ranges; returns functions that wait for their bytes.

    Callers compare checksums: that the file was replaced is not noticed.
    """
    store, parts = open_store(path), list[Callable[[], bytes]]()
    for first in range(0, len(ranges), _RANGES_PER_CALL):
        some = ranges[first : first + _RANGES_PER_CALL]
        future = _POOL.submit(store.read_ranges, path, some)
        parts += [lambda future=future, i=i: future.result()[i] for i in range(len(some))]  # type: ignore[misc]
    return parts
