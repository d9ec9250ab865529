"""`s3://` through boto3, with its credentials, profiles, and endpoints (`AWS_PROFILE`, `AWS_ENDPOINT_URL_S3`, ...)."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator, Sequence
from typing import IO, Any, BinaryIO

from rlds_beam.buckets import files
from rlds_beam.buckets.base import KEPT_CONNECTIONS, Entry, Store, bucket_of, split_path
from rlds_beam.errors import BucketAccessError, BucketError

_ATTEMPTS = 8
"""Attempts per request, over about 40 s; responses that break off are retried as often."""

_DELETED_AT_ONCE = 1000
_COPIED_WHOLE = 4 << 30
"""Maximum bytes to copy in one request. S3 allows up to 5 GiB; larger objects are copied in parts."""

_REJECTED = ("ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch", "TokenRefreshRequired")
_DENIED = ("403", "AccessDenied", "AllAccessDisabled", "AccountProblem")
_ELSEWHERE = ("301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect")
_SIGN_IN = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run 'aws configure'"


class S3(Store):
    """A client with the credentials found by boto3; without any, requests are unsigned (public buckets)."""

    def __init__(self) -> None:
        import boto3
        import botocore.exceptions
        from boto3.s3.transfer import TransferConfig
        from botocore import UNSIGNED
        from botocore.config import Config

        self._errors: Any = botocore.exceptions
        self._url = "AWS"
        with self._explained("s3://", BucketAccessError):
            session = boto3.session.Session()
            self._anonymous = session.get_credentials() is None
            config = Config(
                connect_timeout=5, read_timeout=60, max_pool_connections=KEPT_CONNECTIONS, tcp_keepalive=True
            )
            if "AWS_MAX_ATTEMPTS" not in os.environ:
                config = config.merge(Config(retries={"total_max_attempts": _ATTEMPTS, "mode": "standard"}))
            if self._anonymous:
                config = config.merge(Config(signature_version=UNSIGNED))
            once = {"total_max_attempts": 2, "mode": "standard"}
            brief = config.merge(Config(connect_timeout=2, read_timeout=3.5, retries=once))
            self._client, self._brief = (session.client("s3", config=one) for one in (config, brief))
        self._url = self._client.meta.endpoint_url
        self._copying = TransferConfig(multipart_threshold=_COPIED_WHOLE, multipart_chunksize=_COPIED_WHOLE // 8)

    def check(self, path: str) -> None:
        bucket, name = split_path(path)
        with self._explained(path, BucketAccessError):
            try:
                self._brief.list_objects_v2(Bucket=bucket, Prefix=name, MaxKeys=1)
            except self._errors.ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
                    raise  # server errors may be temporary; later requests retry more often

    def open_read(self, path: str) -> BinaryIO:
        with self._explained(path):
            size, tag, first = self._open(path)
        return files.reader(lambda start, stop: self._fetch(path, tag, start, stop), size, first)

    def _open(self, path: str) -> tuple[int, str, bytes]:
        """Reads size, entity tag, and first bytes with one request."""
        bucket, name = split_path(path)
        try:
            answer, first = self._get(Bucket=bucket, Key=name, Range=f"bytes=0-{files.FIRST_WINDOW - 1}")
        except self._errors.ClientError as error:
            if _code(error) == "InvalidRange":  # the object is empty
                return 0, "", b""
            raise
        return int(answer["ContentRange"].rpartition("/")[2]), answer["ETag"], first

    def _fetch(self, path: str, tag: str, start: int, stop: int) -> bytes:
        bucket, name = split_path(path)
        with self._explained(path):
            return self._get(Bucket=bucket, Key=name, Range=f"bytes={start}-{stop - 1}", IfMatch=tag)[1]

    def _get(self, **request: str) -> tuple[dict[str, Any], bytes]:
        """Reads a response and its whole body; botocore retries requests, but not bodies that break off."""
        broken = (self._errors.IncompleteReadError, self._errors.ReadTimeoutError, self._errors.ResponseStreamingError)
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(random.random() * 2 ** (attempt - 1))
            with contextlib.suppress(*(broken if attempt < _ATTEMPTS - 1 else ())):
                answer = self._client.get_object(**request)
                return answer, answer["Body"].read()
        raise AssertionError("unreachable")

    def open_write(self, path: str) -> BinaryIO:
        bucket, name = split_path(path)

        def upload(file: IO[bytes], size: int) -> None:
            with self._explained(path):
                self._client.upload_fileobj(file, bucket, name)

        return files.writer(upload)

    def find(self, path: str) -> Entry | None:
        bucket, name = split_path(path)
        if not name or name.endswith("/"):
            return None
        try:
            with self._explained(path):
                answer = self._client.head_object(Bucket=bucket, Key=name)
        except FileNotFoundError:
            return None
        return Entry(path, answer["ContentLength"], answer["ETag"])

    def entries(self, prefix: str, *, below: bool) -> Iterator[Entry]:
        bucket, name = split_path(prefix)
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=bucket, Prefix=name, **({} if below else {"Delimiter": "/"})
        )
        with self._explained(prefix):
            for page in pages:
                listed = [
                    Entry(f"s3://{bucket}/{one['Key']}", one["Size"], one["ETag"]) for one in page.get("Contents", ())
                ]
                listed += [
                    Entry(f"s3://{bucket}/{one['Prefix'].rstrip('/')}", None) for one in page.get("CommonPrefixes", ())
                ]
                yield from sorted(one for one in listed if not one.path.endswith("/"))

    def rename(self, source: str, destination: str) -> None:
        (bucket, name), (to_bucket, to_name) = split_path(source), split_path(destination)
        with self._explained(source):
            self._client.copy({"Bucket": bucket, "Key": name}, to_bucket, to_name, Config=self._copying)
        self.delete([source])

    def delete(self, paths: Sequence[str]) -> None:
        for start in range(0, len(paths), _DELETED_AT_ONCE):
            some = paths[start : start + _DELETED_AT_ONCE]
            keys = [{"Key": split_path(path)[1]} for path in some]
            with self._explained(some[0]):
                answer = self._client.delete_objects(
                    Bucket=split_path(some[0])[0], Delete={"Objects": keys, "Quiet": True}
                )
            for error in answer.get("Errors", ()):
                raise BucketError(f"{bucket_of(some[0])}/{error['Key']} cannot be deleted: {error['Message']}")

    @contextlib.contextmanager
    def _explained(self, path: str, kind: type[BucketError] = BucketError) -> Iterator[None]:
        """Converts boto3 errors to ours."""
        try:
            yield
        except self._errors.ClientError as error:
            if _code(error) in ("404", "NoSuchKey"):
                raise FileNotFoundError(f"no such file: {path}") from error
            raise kind(self._refusal(path, error)) from error
        except Exception as error:
            if not type(error).__module__.startswith(("boto3.", "botocore.", "s3transfer.", "urllib3.")):
                raise
            raise kind(self._failure(path, error)) from error

    def _refusal(self, path: str, error: Any) -> str:
        """Describes an error response of the store in one line."""
        bucket, code = bucket_of(path), _code(error)
        if code == "NoSuchBucket":
            return f"{bucket}: there is no such bucket at {self._url}; check its name"
        if code in _DENIED and self._anonymous:
            return f"{bucket}: no AWS credentials were found, and the bucket is not public: {_SIGN_IN}"
        if code in _DENIED:
            return (
                f"{path}: access denied; the credentials need s3:ListBucket and s3:GetObject on {bucket}, and to write "
                "s3:PutObject and s3:DeleteObject"
            )
        if code in _REJECTED:
            return f"{bucket}: the store rejects the AWS credentials ({code}): {_SIGN_IN}"
        if code in _ELSEWHERE:
            region = error.response["Error"].get("Region") or error.response["ResponseMetadata"].get(
                "HTTPHeaders", {}
            ).get("x-amz-bucket-region", "the bucket's region")
            return f"{bucket}: the bucket is in another region: set AWS_REGION={region}"
        if code == "PreconditionFailed":
            return f"{path} was replaced while it was read; run the command again when nothing writes to it"
        return f"{path}: {' '.join(str(error).split())}"

    def _failure(self, path: str, error: Exception) -> str:
        """Describes a connection or client error in one line."""
        text = " ".join(str(error).split())
        unreachable = (
            self._errors.ConnectionClosedError, self._errors.ConnectTimeoutError, self._errors.EndpointConnectionError,
            self._errors.ReadTimeoutError, self._errors.ProxyConnectionError, self._errors.SSLError,
        )  # fmt: skip
        if isinstance(error, unreachable):
            return (
                f"{bucket_of(path)}: {self._url} does not answer ({type(error).__name__}); check "
                "the network and AWS_ENDPOINT_URL"
            )
        return f"{path}: {text}: {_SIGN_IN}" if path == "s3://" else f"{path}: {text}"


def _code(error: Any) -> str:
    return str(error.response["Error"].get("Code", ""))
