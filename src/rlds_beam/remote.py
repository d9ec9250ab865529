"""Files by URL: s3://, gs://, and az:// through obstore, hf:// and any other scheme through fsspec.

| scheme | credentials |
|---|---|
| `s3` | `AWS_*`; with boto3 also profiles with their endpoints, and the roles of machines |
| `gs` | application default credentials; with google-auth also the roles of machines |
| `az` | `AZURE_STORAGE_CONNECTION_STRING`, or `AZURE_STORAGE_ACCOUNT` and a key, a token, or azure-identity |
| `hf` | the token that huggingface_hub finds |

Without credentials, requests are unsigned, which public buckets accept. Only obstore's synchronous functions are used:
the others sometimes abort the process when it ends.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any, BinaryIO, NamedTuple, cast
from urllib.parse import urlsplit

from fsspec.spec import AbstractBufferedFile

from rlds_beam.errors import BucketAccessError, BucketError, RldsBeamError, UsageError, missing
from rlds_beam.naming import is_file_path
from rlds_beam.text import shorten, without_secrets

_CLIENT = {"allow_http": True, "timeout": "300s", "connect_timeout": "5s"}  # `timeout` includes the body
_RETRIES = {"max_retries": 8, "retry_timeout": datetime.timedelta(seconds=90)}
_FIRST_RETRIES = {"max_retries": 2, "retry_timeout": datetime.timedelta(seconds=10)}
_SETTINGS = ("AWS_", "AZURE_", "GOOGLE_", "STORAGE_EMULATOR_HOST")
"""Prefixes of environment variables that select an account or a server."""
_BLOCK, _BLOCKS = 2 << 20, 8
"""Bytes of a request for a file that is read, and the most blocks in memory; the next one is read ahead."""
_IN_MEMORY = 64 << 20
"""The most bytes of an upload in memory; larger files are in a temporary file until then."""
_RANGES_PER_CALL = 10  # obstore sends as many requests at once
_CALLS = 40
"""Threads that wait for ranges: with ten requests each, 1 Gbit/s of images of 15 kB, 30 ms away."""
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound")
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


_used = _forked = False


def _mark_forked() -> None:
    global _forked
    _forked = _used


os.register_at_fork(after_in_child=_mark_forked)


def open_store(path: str) -> Store:
    """The store of a path.

    Raises:
      UsageError: nothing reads this scheme, or an extra is missing.
      BucketAccessError: the bucket cannot be used.
    """
    global _used
    scheme, _, rest = path.partition("://")
    bucket = rest.partition("/")[0]
    if not bucket:
        raise UsageError(f"{path}: expected {scheme}://BUCKET/PATH")
    if _forked:
        raise UsageError(
            f"{path}: this process was forked from one that had opened remote files, whose threads it lacks: start it "
            'with multiprocessing_context="forkserver" (torch), or with the start method spawn'
        )
    _used = True
    if scheme in _BUCKETS:
        return _open_bucket(scheme, bucket, tuple(item for item in os.environ.items() if item[0].startswith(_SETTINGS)))
    return Filesystem(scheme)


@functools.cache
def _open_bucket(scheme: str, bucket: str, settings: tuple[tuple[str, str], ...]) -> Bucket:
    return Bucket(scheme, bucket)


@contextlib.contextmanager
def _explain(path: str, kind: type[BucketError] = BucketError, hint: str = "") -> Iterator[None]:
    """Turns errors of the libraries into FileNotFoundError, or an error with one line of their text."""
    try:
        yield
    except RldsBeamError:
        raise
    except Exception as error:
        name, text = type(error).__name__, str(error)
        if isinstance(error, FileNotFoundError) and not _NO_BUCKET.search(text):
            raise FileNotFoundError(f"no such file: {path}") from None
        if name == "PreconditionError":
            raise BucketError(
                f"{path} was replaced while it was read; run the command again when nothing writes to it"
            ) from None
        denied = name in ("PermissionDeniedError", "UnauthenticatedError") or re.search("status code: 40[13]", text)
        if denied or _NO_BUCKET.search(text):
            kind = BucketAccessError
        raise kind(f"{path}: {shorten_error(error)}{hint if denied else ''}") from None


def shorten_error(error: BaseException) -> str:
    """One line of a vendor's error, without addresses, and with the code and the message of the answer."""
    text = str(error).partition("\n\nDebug source")[0]
    what, _, rest = text.partition(": Error performing")
    answer = [match[1] for match in (re.search(rf"<{tag}>([^<]+)", rest) for tag in ("Code", "Message")) if match]
    if rest and not answer:
        address = re.search(r"https?://\S+", rest)
        answer = [urlsplit(address[0]).hostname or ""] if address else []
        answer.append(rest.rpartition(" - ")[2].split("\n")[0].rstrip(": "))
    what = " ".join(what.split()) or type(error).__name__
    return shorten(without_secrets(": ".join([what, *filter(None, answer)])), 300)


