"""Unusable buckets: fast failure with exit code 2, and one line that names the bucket and says what to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bucket_faults import Answer, Request, faulty, silent
from bucket_servers import Server, azure_account, serving
from processes import RLDS_BEAM, start

from rlds_beam import storage
from rlds_beam.errors import BucketError
from rlds_beam.testing import make_episode, write_dataset

DEADLINE = 60.0
"""Seconds, on a busy machine; a quiet one takes less than ten. Google's client by itself tried for 120."""

NOWHERE = "http://127.0.0.1:1"
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>expired</Message></Error>"
ELSEWHERE = b"<Error><Code>AuthorizationHeaderMalformed</Code><Message>x</Message><Region>eu-west-3</Region></Error>"


@pytest.fixture(scope="module")
def s3() -> Iterator[Server]:
    with serving("s3") as server:
        yield server


@pytest.fixture(scope="module")
def azure() -> Iterator[Server]:
    with serving("az") as server:
        yield server


@pytest.fixture(scope="module")
def gcs() -> Iterator[Server]:
    with serving("gs") as server:
        yield server


def refused(home: Path, *arguments: str, code: int = 2, **environment: str) -> str:
    """The one-line error of a command that runs with only this environment."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "AZURE_", "GOOGLE_", "STORAGE_"))
    }
    variables = {**kept, "HOME": str(home), "AWS_REGION": "us-east-1", **environment}
    with start([*RLDS_BEAM, *arguments], env=variables) as process:
        out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, out) == (code, ""), err
    (line,) = err.splitlines()
    assert line.startswith("rlds-beam: ")
    return line.removeprefix("rlds-beam: ")


@pytest.mark.parametrize("store", ["s3", "gcs", "azure"])
def test_missing_buckets(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server: Server = request.getfixturevalue(store)
    data = str(write_dataset(tmp_path, [make_episode(5)], name="toy"))
    path = f"{server.scheme}://no-such-bucket"
    for arguments in (("check", "--rules", f"{path}/toy"), ("convert", data, f"{path}/out")):
        said = refused(tmp_path, *arguments, **server.environment)
        assert said.startswith(f"{path}: there is no such {'container' if store == 'azure' else 'bucket'}"), said


STORES: dict[str, tuple[str, Callable[[str], dict[str, str]], str]] = {
    "s3": (
        "boto3",
        lambda url: {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ENDPOINT_URL": url},
        "check the network and AWS_ENDPOINT_URL",
    ),
    "gs": ("google.cloud.storage", lambda url: {"STORAGE_EMULATOR_HOST": url}, "check the network"),
    "az": ("azure.storage.blob", azure_account, "check the network and AZURE_STORAGE_ACCOUNT"),
}
"""Scheme -> its client, the variables for an address, and the hint if nothing answers."""


@pytest.mark.parametrize("scheme", STORES)
def test_a_store_that_does_not_answer(scheme: str, tmp_path: Path) -> None:
    module, environment, hint = STORES[scheme]
    pytest.importorskip(module)
    with silent() as address:
        for url in (NOWHERE, f"http://{address}"):
            said = refused(tmp_path, "check", "--rules", f"{scheme}://bucket/toy", **environment(url))
            assert said.startswith(f"{scheme}://bucket: {url}") and " does not answer (" in said and hint in said


ANONYMOUS = "no Azure credentials were found, and the container is not public: run 'az login', or set AZURE_STORAGE_KEY"


@pytest.mark.parametrize(
    ("status", "code", "key", "said"),
    [
        (403, "AuthorizationPermissionMismatch", True, "/toy: access denied; the account needs the role Storage Blob"),
        (403, "AuthenticationFailed", True, ": Azure rejects the credentials (AuthenticationFailed): run 'az login'"),
        (404, "ResourceNotFound", False, f": {ANONYMOUS}"),
        (409, "PublicAccessNotPermitted", False, f": {ANONYMOUS}"),
    ],
)
def test_errors_of_azure(status: int, code: str, key: bool, said: str, tmp_path: Path) -> None:
    pytest.importorskip("azure.storage.blob")
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    with faulty("", lambda _: Answer(status, body, (("x-ms-error-code", code),))) as url:
        settings = azure_account(url) if key else {"AZURE_STORAGE_CONNECTION_STRING": f"BlobEndpoint={url}/public"}
        assert refused(tmp_path, "check", "--rules", "az://bucket/toy", **settings).startswith(f"az://bucket{said}")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "az:// paths need AZURE_STORAGE_ACCOUNT, the name of a storage account"),
        ({"AZURE_STORAGE_ACCOUNT": "evil.example/"}, "az:// paths need AZURE_STORAGE_ACCOUNT, the name of a storage"),
        ({"AZURE_STORAGE_CONNECTION_STRING": "AccountKey=secret"}, "AZURE_STORAGE_CONNECTION_STRING: "),
    ],
)
def test_azure_without_an_account(settings: dict[str, str], said: str, tmp_path: Path) -> None:
    pytest.importorskip("azure.storage.blob")
    line = refused(tmp_path, "check", "--rules", "az://bucket/toy", **settings)
    assert line.startswith(said) and "secret" not in line


def test_s3_without_credentials(tmp_path: Path) -> None:
    """Then requests are unsigned, as for public buckets."""
    pytest.importorskip("boto3")
    with faulty("", lambda _: Answer(403, DENIED)) as url, silent() as address:
        metadata = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{address}"}  # queried for credentials
        said = refused(tmp_path, "check", "--rules", "s3://bucket/toy", AWS_ENDPOINT_URL=url, **metadata)
    assert said == (
        "s3://bucket: no AWS credentials were found, and the bucket is not public: set AWS_PROFILE, or "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run 'aws configure'"
    )


def test_s3_with_unknown_credentials(tmp_path: Path) -> None:
    # moto's server checks credentials after two requests: one waits for the server, one creates the bucket.
    with serving("s3", INITIAL_NO_AUTH_ACTION_COUNT="2") as server:
        path = server.new_bucket()
        secrets = {"AWS_ACCESS_KEY_ID": "unknown", "AWS_SECRET_ACCESS_KEY": "unknown"}
        said = refused(tmp_path, "check", "--rules", f"{path}/toy", AWS_ENDPOINT_URL=server.url, **secrets)
    assert said.startswith(f"{path}: the store rejects the AWS credentials (InvalidAccessKeyId): set AWS_PROFILE")


def test_a_profile_and_an_endpoint_of_the_configuration_file(s3: Server, tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text(
        f"[profile robots]\nregion = us-east-1\nendpoint_url = {s3.url}\n"
        "aws_access_key_id = tests\naws_secret_access_key = tests\n"
    )
    path = s3.new_bucket()
    said = refused(tmp_path, "check", "--rules", f"{path}/toy", AWS_PROFILE="robots")
    assert said == f"{path}/toy: no such file or directory"
    assert "(nobody) could not be found" in refused(tmp_path, "check", "--rules", f"{path}/toy", AWS_PROFILE="nobody")


def test_gcs_without_credentials(tmp_path: Path) -> None:
    """The metadata server of Google Compute Engine is queried for only a few seconds."""
    pytest.importorskip("google.cloud.storage")
    anonymous = b'{"error": {"code": 401, "message": "Anonymous caller does not have storage.objects.list access"}}'
    json = (("Content-Type", "application/json"),)
    with faulty("", lambda _: Answer(401, anonymous, json)) as url, silent() as address:
        google = {"API_ENDPOINT_OVERRIDE": url, "GCE_METADATA_HOST": address}
        said = refused(tmp_path, "check", "--rules", "gs://bucket/toy", **google)
        assert said == (
            "gs://bucket: no Google credentials were found, and the bucket is not public: run 'gcloud auth "
            "application-default login', or set GOOGLE_APPLICATION_CREDENTIALS"
        )
    said = refused(tmp_path, "check", "--rules", "gs://bucket/toy", GOOGLE_APPLICATION_CREDENTIALS="nothing.json")
    assert said == "GOOGLE_APPLICATION_CREDENTIALS: File nothing.json was not found."


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (403, DENIED, "s3://bucket/toy: access denied; the credentials need s3:ListBucket and s3:GetObject on"),
        (400, EXPIRED, "s3://bucket: the store rejects the AWS credentials (ExpiredToken)"),
        (400, ELSEWHERE, "s3://bucket: the bucket is in another region: set AWS_REGION=eu-west-3"),
    ],
)
def test_errors_of_s3(status: int, body: bytes, said: str, tmp_path: Path) -> None:
    pytest.importorskip("boto3")
    secrets = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    with faulty("", lambda _: Answer(status, body)) as url:
        assert refused(tmp_path, "check", "--rules", "s3://bucket/toy", AWS_ENDPOINT_URL=url, **secrets).startswith(
            said
        )


def test_a_read_only_bucket(tmp_path: Path, s3: Server) -> None:
    """The error comes while the job runs, in a worker, and is also one line."""
    data = str(write_dataset(tmp_path, [make_episode(5, seed=i) for i in range(4)], name="toy", shards=2))
    path = s3.new_bucket()
    with faulty(s3.url, lambda request: Answer(403, DENIED) if request.method == "PUT" else None) as url:
        for more in ((), ("--workers=2",)):
            said = refused(
                tmp_path,
                "convert",
                data,
                f"{path}/out",
                "-q",
                *more,
                code=1,
                **{**s3.environment, "AWS_ENDPOINT_URL": url},
            )
            assert said.startswith(f"{path}/out/") and "access denied" in said


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_retries_end(scheme: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that always answers 503: retries end, and the error names the code."""
    server: Server = request.getfixturevalue({"s3": "s3", "gs": "gcs", "az": "azure"}[scheme])
    path, seen = server.new_bucket(), []

    def overloaded(one: Request) -> Answer | None:
        if f"{path[5:]}/a" not in one.path and "o/a" not in one.path:
            return None
        seen.append(one)
        return Answer(503, b"{}")

    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with faulty(server.url, overloaded) as url:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value.replace(server.url, url))
        monkeypatch.setattr("time.sleep", sleep)
        monkeypatch.setattr("time.monotonic", lambda: now[0])
        with pytest.raises(BucketError, match=f"^{path}/a: .*503"):
            storage.read_text(f"{path}/a")
    assert 4 <= len(seen) <= 20


def test_flags_of_beam_for_s3(tmp_path: Path) -> None:
    said = refused(tmp_path, "check", "--rules", "s3://bucket/toy", "--", "--s3_endpoint_url=http://127.0.0.1:1")
    assert said.startswith("--s3_endpoint_url has no effect: s3:// paths use boto3's settings. Set AWS_PROFILE")


def test_a_path_without_a_bucket(tmp_path: Path) -> None:
    for path in ("s3://", "gs:///toy"):
        assert refused(tmp_path, "check", "--rules", path) == f"{path}: expected {path[:2]}://BUCKET/PATH"
