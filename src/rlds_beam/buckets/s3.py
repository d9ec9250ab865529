"""`s3://` through boto3, with its credentials, profiles, and endpoints (`AWS_PROFILE`, `AWS_ENDPOINT_URL_S3`, ...)."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, BinaryIO

from rlds_beam.buckets import files
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
        for client in (self._client, self._brief):
            _limit_answers(client._endpoint)
        self._copying = TransferConfig(multipart_threshold=_COPIED_WHOLE, multipart_chunksize=_COPIED_WHOLE // 8)

    def check(self, path: str) -> None:
        bucket, name = split_path(path)
        with self._explained(path, BucketAccessError):
            try:
                brief = {"Bucket": bucket, "Prefix": name, "MaxKeys": 1}
                self._within(path, lambda: self._brief.list_objects_v2(**brief), seconds=CHECK_SECONDS)
            except self._errors.ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
                    raise  # server errors may be temporary; later requests retry more often

    def open_read(self, path: str) -> BinaryIO:
        with self._explained(path):
            size, tag, first = self._open(path)
        return files.reader(lambda start, stop: self._fetch(path, tag, start, stop), size, first)

    def _open(self, path: str) -> tuple[int, str, bytes]:
        """Reads size, entity tag, and first bytes with one request."""
        try:
            size, tag, first = self._get(path, 0, files.FIRST_WINDOW)
        except self._errors.ClientError as error:
            if _code(error) == "InvalidRange":  # the object is empty
                return 0, "", b""
            raise
        return size, tag, first

    def _fetch(self, path: str, tag: str, start: int, stop: int) -> bytes:
        with self._explained(path):
            return self._get(path, start, stop, IfMatch=tag)[2]

    def _get(self, path: str, start: int, stop: int, **more: str) -> tuple[int, str, bytes]:
        """Reads a part of an object; returns the object's size and entity tag, and the bytes."""
        bucket, name = split_path(path)
        request = {"Bucket": bucket, "Key": name, "Range": f"bytes={start}-{stop - 1}", **more}
        answer, content = self._within(path, lambda: self._get_whole(request, stop - start), size=stop - start)
        if start == 0 and answer.get("ContentLength") == 0:
            return 0, answer.get("ETag", ""), b""
        if len(content) > stop - start:
            raise WrongAnswer(f"was asked for {stop - start:,} bytes, and sends more")
        size = check_extent(answer.get("ContentRange"), start, stop)
        if len(content) != min(stop, size) - start:
            raise WrongAnswer(f"sends {len(content):,} bytes as {answer['ContentRange']}")
        if not answer.get("ETag"):
            raise WrongAnswer("sends no ETag")
        return size, answer["ETag"], content

    def _get_whole(self, request: dict[str, str], most: int) -> tuple[dict[str, Any], bytes]:
        """Reads a response and its body, at most a byte too many.

        botocore retries requests, but not bodies that break off.
        """
        broken = (self._errors.IncompleteReadError, self._errors.ReadTimeoutError, self._errors.ResponseStreamingError)
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(random.random() * 2 ** (attempt - 1))
            with contextlib.suppress(*(broken if attempt < _ATTEMPTS - 1 else ())):
                answer = self._client.get_object(**request)
                check_length(answer.get("ContentLength"), most)
                with contextlib.closing(answer["Body"]) as body:
                    content: bytes = body.read(most + 1)
                    if len(content) <= most:
                        content += body.read(1)  # checks that the body is as long as its header says
                return answer, content
        raise AssertionError("unreachable")

    def _within(self, path: str, function: Callable[[], Result], **limits: Any) -> Result:
        return within(function, path, self._url, **limits)

    def open_write(self, path: str) -> BinaryIO:
        bucket, name = split_path(path)

        def upload(file: IO[bytes], size: int) -> None:
            with self._explained(path):
                self._within(path, lambda: self._client.upload_fileobj(file, bucket, name), size=size)

        return files.writer(upload)

    def find(self, path: str) -> Entry | None:
        bucket, name = split_path(path)
        if not name or name.endswith("/"):
            return None
        try:
            with self._explained(path):
                answer = self._within(path, lambda: self._client.head_object(Bucket=bucket, Key=name))
                Listing(path, self._url).is_file(name, answer.get("ContentLength"))
                return Entry(path, answer["ContentLength"], answer.get("ETag", ""))
        except FileNotFoundError:
            return None

    def entries(self, prefix: str, *, below: bool) -> Iterator[Entry]:
        bucket, name = split_path(prefix)
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=bucket, Prefix=name, **({} if below else {"Delimiter": "/"})
        )
        listing = Listing(prefix, self._url)
        with self._explained(prefix):
            left = iter(pages)
            while (page := self._within(prefix, lambda: next(left, None))) is not None:
                objects, directories = page.get("Contents", ()), page.get("CommonPrefixes", ())
                listing.add_page(len(objects) + len(directories), page.get("NextContinuationToken"))
                listed = [
                    Entry(f"s3://{bucket}/{entry['Key']}", entry["Size"], entry.get("ETag", ""))
                    for entry in objects
                    if listing.is_file(entry["Key"], entry.get("Size"))
                ]
                listed += [
                    Entry(f"s3://{bucket}/{entry['Prefix'].rstrip('/')}", None)
                    for entry in directories
                    if listing.is_file(entry["Prefix"], 0)
                ]
                yield from sorted(
                    entry for entry in listed if entry.path.startswith(prefix) and not entry.path.endswith("/")
                )

    def rename(self, source: str, destination: str) -> None:
        (bucket, name), (to_bucket, to_name) = split_path(source), split_path(destination)
        with self._explained(source):
            where = ({"Bucket": bucket, "Key": name}, to_bucket, to_name)
            self._within(source, lambda: self._client.copy(*where, Config=self._copying), seconds=COPY_SECONDS)
        self.delete([source])

    def delete(self, paths: Sequence[str]) -> None:
        for start in range(0, len(paths), _DELETED_AT_ONCE):
            some = paths[start : start + _DELETED_AT_ONCE]
            keys = [{"Key": split_path(path)[1]} for path in some]
            with self._explained(some[0]):
                request = {"Bucket": split_path(some[0])[0], "Delete": {"Objects": keys, "Quiet": True}}
                answer = self._within(some[0], lambda: self._client.delete_objects(**request))  # noqa: B023
            for error in answer.get("Errors", ()):
                name, problem = (printable(error.get(key, "?")) for key in ("Key", "Message"))
                raise BucketError(f"{bucket_of(some[0])}/{name} cannot be deleted: {problem}")

    @contextlib.contextmanager
    def _explained(self, path: str, kind: type[BucketError] = BucketError) -> Iterator[None]:
        """Converts boto3 errors to ours."""
        try:
            yield
        except self._errors.ClientError as error:
            if _code(error) in ("404", "NoSuchKey"):
                raise FileNotFoundError(f"no such file: {path}") from error
            raise kind(self._refusal(path, error)) from error
        except RldsBeamError:
            raise
        except UNREADABLE as error:
            raise kind(f"{path}: {self._url} {describe_answer(error)}") from error
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
        return f"{path}: {self._url}: {printable(error)}"

    def _failure(self, path: str, error: Exception) -> str:
        """Describes a connection or client error in one line."""
        text = " ".join(str(error).split())
        unreachable = (
            self._errors.ConnectionClosedError,
            self._errors.ConnectTimeoutError,
            self._errors.EndpointConnectionError,
            self._errors.ReadTimeoutError,
            self._errors.ProxyConnectionError,
            self._errors.SSLError,
        )
        if isinstance(error, unreachable):
            return (
                f"{bucket_of(path)}: {self._url} does not answer ({type(error).__name__}); check "
                "the network and AWS_ENDPOINT_URL"
            )
        return f"{path}: {text}: {_SIGN_IN}" if path == "s3://" else f"{path}: {self._url}: {printable(text)}"


def _limit_answers(endpoint: Any) -> None:
    """Limits the size of answers that botocore reads whole: all but the content of objects."""
    from botocore.awsrequest import AWSResponse

    send = endpoint.http_session.send

    def send_limited(request: Any) -> Any:
        has_stream, request.stream_output = request.stream_output, True
        answer = send(request)
        if has_stream and answer.status_code < 300:
            return answer
        limited = AWSResponse(answer.url, answer.status_code, answer.headers, answer.raw)
        limited._content = b"".join(limit_parts(answer.raw.stream()))
        return limited

    endpoint.http_session.send = send_limited


def _code(error: Any) -> str:
    return str(error.response["Error"].get("Code", ""))