class Bucket:
    """A bucket of S3 or Google Cloud Storage, or a container of Azure."""

    def __init__(self, scheme: str, bucket: str):
        import obstore

        self._obstore: Any = obstore
        self._root, hint = f"{scheme}://{bucket}/", ""
        with _explain(self._root, BucketAccessError):
            store_class, config = _BUCKETS[scheme]()
        if config.get("skip_signature"):
            hint = "; no credentials were found: docs/how_to/buckets.md lists them"
        self._explain = functools.partial(_explain, hint=hint)
        with self._explain(self._root, BucketAccessError):  # the first request fails soon if none can succeed
            first = store_class(bucket, client_options=_CLIENT, retry_config=_FIRST_RETRIES, **config)
            next(iter(obstore.list(first, chunk_size=1)), None)
        self._store = store_class(bucket, client_options=_CLIENT, retry_config=_RETRIES, **config)

    def _name(self, path: str) -> str:
        name = path.removeprefix(self._root)
        if not is_file_path(name):
            raise UsageError(f"{shorten(path)}: expected the path of a file, without '..', '.', and '//'")
        return name

    def _entry(self, about: Any) -> Entry:
        return Entry(self._root + about["path"], about["size"], about["e_tag"] or "")

    def info(self, path: str) -> Entry:
        """A file. Raises FileNotFoundError if it does not exist."""
        with self._explain(path):
            return self._entry(self._obstore.head(self._store, self._name(path)))

    def list(self, directory: str, below: bool) -> Sequence[Entry]:
        """The files in a directory, in any order: all `below` it, or with its subdirectories."""
        prefix = f"{directory.rstrip('/')}/".removeprefix(self._root).rstrip("/")
        with self._explain(directory):
            if below:
                folders = []
                files = [about for page in self._obstore.list(self._store, prefix, chunk_size=1000) for about in page]
            else:
                found = self._obstore.list_with_delimiter(self._store, prefix)
                folders, files = found["common_prefixes"], found["objects"]
        entries = [Entry(self._root + name, None) for name in folders]
        entries += [self._entry(about) for about in files if about["path"] not in folders]
        return [entry for entry in entries if is_file_path(entry.path.removeprefix(self._root))]

    def read(self, entry: Entry, start: int, stop: int) -> bytes:
        """Reads a part of a file; raises BucketError if it was replaced since `info`."""
        with self._explain(entry.path):
            options = {"range": (start, stop), "if_match": entry.checksum or None}
            return bytes(self._obstore.get(self._store, self._name(entry.path), options=options).bytes())

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        """Reads parts of a file, at once."""
        starts, ends = zip(*ranges, strict=True)
        with self._explain(path):
            parts = self._obstore.get_ranges(self._store, self._name(path), starts=starts, ends=ends, coalesce=0)
            return [bytes(part) for part in parts]

    def write(self, path: str, file: IO[bytes]) -> None:
        """Creates or replaces a file."""
        with self._explain(path):
            self._obstore.put(self._store, self._name(path), file)

    def rename(self, source: str, destination: str) -> None:
        """Renames a file, replacing the destination."""
        with self._explain(source):
            self._obstore.rename(self._store, self._name(source), self._name(destination))

    def delete(self, paths: Sequence[str]) -> None:
        """Removes files; missing ones are ignored."""
        with contextlib.suppress(FileNotFoundError), self._explain(self._root):
            self._obstore.delete(self._store, [self._name(path) for path in paths])


