"""`az://CONTAINER/PATH` through Microsoft's client, for the account that Azure's environment variables name."""

from __future__ import annotations

import datetime
import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from typing import IO, Any

from rlds_beam.buckets.base import COPY_SECONDS, WrongAnswer, bucket_name, within
from rlds_beam.buckets.objects import ObjectStore, Page, limited_adapter
from rlds_beam.buckets.ranges import SIGNED_SECONDS, Address
from rlds_beam.errors import BucketAccessError, UsageError
from rlds_beam.text import printable

_LOOK_SECONDS = 5.0
"""Time to find credentials: Microsoft's library runs the Azure CLI, and asks a server on Azure's machines."""

_OFTEN = {"connection_timeout": 5, "read_timeout": 60}
_BRIEF = {"results_per_page": 1, "connection_timeout": 2, "read_timeout": 3.5, "retry_total": 1}
_VERSION = "2021-12-02"
"""The version of Azure's protocol for requests without its client."""

_SCOPE = "https://storage.azure.com/.default"
_DENIED = ("AuthorizationFailure", "AuthorizationPermissionMismatch", "InsufficientAccountPermissions")
_SIGN_IN = "run 'az login', or set AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN, or AZURE_STORAGE_CONNECTION_STRING"


class Azure(ObjectStore):
    """A client for one account, with its key, or the credentials found by Microsoft's library, or none."""

    scheme = "az"
    packages = ("azure.", "msal.", "requests.", "urllib3.")

    def __init__(self) -> None:
        import requests
        from azure.core import MatchConditions
        from azure.core.pipeline.transport import RequestsTransport
        from azure.storage.blob import BlobServiceClient, ExponentialRetry

        logging.getLogger("azure").setLevel(logging.ERROR)  # errors that we raise are warnings there
        self._unchanged = MatchConditions.IfNotModified
        session = requests.Session()
        for prefix in ("https://", "http://"):
            session.mount(prefix, limited_adapter())
        retries = ExponentialRetry(initial_backoff=0, increment_base=2, retry_total=6, random_jitter_range=1)
        transport = RequestsTransport(session=session, session_owner=False)
        options = {"transport": transport, "retry_policy": retries, "max_single_get_size": 1 << 40, **_OFTEN}
        self.url, self._anonymous = "Azure", False
        with self.explain_errors("az://", BucketAccessError):
            if written := os.environ.get("AZURE_STORAGE_CONNECTION_STRING"):
                try:
                    self._client = BlobServiceClient.from_connection_string(written, **options)
                except ValueError as error:
                    raise BucketAccessError(f"AZURE_STORAGE_CONNECTION_STRING: {printable(error, 200)}") from None
                self._anonymous = not any(part in written.lower() for part in ("accountkey=", "sharedaccesssignature="))
            else:
                url, credential = _account()
                self._anonymous = credential is None
                self._client = BlobServiceClient(url, credential, **options)
        self.url = f"{self._client.scheme}://{self._client.primary_hostname}".rstrip("/")

    def open(self, bucket: str, name: str, window: int) -> tuple[int, str, bytes]:
        from azure.core.exceptions import HttpResponseError

        try:
            answer = self._client.get_blob_client(bucket, name).download_blob(0, window)
        except HttpResponseError as error:
            if error.status_code == 416:  # the object is empty
                return 0, "", b""
            raise
        content, extent = answer.readall(), answer.properties.content_range
        if extent is None:
            return 0, "", b""
        if not answer.properties.etag:
            raise WrongAnswer("sends no ETag")
        return int(extent.rpartition("/")[2]), answer.properties.etag, content

    def sign(self, bucket: str, name: str, version: str) -> Address:
        from azure.storage.blob import generate_blob_sas

        client = self._client.get_blob_client(bucket, name)
        url, credential, headers = client.url, client.credential, {"If-Match": version, "x-ms-version": _VERSION}
        if (key := getattr(credential, "account_key", None)) is not None:
            expiry = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=SIGNED_SECONDS)
            account = client.account_name
            token = generate_blob_sas(account, bucket, name, account_key=key, permission="r", expiry=expiry)
        else:
            token = getattr(credential, "signature", "")
        if hasattr(credential, "get_token"):
            headers["Authorization"] = f"Bearer {credential.get_token(_SCOPE).token}"
        return Address(f"{url}{'&' if '?' in url else '?'}{token.lstrip('?')}" if token else url, headers)

    def get(self, bucket: str, name: str, version: str, start: int, stop: int) -> bytes:
        blob, unchanged = self._client.get_blob_client(bucket, name), self._unchanged
        content: bytes = blob.download_blob(start, stop - start, etag=version, match_condition=unchanged).readall()
        return content

    def put(self, bucket: str, name: str, file: IO[bytes], size: int) -> None:
        self._client.get_blob_client(bucket, name).upload_blob(file, length=size, overwrite=True)

    def head(self, bucket: str, name: str) -> tuple[Any, str]:
        about = self._client.get_blob_client(bucket, name).get_blob_properties()
        return about.size, (about.etag or "").strip('"')

    def pages(self, bucket: str, prefix: str, *, below: bool, brief: bool = False) -> Iterator[Page]:
        container = self._client.get_container_client(bucket)
        listing = container.list_blobs if below else container.walk_blobs
        pages = listing(name_starts_with=prefix or None, **(_BRIEF if brief else {})).by_page()
        for page in pages:
            entries = list(page)
            objects = [entry for entry in entries if "size" in entry]
            yield Page(
                [(entry.name, entry.size, (entry.etag or "").strip('"')) for entry in objects],
                [entry.name for entry in entries if "size" not in entry],
                pages.continuation_token,
            )

    def copy(self, bucket: str, name: str, to_bucket: str, to_name: str) -> None:
        blob = self._client.get_blob_client(to_bucket, to_name)
        status = blob.start_copy_from_url(self._client.get_blob_client(bucket, name).url)["copy_status"]
        deadline = time.monotonic() + COPY_SECONDS
        while status == "pending" and time.monotonic() < deadline:
            time.sleep(0.5)
            status = blob.get_blob_properties().copy.status
        if status != "success":
            raise WrongAnswer(f"does not copy the object ({printable(status, 40)})")

    def remove(self, bucket: str, names: Sequence[str]) -> None:
        self._client.get_blob_client(bucket, names[0]).delete_blob()

    def is_missing(self, error: Exception) -> bool:
        return self.status(error) == 404 and _code(error) != "ContainerNotFound"

    def status(self, error: Exception) -> int:
        return int(getattr(error, "status_code", None) or 0)

    def describe(self, path: str, error: Exception) -> str:
        bucket, code, status = bucket_name(path), _code(error), self.status(error)
        if status == 0:
            return self.does_not_answer(path, error, " and AZURE_STORAGE_ACCOUNT")
        if self._anonymous and (status in (401, 403, 404) or code == "PublicAccessNotPermitted"):
            return f"{bucket}: no Azure credentials were found, and the container is not public: {_SIGN_IN}"
        if code in ("ContainerNotFound", "ResourceNotFound"):
            return f"{bucket}: there is no such container at {self.url}; check its name"
        if code in _DENIED:
            return (
                f"{path}: access denied; the account needs the role Storage Blob Data Reader on {bucket}, and to write "
                "Storage Blob Data Contributor"
            )
        if status in (401, 403):
            return f"{bucket}: Azure rejects the credentials ({printable(code, 60)}): {_SIGN_IN}"
        if status < 300:
            return f"{path}: {self.url} sends an answer that cannot be read ({printable(error, 80)})"
        return f"{path}: {self.url}: {status} {printable(' '.join(str(error).split()), 300)}"


def _code(error: Exception) -> str:
    """The code of an error response; empty for other errors."""
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code) or "")


def _account() -> tuple[str, Any]:
    """The address of the account, and its credentials; None without any."""
    from azure.core.credentials import AzureSasCredential
    from azure.identity import DefaultAzureCredential

    account = os.environ.get("AZURE_STORAGE_ACCOUNT", "")
    if re.fullmatch(r"[a-z0-9]{3,24}", account) is None:
        raise UsageError("az:// paths need AZURE_STORAGE_ACCOUNT, the name of a storage account")
    url = f"https://{account}.blob.core.windows.net"
    if key := os.environ.get("AZURE_STORAGE_KEY"):
        return url, key
    if token := os.environ.get("AZURE_STORAGE_SAS_TOKEN"):
        return url, AzureSasCredential(token)
    credential = DefaultAzureCredential()
    try:
        within(lambda: credential.get_token(_SCOPE), "az://", "Azure", seconds=_LOOK_SECONDS)
    except Exception:  # there are none, or finding them takes too long: the container may be public
        return url, None
    return url, credential
