"""`s3://` through boto3, with its credentials, profiles, and endpoints (`AWS_PROFILE`, `AWS_ENDPOINT_URL_S3`, ...)."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator, Sequence
from typing import IO, Any

from rlds_beam.buckets import base
from rlds_beam.buckets.base import WrongAnswer, bucket_name, check_extent, check_length, limit_parts
from rlds_beam.buckets.objects import ObjectStore, Page
from rlds_beam.buckets.ranges import SIGNED_SECONDS, Address
from rlds_beam.errors import BucketAccessError, BucketError
from rlds_beam.text import printable

_ATTEMPTS = 8
"""Attempts per request, over about 40 s; responses that break off are retried as often."""

_COPIED_WHOLE = 4 << 30
"""Maximum bytes to copy in one request. S3 allows up to 5 GiB; larger objects are copied in parts."""

_REJECTED = ("ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch", "TokenRefreshRequired")
_DENIED = ("403", "AccessDenied", "AllAccessDisabled", "AccountProblem")
_ELSEWHERE = ("301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect")
_SIGN_IN = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run 'aws configure'"


class S3(ObjectStore):
    """A client with the credentials found by boto3; without any, requests are unsigned (public buckets)."""

    scheme = "s3"
    deleted_at_once = 1000
    packages = ("boto3.", "botocore.", "s3transfer.", "urllib3.")

    def __init__(self) -> None:
        import boto3
        import botocore.exceptions
        from boto3.s3.transfer import TransferConfig
        from botocore import UNSIGNED
        from botocore.config import Config

        self._errors: Any = botocore.exceptions
        self.own_errors = self._errors.ClientError
        self.url = "AWS"
        with self.explain_errors("s3://", BucketAccessError):
            session = boto3.session.Session()
            self._anonymous = session.get_credentials() is None
            config = Config(
                connect_timeout=5, read_timeout=60, max_pool_connections=base.KEPT_CONNECTIONS, tcp_keepalive=True
            )
            if "AWS_MAX_ATTEMPTS" not in os.environ:
                config = config.merge(Config(retries={"total_max_attempts": _ATTEMPTS, "mode": "standard"}))
            if self._anonymous:
                config = config.merge(Config(signature_version=UNSIGNED))
            once = {"total_max_attempts": 2, "mode": "standard"}
            brief = config.merge(Config(connect_timeout=2, read_timeout=3.5, retries=once))
            # Some versions of botocore sign addresses in an older way, which newer buckets refuse.
            signing = config if self._anonymous else config.merge(Config(signature_version="s3v4"))
            self._client, self._brief, self._signer = (
                session.client("s3", config=settings) for settings in (config, brief, signing)
            )
        self.url = self._client.meta.endpoint_url
        for client in (self._client, self._brief):
            _limit_answers(client._endpoint)
        self._copying = TransferConfig(multipart_threshold=_COPIED_WHOLE, multipart_chunksize=_COPIED_WHOLE // 8)

    def open(self, bucket: str, name: str, window: int) -> tuple[int, str, bytes]:
        try:
            return self._get(bucket, name, 0, window)
        except self._errors.ClientError as error:
            if _code(error) == "InvalidRange":  # the object is empty
                return 0, "", b""
            raise

    def sign(self, bucket: str, name: str, version: str) -> Address:
        url = self._signer.generate_presigned_url(
            "get_object", Params={"Bucket": bucket, "Key": name}, ExpiresIn=SIGNED_SECONDS
        )
        return Address(url, {"If-Match": version})

    def get(self, bucket: str, name: str, version: str, start: int, stop: int) -> bytes:
        return self._get(bucket, name, start, stop, IfMatch=version)[2]

    def _get(self, bucket: str, name: str, start: int, stop: int, **more: str) -> tuple[int, str, bytes]:
        """Reads a part of an object; returns the object's size and entity tag, and the bytes."""
        request = {"Bucket": bucket, "Key": name, "Range": f"bytes={start}-{stop - 1}", **more}
        answer, content = self._get_whole(request, stop - start)
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

    def put(self, bucket: str, name: str, file: IO[bytes], size: int) -> None:
        self._client.upload_fileobj(file, bucket, name)

    def head(self, bucket: str, name: str) -> tuple[Any, str]:
        answer = self._client.head_object(Bucket=bucket, Key=name)
        return answer.get("ContentLength"), answer.get("ETag", "")

    def pages(self, bucket: str, prefix: str, *, below: bool, brief: bool = False) -> Iterator[Page]:
        request: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix, **({} if below else {"Delimiter": "/"})}
        client, request = (self._brief, {**request, "MaxKeys": 1}) if brief else (self._client, request)
        for page in client.get_paginator("list_objects_v2").paginate(**request):
            yield Page(
                [(entry["Key"], entry.get("Size"), entry.get("ETag", "")) for entry in page.get("Contents", ())],
                [entry["Prefix"] for entry in page.get("CommonPrefixes", ())],
                page.get("NextContinuationToken"),
            )

    def copy(self, bucket: str, name: str, to_bucket: str, to_name: str) -> None:
        self._client.copy({"Bucket": bucket, "Key": name}, to_bucket, to_name, Config=self._copying)

    def remove(self, bucket: str, names: Sequence[str]) -> None:
        objects = {"Objects": [{"Key": name} for name in names], "Quiet": True}
        for error in self._client.delete_objects(Bucket=bucket, Delete=objects).get("Errors", ()):
            name, problem = (printable(error.get(key, "?")) for key in ("Key", "Message"))
            raise BucketError(f"s3://{bucket}/{name} cannot be deleted: {problem}")

    def is_missing(self, error: Exception) -> bool:
        return _code(error) in ("404", "NoSuchKey")

    def status(self, error: Exception) -> int:
        return int(_response(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))

    def describe(self, path: str, error: Exception) -> str:
        code = _code(error)
        names = "ConnectionClosed", "ConnectTimeout", "EndpointConnection", "ReadTimeout", "ProxyConnection", "SSL"
        unreachable = tuple(getattr(self._errors, f"{name}Error") for name in names)
        if isinstance(error, unreachable):
            return self.does_not_answer(path, error, " and AWS_ENDPOINT_URL")
        if path == "s3://":
            return f"{path}: {' '.join(str(error).split())}: {_SIGN_IN}"
        bucket = bucket_name(path)
        if code == "NoSuchBucket":
            return f"{bucket}: there is no such bucket at {self.url}; check its name"
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
            response = _response(error)
            headers = response["ResponseMetadata"].get("HTTPHeaders", {})
            region = response["Error"].get("Region") or headers.get("x-amz-bucket-region", "the bucket's region")
            return f"{bucket}: the bucket is in another region: set AWS_REGION={region}"
        return f"{path}: {self.url}: {printable(' '.join(str(error).split()))}"


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


def _response(error: Exception) -> dict[str, Any]:
    """An error response, as botocore parsed it; empty for other errors."""
    return getattr(error, "response", None) or {}


def _code(error: Exception) -> str:
    return str(_response(error).get("Error", {}).get("Code", ""))
