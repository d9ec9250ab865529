"""`gs://` through Google's client: application default credentials, or anonymous access without any."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import IO, Any, BinaryIO

from rlds_beam import lazy
from rlds_beam.buckets import files
from rlds_beam.buckets.base import KEPT_CONNECTIONS, Entry, Store, at_once, bucket_of, split_path
from rlds_beam.errors import BucketAccessError, BucketError

_LOOK_SECONDS = 5.0
"""Time to find credentials: Google's library tries a metadata server, which only Google's machines have, for 30 s."""

_RETRY_SECONDS = 90.0
_CHECK_SECONDS = 4.0
_TIMEOUT = (5, 60)
_CHECK_TIMEOUT = (2, 3.5)

_SCOPES = ["https://www.googleapis.com/auth/devstorage.read_write"]
_SIGN_IN = "run 'gcloud auth application-default login', or set GOOGLE_APPLICATION_CREDENTIALS"


class Gcs(Store):
    """A client with the credentials found by Google's library."""

    def __init__(self) -> None:
        lazy.show_clients()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about Python and gRPC versions that Google will drop
            import google.auth.exceptions
            from google.api_core import exceptions
            from google.cloud import storage
            from google.cloud.storage.retry import DEFAULT_RETRY
            from requests.adapters import HTTPAdapter

        self._errors: Any = exceptions
        self._sign_in_errors: Any = google.auth.exceptions
        credentials, project = _credentials()
        self._anonymous = credentials is None
        with self._explained("gs://", BucketAccessError):
            if credentials is None:
                self._client = storage.Client.create_anonymous_client()
            else:
                self._client = storage.Client(project or "none", credentials)
        for scheme in ("https://", "http://"):
            self._client._http.mount(scheme, HTTPAdapter(pool_maxsize=KEPT_CONNECTIONS))
        self._often = {"timeout": _TIMEOUT, "retry": DEFAULT_RETRY.with_timeout(_RETRY_SECONDS)}
        self._brief = {"timeout": _CHECK_TIMEOUT, "retry": DEFAULT_RETRY.with_timeout(_CHECK_SECONDS)}

    def check(self, path: str) -> None:
        bucket, name = split_path(path)
        with self._explained(path, BucketAccessError), contextlib.suppress(self._errors.ServerError):
            try:
                list(self._client.list_blobs(bucket, prefix=name, max_results=1, fields="items(name)", **self._brief))
            except self._errors.RetryError as error:
                raise error.cause or error from error

    def open_read(self, path: str) -> BinaryIO:
        blob = self._blob(path)
        with self._explained(path):
            blob.reload(**self._often)
        version = {"if_generation_match": blob.generation}

        def fetch(start: int, stop: int) -> bytes:
            with self._explained(path):
                content: bytes = blob.download_as_bytes(
                    start=start, end=stop - 1, raw_download=True, checksum=None, **version, **self._often
                )
                return content

        return files.reader(fetch, blob.size)

    def open_write(self, path: str) -> BinaryIO:
        def upload(file: IO[bytes], size: int) -> None:
            with self._explained(path):
                self._blob(path).upload_from_file(file, size=size, checksum="crc32c", **self._often)

        return files.writer(upload)

    def find(self, path: str) -> Entry | None:
        if path.endswith("/") or not split_path(path)[1]:
            return None
        blob = self._blob(path)
        try:
            with self._explained(path):
                blob.reload(**self._often)
        except FileNotFoundError:
            return None
        return Entry(path, blob.size, blob.crc32c or "")

    def entries(self, prefix: str, *, below: bool) -> Iterator[Entry]:
        bucket, name = split_path(prefix)
        with self._explained(prefix):
            blobs = self._client.list_blobs(
                bucket, prefix=name, delimiter=None if below else "/",
                fields="items(name,size,crc32c),prefixes,nextPageToken", **self._often,
            )  # fmt: skip
            listed = [Entry(f"gs://{bucket}/{one.name}", one.size, one.crc32c or "") for one in blobs]
            listed += [Entry(f"gs://{bucket}/{prefix.rstrip('/')}", None) for prefix in blobs.prefixes]
        yield from sorted(one for one in listed if not one.path.endswith("/"))

    def rename(self, source: str, destination: str) -> None:
        (bucket, name), (to_bucket, to_name) = split_path(source), split_path(destination)
        with self._explained(source):
            here, there = self._client.bucket(bucket), self._client.bucket(to_bucket)
            here.copy_blob(here.blob(name), there, to_name, **self._often)
        self.delete([source])

    def delete(self, paths: Sequence[str]) -> None:
        def delete(path: str) -> None:
            with contextlib.suppress(FileNotFoundError), self._explained(path):
                self._blob(path).delete(**self._often)

        at_once(delete, paths)

    def _blob(self, path: str) -> Any:
        bucket, name = split_path(path)
        return self._client.bucket(bucket).blob(name)

    @contextlib.contextmanager
    def _explained(self, path: str, kind: type[BucketError] = BucketError) -> Iterator[None]:
        """Words the errors of Google's libraries and of requests."""
        try:
            yield
        except Exception as error:
            cause = error.cause or error if isinstance(error, self._errors.RetryError) else error
            if isinstance(cause, self._errors.NotFound) and kind is not BucketAccessError:
                raise FileNotFoundError(f"no such file: {path}") from error
            if isinstance(cause, self._errors.ServerError) and kind is BucketAccessError:
                raise  # possibly temporary; later requests retry for longer
            if not type(cause).__module__.startswith(("google.", "requests.", "urllib3.")):
                raise
            raise kind(self._explanation(path, cause)) from error

    def _explanation(self, path: str, error: Exception) -> str:
        """Describes an error in one line."""
        bucket, text = bucket_of(path) if path != "gs://" else path, " ".join(str(error).split())
        if isinstance(error, self._errors.NotFound):
            return f"{bucket}: there is no such bucket; check its name"
        refused = (self._errors.Unauthorized, self._sign_in_errors.GoogleAuthError)
        if isinstance(error, (self._errors.Forbidden, *refused)) and self._anonymous:
            return f"{bucket}: no Google credentials were found, and the bucket is not public: {_SIGN_IN}"
        if isinstance(error, self._errors.Forbidden):
            return (
                f"{path}: access denied; the account needs the role Storage Object Viewer on {bucket}, and to write "
                f"Storage Object User ({text[-200:]})"
            )
        if isinstance(error, refused):
            return f"{bucket}: Google rejects the credentials ({text[:200]}): {_SIGN_IN}"
        if isinstance(error, self._errors.PreconditionFailed):
            return f"{path} was replaced while it was read; run the command again when nothing writes to it"
        if not isinstance(error, self._errors.GoogleAPICallError):
            url = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com")
            return f"{bucket}: {url} does not answer ({type(error).__name__}); check the network"
        return f"{path}: {text}"


def _credentials() -> tuple[Any, str | None]:
    """The application default credentials and their project; (None, None) without any, or for an emulator."""
    import google.auth

    if "STORAGE_EMULATOR_HOST" in os.environ:
        return None, None
    answers: queue.Queue[Any] = queue.Queue()

    def look() -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about credentials without a quota project
                answers.put(google.auth.default(scopes=_SCOPES))
        except google.auth.exceptions.DefaultCredentialsError as error:
            answers.put(error)

    threading.Thread(target=look, name="credentials", daemon=True).start()
    try:
        answer = answers.get(timeout=_LOOK_SECONDS)
    except queue.Empty:
        return None, None
    if not isinstance(answer, Exception):
        return answer[0], answer[1]
    if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        raise BucketAccessError(f"GOOGLE_APPLICATION_CREDENTIALS: {' '.join(str(answer).split())}") from answer
    return None, None