def _open_s3() -> tuple[Any, dict[str, Any]]:
    from obstore.store import S3Store

    files = (os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"), "~/.aws/credentials")
    has_profile = "AWS_PROFILE" in os.environ or any(os.path.exists(os.path.expanduser(file)) for file in files)
    if "AWS_ACCESS_KEY_ID" in os.environ and not has_profile:
        return S3Store, {}
    try:
        import boto3
    except ImportError:
        role = ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
        known = any(name in os.environ for name in ("AWS_ACCESS_KEY_ID", *role, "AWS_CONTAINER_CREDENTIALS_FULL_URI"))
        return S3Store, {} if known else {"skip_signature": True}
    from obstore.auth.boto3 import Boto3CredentialProvider

    session = boto3.session.Session()
    url = session.client("s3", region_name=session.region_name or "us-east-1").meta.endpoint_url
    config = {} if url.endswith(".amazonaws.com") else {"endpoint": url}
    config |= {"region": session.region_name} if session.region_name else {}
    if session.get_credentials() is None:
        return S3Store, {**config, "skip_signature": True}
    return S3Store, {**config, "credential_provider": Boto3CredentialProvider(session)}


def _open_gs() -> tuple[Any, dict[str, Any]]:
    from obstore.store import GCSStore

    if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):
        url = emulator if "://" in emulator else f"http://{emulator}"
        return GCSStore, {"base_url": url, "bearer_token": "emulator"}
    try:
        import google.auth
        from obstore.auth.google import GoogleCredentialProvider

        credentials, _ = google.auth.default(["https://www.googleapis.com/auth/devstorage.read_write"])
    except ImportError:
        home = os.path.expanduser("~/.config/gcloud/application_default_credentials.json")
        known = "GOOGLE_APPLICATION_CREDENTIALS" in os.environ or os.path.exists(home)
        return GCSStore, {} if known else {"skip_signature": True}
    except google.auth.exceptions.DefaultCredentialsError:
        if "GOOGLE_APPLICATION_CREDENTIALS" in os.environ:
            raise
        return GCSStore, {"skip_signature": True}
    return GCSStore, {"credential_provider": GoogleCredentialProvider(credentials)}


def _open_az() -> tuple[Any, dict[str, Any]]:
    from obstore.store import AzureStore

    written = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    given = dict(part.split("=", 1) for part in written.split(";") if "=" in part)
    settings = {
        "account_name": given.get("AccountName") or os.environ.get("AZURE_STORAGE_ACCOUNT"),
        "endpoint": given.get("BlobEndpoint"),
        "account_key": given.get("AccountKey") or os.environ.get("AZURE_STORAGE_KEY"),
        "sas_key": given.get("SharedAccessSignature") or os.environ.get("AZURE_STORAGE_SAS_TOKEN"),
    }
    config: dict[str, Any] = {name: value for name, value in settings.items() if value}
    if "account_name" not in config:
        raise UsageError("az:// paths need AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT")
    if "account_key" in config or "sas_key" in config:
        return AzureStore, config
    try:
        from obstore.auth.azure import AzureCredentialProvider

        provider = AzureCredentialProvider()
        provider()
    except Exception:  # not installed, or there are no credentials: the container may be public
        return AzureStore, {**config, "skip_signature": True}
    return AzureStore, {**config, "credential_provider": provider}


_BUCKETS = {"s3": _open_s3, "gs": _open_gs, "az": _open_az}
"""Scheme -> what finds the class of obstore and its settings."""


