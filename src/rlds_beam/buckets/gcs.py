"""`gs://` through Google's client: application default credentials, or anonymous access without any."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, BinaryIO

from rlds_beam import lazy
from rlds_beam.buckets import base, files
from rlds_beam.buckets.base import (
    CHECK_SECONDS,
    COPY_SECONDS,
    KEPT_CONNECTIONS,
    UNREADABLE,
    Entry,
    Listing,
    Result,
    Store,
    WrongAnswer,
    at_once,
    bucket_of,
    check_extent,
    check_length,
    describe_answer,
    limit_parts,
    split_path,
    within,
)
from rlds_beam.errors import BucketAccessError, BucketError, RldsBeamError
from rlds_beam.text import printable

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

        self._errors: Any = exceptions
        self._sign_in_errors: Any = google.auth.exceptions
        credentials, project = _credentials()
        self._anonymous = credentials is None
        self._url = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com")
        with self._explained("gs://", BucketAccessError):
            if credentials is None:
                self._client = storage.Client.create_anonymous_client()
            else:
                self._client = storage.Client(project or "none", credentials)
        for scheme in ("https://", "http://"):
            self._client._http.mount(scheme, _limited_adapter())
        self._often = {"timeout": _TIMEOUT, "retry": DEFAULT_RETRY.with_timeout(_RETRY_SECONDS)}
        self._brief = {"timeout": _CHECK_TIMEOUT, "retry": DEFAULT_RETRY.with_timeout(_CHECK_SECONDS)}

    def check(self, path: str) -> None:
        bucket, name = split_path(path)
        brief = {"max_results": 1, "fields": "items(name)", **self._brief}
        with self._explained(path, BucketAccessError), contextlib.suppress(self._errors.ServerError):
            try:
                pages = self._client.list_blobs(bucket, prefix=name, **brief).pages
                self._within(path, lambda: next(pages, None), seconds=CHECK_SECONDS)
            except self._errors.RetryError as error:
                raise error.cause or error from error

    def open_read(self, path: str) -> BinaryIO:
        blob = self._blob(path)
        with self._explained(path):
            size = self._reload(path, blob)
            if not blob.generation:
                raise WrongAnswer("does not say the generation of the object")
        version = {"if_generation_match": blob.generation}

        def fetch(start: int, stop: int) -> bytes:
            part = {"start": start, "end": stop - 1, "raw_download": True, "checksum": None, **version, **self._often}
            with self._explained(path):
                content: bytes = self._within(path, lambda: blob.download_as_bytes(**part), size=stop - start)
                if len(content) != stop - start:
                    raise WrongAnswer(f"was asked for {stop - start:,} bytes, and sends {len(content):,}")
                return content

        return files.reader(fetch, size)

    def open_write(self, path: str) -> BinaryIO:
        def upload(file: IO[bytes], size: int) -> None:
            with self._explained(path):
                options = {"size": size, "checksum": "crc32c", **self._often}
                self._within(path, lambda: self._blob(path).upload_from_file(file, **options), size=size)

        return files.writer(upload)

    def find(self, path: str) -> Entry | None:
        if path.endswith("/") or not split_path(path)[1]:
            return None
        blob = self._blob(path)
        try:
            with self._explained(path):
                return Entry(path, self._reload(path, blob), blob.crc32c or "")
        except FileNotFoundError:
            return None

    def _reload(self, path: str, blob: Any) -> int:
        """Looks an object up; returns its size."""
        self._within(path, lambda: blob.reload(**self._often))
        size: int = blob.size
        Listing(path, self._url).is_file(path, size)
        return size

    def entries(self, prefix: str, *, below: bool) -> Iterator[Entry]:
        bucket, name = split_path(prefix)
        listing, listed = Listing(prefix, self._url), []
        with self._explained(prefix):
            blobs = self._client.list_blobs(
                bucket,
                prefix=name,
                delimiter=None if below else "/",
                fields="items(name,size,crc32c),prefixes,nextPageToken",
                **self._often,
            )
            pages = blobs.pages
            while (page := self._within(prefix, lambda: next(pages, None))) is not None:
                listing.add_page(page.num_items, blobs.next_page_token)
                listed += [
                    Entry(f"gs://{bucket}/{blob.name}", blob.size, blob.crc32c or "")
                    for blob in page
                    if listing.is_file(blob.name, blob.size)
                ]
            listed += [
                Entry(f"gs://{bucket}/{directory.rstrip('/')}", None)
                for directory in blobs.prefixes
                if listing.is_file(directory, 0)
            ]
        yield from sorted(entry for entry in listed if entry.path.startswith(prefix) and not entry.path.endswith("/"))

    def rename(self, source: str, destination: str) -> None:
        (bucket, name), (to_bucket, to_name) = split_path(source), split_path(destination)
        with self._explained(source):
            here, there = self._client.bucket(bucket), self._client.bucket(to_bucket)
            where = (here.blob(name), there, to_name)
            self._within(source, lambda: here.copy_blob(*where, **self._often), seconds=COPY_SECONDS)
        self.delete([source])

    def delete(self, paths: Sequence[str]) -> None:
        def delete(path: str) -> None:
            with contextlib.suppress(FileNotFoundError), self._explained(path):
                self._within(path, lambda: self._blob(path).delete(**self._often))

        at_once(delete, paths)

    def _within(self, path: str, function: Callable[[], Result], **limits: Any) -> Result:
        return within(function, path, self._url, **limits)

    def _blob(self, path: str) -> Any:
        bucket, name = split_path(path)
        return self._client.bucket(bucket).blob(name)

    @contextlib.contextmanager
    def _explained(self, path: str, kind: type[BucketError] = BucketError) -> Iterator[None]:
        """Words the errors of Google's libraries and of requests."""
        try:
            yield
        except RldsBeamError:
            raise
        except Exception as error:
            cause = error.cause or error if isinstance(error, self._errors.RetryError) else error
            if isinstance(cause, self._errors.NotFound) and kind is not BucketAccessError:
                raise FileNotFoundError(f"no such file: {path}") from error
            if isinstance(cause, self._errors.ServerError) and kind is BucketAccessError:
                raise  # possibly temporary; later requests retry for longer
            if isinstance(cause, UNREADABLE) and not isinstance(cause, self._sign_in_errors.GoogleAuthError):
                raise kind(f"{path}: {self._url} {describe_answer(cause)}") from error
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
            return f"{bucket}: {self._url} does not answer ({type(error).__name__}); check the network"
        return f"{path}: {self._url}: {printable(text)}"


def _limited_adapter() -> Any:
    """An adapter of requests that limits answers, and checks that a part of an object is the one asked for."""
    from requests.adapters import HTTPAdapter

    class LimitedAdapter(HTTPAdapter):
        def send(self, request: Any, *arguments: Any, **options: Any) -> Any:
            answer = super().send(request, *arguments, **options)
            most, stream = base.MAX_ANSWER_BYTES, answer.raw.stream
            if (part := re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))) is not None:
                start, stop = int(part[1]), int(part[2]) + 1
                if answer.status_code < 300:
                    most = stop - start
                if answer.status_code == 206:
                    check_extent(answer.headers.get("Content-Range"), start, stop)
            check_length(answer.headers.get("Content-Length"), most)
            answer.raw.stream = lambda *sizes, **how: limit_parts(stream(*sizes, **how), most)
            return answer

    return LimitedAdapter(pool_maxsize=KEPT_CONNECTIONS)


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
