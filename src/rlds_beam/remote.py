"""Objects by path: s3://, gs://, and az:// through obstore, hf:// and any other scheme through fsspec.

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
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, NamedTuple
from urllib.parse import urlsplit

from rlds_beam.errors import BucketAccessError, BucketError, RldsBeamError, UsageError, missing
from rlds_beam.naming import is_file_path
from rlds_beam.text import printable, without_secrets

_CLIENT = {"allow_http": True, "timeout": "300s", "connect_timeout": "5s"}  # `timeout` includes the body
_RETRIES = {"max_retries": 8, "retry_timeout": datetime.timedelta(seconds=90)}
_FIRST_RETRIES = {"max_retries": 2, "retry_timeout": datetime.timedelta(seconds=10)}
_DELETED_AT_ONCE = 1000
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound")


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
    return printable(without_secrets(": ".join([what, *filter(None, answer)])), 300)


class Bucket:
    """A bucket of S3 or Google Cloud Storage, or a container of Azure."""

    def __init__(self, scheme: str, bucket: str):
        self._root = f"{scheme}://{bucket}/"
        hint = ""
        with _explain(self._root, BucketAccessError):
            make, config, provider = BUCKETS[scheme]()
            if config.get("skip_signature"):
                hint = f"; no credentials were found{_HINTS[scheme]}"
            if provider is not None:
                config["credential_provider"] = provider
        self._explain = functools.partial(_explain, hint=hint)
        import obstore

        self._obstore: Any = obstore
        with self._explain(self._root, BucketAccessError):  # the first request fails soon if none can succeed
            first = make(bucket, client_options=_CLIENT, retry_config=_FIRST_RETRIES, **config)
            next(iter(obstore.list(first, chunk_size=1)), None)
            self._store = make(bucket, client_options=_CLIENT, retry_config=_RETRIES, **config)

    def _name(self, path: str) -> str:
        name = path.removeprefix(self._root)
        if not is_file_path(name):
            raise UsageError(f"{printable(path)}: expected the path of a file, without '..', '.', and '//'")
        return name

    def _entry(self, path: str, about: Any) -> Entry:
        return Entry(path, about["size"], about["e_tag"] or "")

    def find(self, path: str) -> Entry | None:
        """A file; None if it does not exist."""
        if path.endswith("/") or not path.startswith(self._root):
            return None
        with contextlib.suppress(FileNotFoundError), self._explain(path):
            return self._entry(path, self._obstore.head(self._store, self._name(path)))
        return None

    def list(self, directory: str, below: bool) -> Iterator[Entry]:
        """The files in a directory, in any order: all `below` it, or with its subdirectories."""
        prefix = f"{directory.rstrip('/')}/".removeprefix(self._root).rstrip("/")
        with self._explain(directory):
            if not below:
                found = self._obstore.list_with_delimiter(self._store, prefix)
                folders = set(found["common_prefixes"])
                yield from (Entry(self._root + name, None) for name in folders if is_file_path(name))
                pages = [[about for about in found["objects"] if about["path"] not in folders]]
            else:
                pages = self._obstore.list(self._store, prefix, chunk_size=1000)
            for page in pages:
                for about in page:
                    if is_file_path(about["path"]):
                        yield self._entry(self._root + about["path"], about)

    def open(self, path: str, size: int) -> tuple[Entry, bytes]:
        """Reads the first bytes of a file, at most `size`."""
        with self._explain(path):
            try:
                answer = self._obstore.get(self._store, self._name(path), options={"range": (0, size)})
            except Exception as error:
                if " 416 " in str(error):  # the object is empty
                    return Entry(path, 0), b""
                raise
            return self._entry(path, answer.meta), bytes(answer.bytes())

    def read(self, entry: Entry, start: int, stop: int) -> bytes:
        """Reads a part of a file; raises BucketError if it was replaced since `open`."""
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
        for start in range(0, len(paths), _DELETED_AT_ONCE):
            names = [self._name(path) for path in paths[start : start + _DELETED_AT_ONCE]]
            with contextlib.suppress(FileNotFoundError), self._explain(paths[start]):
                self._obstore.delete(self._store, names)


Provider = Callable[[], Any]
Opening = tuple[Any, dict[str, Any], Provider | None]
"""A class of obstore, its settings, and what finds its credentials; None if obstore does."""


def _open_s3() -> Opening:
    from obstore.store import S3Store

    homes = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}
    files = [os.path.expanduser(os.environ.get(name, path)) for name, path in homes.items()]
    has_profile = "AWS_PROFILE" in os.environ or any(map(os.path.exists, files))
    if "AWS_ACCESS_KEY_ID" in os.environ and not has_profile:
        return S3Store, {}, None
    try:
        import boto3
    except ImportError as error:
        if has_profile:
            raise missing("s3", f"s3:// with a profile of AWS needs boto3 ({error})") from error
        container = any(name in os.environ for name in ("AWS_WEB_IDENTITY_TOKEN_FILE", *_CONTAINER))
        return S3Store, {} if container else {"skip_signature": True}, None
    session = boto3.session.Session()
    url = session.client("s3", region_name=session.region_name or "us-east-1").meta.endpoint_url
    config = {} if url.endswith(".amazonaws.com") else {"endpoint": url}
    config |= {"region": session.region_name} if session.region_name else {}
    if session.get_credentials() is None:
        return S3Store, {**config, "skip_signature": True}, None
    from obstore.auth.boto3 import Boto3CredentialProvider

    return S3Store, config, Boto3CredentialProvider(session)


_CONTAINER = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")


def _open_gs() -> Opening:
    from obstore.store import GCSStore

    if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):
        url = emulator if "://" in emulator else f"http://{emulator}"
        return GCSStore, {"base_url": url, "bearer_token": "emulator"}, None
    try:
        import google.auth.transport.requests
        from obstore.auth.google import GoogleCredentialProvider
    except ImportError:
        home = os.path.expanduser("~/.config/gcloud/application_default_credentials.json")
        given = "GOOGLE_APPLICATION_CREDENTIALS" in os.environ or os.path.exists(home)
        return GCSStore, {} if given else {"skip_signature": True}, None
    try:
        credentials, _ = google.auth.default(["https://www.googleapis.com/auth/devstorage.read_write"])
    except google.auth.exceptions.DefaultCredentialsError as error:
        if "GOOGLE_APPLICATION_CREDENTIALS" in os.environ:
            raise BucketAccessError(f"gs://: {shorten_error(error)}") from None
        return GCSStore, {"skip_signature": True}, None
    return GCSStore, {}, GoogleCredentialProvider(credentials)


def _open_az() -> Opening:
    from obstore.store import AzureStore

    written = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    given = dict(part.split("=", 1) for part in written.split(";") if "=" in part)
    account = given.get("AccountName") or os.environ.get("AZURE_STORAGE_ACCOUNT")
    if not account:
        raise UsageError("az:// paths need AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT")
    config = {"account_name": account}
    if "BlobEndpoint" in given:
        config["endpoint"] = given["BlobEndpoint"]
    if key := given.get("AccountKey") or os.environ.get("AZURE_STORAGE_KEY"):
        return AzureStore, {**config, "account_key": key}, None
    if token := given.get("SharedAccessSignature") or os.environ.get("AZURE_STORAGE_SAS_TOKEN"):
        return AzureStore, {**config, "sas_key": token}, None
    try:
        from obstore.auth.azure import AzureCredentialProvider

        provider = AzureCredentialProvider()
        provider()
    except Exception:  # not installed, or there are no credentials: the container may be public
        return AzureStore, {**config, "skip_signature": True}, None
    return AzureStore, config, provider


BUCKETS: dict[str, Callable[[], Opening]] = {"s3": _open_s3, "gs": _open_gs, "az": _open_az}
_HINTS = {
    "s3": ": set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE with rlds-beam[s3]",
    "gs": ": run 'gcloud auth application-default login', or install rlds-beam[gcs] for the role of a machine",
    "az": ": set AZURE_STORAGE_KEY, or run 'az login' with rlds-beam[azure]",
}


class Filesystem:
    """A filesystem of fsspec, for example the Hugging Face Hub, with the methods of `Bucket`."""

    def __init__(self, path: str):
        scheme = path.partition("://")[0]
        try:
            import fsspec

            options = {"endpoint": os.environ.get("HF_ENDPOINT")} if scheme == "hf" else {}
            self._files: Any = fsspec.filesystem(scheme, **options)
        except (ImportError, ValueError) as error:
            if scheme == "hf":
                raise missing("hub", f"cannot open {path}: hf:// needs huggingface_hub ({error})") from error
            raise UsageError(
                f"cannot open {path}: fsspec does not read {scheme}:// ({shorten_error(error)}); use a local path or "
                "s3://, gs://, az://, hf://"
            ) from error

    def _entry(self, path: str, about: Any) -> Entry:
        if about["type"] == "directory":
            return Entry(path, None)
        version = next((about[name] for name in _VERSIONS if about.get(name)), "")
        return Entry(path, int(about["size"]), str(version))

    def find(self, path: str) -> Entry | None:
        with contextlib.suppress(FileNotFoundError), _explain(path):
            entry = self._entry(path, self._files.info(path))
            return None if entry.size is None else entry
        return None

    def list(self, directory: str, below: bool) -> Iterator[Entry]:
        root = self._files._strip_protocol(directory).rstrip("/")
        with contextlib.suppress(FileNotFoundError), _explain(directory):
            is_hub, folders = directory.startswith("hf://"), set[str]()
            if not is_hub:
                self._files.invalidate_cache()
            if is_hub and not self._files.isdir(directory):
                return
            if is_hub and not below:
                found = self._files.ls(directory, detail=True)
            else:  # elsewhere there may be empty directories, which buckets do not have
                found = self._files.find(directory, detail=True).values()
            for about in found:
                name = about["name"][len(root) :].strip("/")
                folder, slash, _ = name.partition("/")
                if not is_file_path(name) or (slash and not below and folder in folders):
                    continue
                if slash and not below:
                    folders.add(folder)
                    yield Entry(f"{directory.rstrip('/')}/{folder}", None)
                else:
                    yield self._entry(f"{directory.rstrip('/')}/{name}", about)

    def open(self, path: str, size: int) -> tuple[Entry, bytes]:
        with _explain(path):
            entry = self._entry(path, self._files.info(path))
            if entry.size is None:
                raise FileNotFoundError(path)
        return entry, self.read(entry, 0, min(size, entry.size))

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
_VERSIONS = ("ETag", "etag", "blob_id", "checksum", "mtime", "modified", "last_modified", "created")