class Filesystem:
    """A filesystem of fsspec, for example the Hugging Face Hub, with the methods of `Bucket`."""

    def __init__(self, scheme: str):
        import fsspec

        try:
            options = {"endpoint": os.environ.get("HF_ENDPOINT")} if scheme == "hf" else {}
            self._files: Any = fsspec.filesystem(scheme, **options)
        except (ImportError, ValueError) as error:
            if scheme == "hf":
                raise missing("hub", f"hf:// needs huggingface_hub ({error})") from error
            raise UsageError(
                f"fsspec does not read {scheme}:// ({shorten_error(error)}); use a local path or s3://, gs://, az://, "
                "hf://"
            ) from error

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
            is_hub = directory.startswith("hf://")
            if not is_hub:
                self._files.invalidate_cache()
            root = self._files._strip_protocol(directory).rstrip("/")
            listed = self._files.find(directory, detail=True).values() if below else self._files.ls(directory)
            if not below and not is_hub:  # buckets have no empty directories
                listed = [about for about in listed if about["type"] != "directory" or self._files.find(about["name"])]
            found = ((about["name"][len(root) :].strip("/"), about) for about in listed)
            top = directory.rstrip("/")
            return [self._entry(f"{top}/{name}", about) for name, about in found if is_file_path(name)]
        return []

    def read(self, entry: Entry, start: int, stop: int) -> bytes:
        return self.read_ranges(entry.path, [(start, stop)])[0]

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        parts = []
        with _explain(path), self._files.open(path, "rb", cache_type="none") as file:
            for start, stop in ranges:
                file.seek(start)
                parts.append(file.read(stop - start))
        return parts

    def write(self, path: str, file: IO[bytes]) -> None:
        with _explain(path):
            self._files.makedirs(self._files._parent(path), exist_ok=True)
            with self._files.open(path, "wb") as target:
                shutil.copyfileobj(file, target)

    def rename(self, source: str, destination: str) -> None:
        with _explain(source):
            self._files.mv(source, destination)

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError), _explain(path):
                self._files.rm_file(path)

    def pin(self, path: str) -> str:
        """A path on the Hub with the current commit of its branch or tag in it."""
        try:
            with _explain(path, BucketAccessError):
                at = self._files.resolve_path(path)
                commit = self._files._api.repo_info(at.repo_id, repo_type=at.repo_type, revision=at.revision).sha
        except FileNotFoundError:
            raise BucketAccessError(
                f"{path}: the Hub has no such repository or revision; a private one needs 'hf auth login', or HF_TOKEN"
            ) from None
        inside = f"/{at.path_in_repo}" if at.path_in_repo else ""
        return f"hf://{at.repo_type}s/{at.repo_id}@{commit}{inside}"


Store = Bucket | Filesystem


class Reader(AbstractBufferedFile):
    """A remote file, opened for reading. Raises FileNotFoundError if it does not exist."""

    def __init__(self, path: str):
        self._store = open_store(path)
        self._entry = self._store.info(path)
        options = {"maxblocks": _BLOCKS}
        super().__init__(None, path, "rb", _BLOCK, True, "background", options, self._entry.size)

    def read(self, length: int = -1) -> bytes:
        """Reads at most `length` bytes; -1: to the end. Some versions of fsspec fail beyond the end."""
        left = max(0, self.size - self.loc)
        content: bytes = super().read(left if length < 0 else min(length, left))
        return content

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self._store.read(self._entry, start, end)


class Upload(tempfile.SpooledTemporaryFile[bytes]):
    """A remote file, opened for writing: it is uploaded when it is closed, unless its `with` block raises."""

    def __init__(self, path: str):
        super().__init__(_IN_MEMORY)
        self._store, self._path = open_store(path), path

    def close(self) -> None:
        if self.closed:
            return
        try:
            self.seek(0)
            self._store.write(self._path, cast(BinaryIO, self))
        finally:
            self.discard()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        self.discard()

    def discard(self) -> None:
        """Closes the file without uploading it."""
        super().close()


def request_ranges(path: str, ranges: Sequence[tuple[int, int]]) -> list[Callable[[], bytes]]:
    """Starts to read many ranges; returns functions that wait for their bytes.

    Callers compare checksums: that the file was replaced is not noticed.
    """
    store, parts = open_store(path), list[Callable[[], bytes]]()
    for first in range(0, len(ranges), _RANGES_PER_CALL):
        some = ranges[first : first + _RANGES_PER_CALL]
        future = _pool().submit(store.read_ranges, path, some)
        parts += [functools.partial(_take, future, i) for i in range(len(some))]
    return parts


def _take(future: Future[Sequence[bytes]], i: int) -> bytes:
    return future.result()[i]


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_CALLS, thread_name_prefix="remote")
