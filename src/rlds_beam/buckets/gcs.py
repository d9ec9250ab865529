"""`gs://` through Google's client: application default credentials, or anonymous access without any."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from typing import IO, Any
from urllib.parse import quote

from rlds_beam import lazy
from rlds_beam.buckets.base import WrongAnswer, bucket_name, within
from rlds_beam.buckets.objects import ObjectStore, Page, limited_adapter
from rlds_beam.buckets.ranges import Address
from rlds_beam.errors import BucketAccessError
from rlds_beam.text import printable

_LOOK_SECONDS = 5.0
"""Time to find credentials: Google's library tries a metadata server, which only Google's machines have, for 30 s."""

_RETRY_SECONDS = 90.0
_CHECK_SECONDS = 4.0
_TIMEOUT = (5, 60)
_CHECK_TIMEOUT = (2, 3.5)

_SCOPES = ["https://www.googleapis.com/auth/devstorage.read_write"]
_SIGN_IN = "run 'gcloud auth application-default login', or set GOOGLE_APPLICATION_CREDENTIALS"


class Gcs(ObjectStore):
    """A client with the credentials found by Google's library."""

    scheme = "gs"
    packages = ("google.", "requests.", "urllib3.")

    def __init__(self) -> None:
        lazy.show_clients()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about Python and gRPC versions that Google will drop
            import google.auth.exceptions
            from google.api_core import exceptions
            from google.cloud import storage
            from google.cloud.storage.retry import DEFAULT_RETRY

        self._errors: Any = exceptions
        self.own_errors = google.auth.exceptions.GoogleAuthError
        credentials, project = _credentials()
        self._credentials = credentials
        self._anonymous = credentials is None
        self.url = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com")
        with self.explain_errors("gs://", BucketAccessError):
            if credentials is None:
                self._client = storage.Client.create_anonymous_client()
            else:
                self._client = storage.Client(project or "none", credentials)
        for scheme in ("https://", "http://"):
            self._client._http.mount(scheme, limited_adapter())
        self._often = {"timeout": _TIMEOUT, "retry": DEFAULT_RETRY.with_timeout(_RETRY_SECONDS)}
        self._brief = {"max_results": 1, "timeout": _CHECK_TIMEOUT, "retry": DEFAULT_RETRY.with_timeout(_CHECK_SECONDS)}

    def open(self, bucket: str, name: str, window: int) -> tuple[int, str, bytes]:
        del window
        blob = self._reload(bucket, name)
        if not blob.generation:
            raise WrongAnswer("does not say the generation of the object")
        return blob.size, blob.generation, b""

    def sign(self, bucket: str, name: str, version: str) -> Address:
        from google.auth.transport.requests import Request

        where = f"/download/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}"
        url, headers = f"{self.url}{where}?alt=media&ifGenerationMatch={version}", dict[str, str]()
        if self._credentials is not None:
            self._credentials.before_request(Request(), "GET", url, headers)
        return Address(url, headers)

    def get(self, bucket: str, name: str, version: str, start: int, stop: int) -> bytes:
        part = {"start": start, "end": stop - 1, "raw_download": True, "checksum": None, **self._often}
        content: bytes = self._blob(bucket, name).download_as_bytes(if_generation_match=version, **part)
        return content

    def put(self, bucket: str, name: str, file: IO[bytes], size: int) -> None:
        self._blob(bucket, name).upload_from_file(file, size=size, checksum="crc32c", **self._often)

    def head(self, bucket: str, name: str) -> tuple[Any, str]:
        blob = self._reload(bucket, name)
        return blob.size, blob.crc32c or ""

    def pages(self, bucket: str, prefix: str, *, below: bool, brief: bool = False) -> Iterator[Page]:
        fields = "items(name,size,crc32c),prefixes,nextPageToken"
        how = {"delimiter": None if below else "/", "fields": fields, **(self._brief if brief else self._often)}
        blobs = self._client.list_blobs(bucket, prefix=prefix, **how)
        for page in blobs.pages:
            objects = [(blob.name, blob.size, blob.crc32c or "") for blob in page]
            yield Page(objects, page.prefixes, blobs.next_page_token)

    def copy(self, bucket: str, name: str, to_bucket: str, to_name: str) -> None:
        here, there = self._client.bucket(bucket), self._client.bucket(to_bucket)
        here.copy_blob(here.blob(name), there, to_name, **self._often)

    def remove(self, bucket: str, names: Sequence[str]) -> None:
        self._blob(bucket, names[0]).delete(**self._often)

    def _blob(self, bucket: str, name: str) -> Any:
        return self._client.bucket(bucket).blob(name)

    def _reload(self, bucket: str, name: str) -> Any:
        """An object with its size, generation, and checksum."""
        blob = self._blob(bucket, name)
        blob.reload(**self._often)
        return blob

    def is_missing(self, error: Exception) -> bool:
        return self.status(error) == 404

    def status(self, error: Exception) -> int:
        return int(getattr(self._cause(error), "code", None) or 0)

    def _cause(self, error: Exception) -> Exception:
        """The error that retries ended with."""
        return (isinstance(error, self._errors.RetryError) and error.cause) or error

    def describe(self, path: str, error: Exception) -> str:
        error = self._cause(error)
        bucket, text = bucket_name(path) if path != "gs://" else path, " ".join(str(error).split())
        if isinstance(error, self._errors.NotFound):
            return f"{bucket}: there is no such bucket; check its name"
        refused = (self._errors.Unauthorized, self.own_errors)
        if isinstance(error, (self._errors.Forbidden, *refused)) and self._anonymous:
            return f"{bucket}: no Google credentials were found, and the bucket is not public: {_SIGN_IN}"
        if isinstance(error, self._errors.Forbidden):
            return (
                f"{path}: access denied; the account needs the role Storage Object Viewer on {bucket}, and to write "
                f"Storage Object User ({text[-200:]})"
            )
        if isinstance(error, refused):
            return f"{bucket}: Google rejects the credentials ({text[:200]}): {_SIGN_IN}"
        if not isinstance(error, self._errors.GoogleAPICallError):
            return self.does_not_answer(path, error, "")
        return f"{path}: {self.url}: {printable(text)}"


def _credentials() -> tuple[Any, str | None]:
    """The application default credentials and their project; (None, None) without any, or for an emulator."""
    import google.auth

    if "STORAGE_EMULATOR_HOST" in os.environ:
        return None, None

    def look() -> tuple[Any, str | None]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about credentials without a quota project
            found: tuple[Any, str | None] = google.auth.default(scopes=_SCOPES)
            return found

    try:
        return within(look, "gs://", "Google", seconds=_LOOK_SECONDS)
    except BucketAccessError:  # it takes too long
        return None, None
    except google.auth.exceptions.GoogleAuthError as error:
        if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
            said = " ".join(str(error).split())
            raise BucketAccessError(f"GOOGLE_APPLICATION_CREDENTIALS: {said}") from error
        return None, None
