"""Object stores on loopback, each in its own process: moto for S3, gcp-storage-emulator for GCS, Azurite for Azure."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import ROOT
from processes import DEADLINE, start
from servers import free_port

from rlds_beam import storage

_NAMES = itertools.count()
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key of the only account that Azurite has; it is public."""


def azure_account(url: str) -> dict[str, str]:
    """The variables for Azurite's account at an address."""
    account = f"AccountName=devstoreaccount1;AccountKey={AZURITE_KEY};BlobEndpoint={url}/devstoreaccount1"
    return {"AZURE_STORAGE_CONNECTION_STRING": f"DefaultEndpointsProtocol=http;{account}"}


class Server:
    """A store.

    Attributes:
      scheme: `s3`, `gs`, or `az`.
      url: the address.
      environment: the variables that a process needs to use it.
    """

    def __init__(self, scheme: str, url: str):
        self.scheme, self.url = scheme, url
        self.environment = {
            "s3": {
                "AWS_ENDPOINT_URL": url,
                "AWS_ACCESS_KEY_ID": "tests",
                "AWS_SECRET_ACCESS_KEY": "tests",
                "AWS_REGION": "us-east-1",
                "AWS_EC2_METADATA_DISABLED": "true",
            },
            "gs": {"STORAGE_EMULATOR_HOST": url},
            "az": azure_account(url),
        }[scheme]

    def new_bucket(self) -> str:
        """Creates a bucket and returns its path."""
        name = f"bucket-{next(_NAMES)}"
        if self.scheme == "az":
            from azure.storage.blob import BlobServiceClient

            BlobServiceClient.from_connection_string(*self.environment.values()).create_container(name)
            return f"az://{name}"
        if self.scheme == "s3":
            request = urllib.request.Request(f"{self.url}/{name}", method="PUT", headers=_signed())
        else:
            body = f'{{"name": "{name}"}}'.encode()
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{self.url}/storage/v1/b?project=p", body, headers, method="POST")
        urllib.request.urlopen(request, timeout=DEADLINE).close()
        return f"{self.scheme}://{name}"


def _signed() -> dict[str, str]:
    """The header that tells moto's server which service a request is for."""
    return {"Authorization": "AWS4-HMAC-SHA256 Credential=tests/20260101/us-east-1/s3/aws4_request"}


@contextlib.contextmanager
def serving(scheme: str, **environment: str) -> Iterator[Server]:
    """Runs a server with no buckets; skips the test if the package is not installed."""
    module = {"s3": "moto.server", "gs": "gcp_storage_emulator", "az": "azure"}[scheme]
    client = {"s3": "boto3", "gs": "google.cloud.storage", "az": "azure.storage.blob"}[scheme]
    for name in (module.partition(".")[0], client.partition(".")[0], client):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    azurite = shutil.which("azurite-blob", path=f"{os.environ['PATH']}:{ROOT / 'node_modules/.bin'}")
    if scheme == "az" and azurite is None:
        pytest.skip("Azurite is not installed: npm install --no-save azurite")
    port = free_port()
    arguments = {
        "s3": [sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", str(port)],
        "gs": [
            sys.executable,
            "-m",
            "gcp_storage_emulator",
            "start",
            "--host=127.0.0.1",
            f"--port={port}",
            "--in-memory",
        ],
        "az": [
            str(azurite),
            f"--blobPort={port}",
            "--inMemoryPersistence",
            "--skipApiVersionCheck",
            "--disableTelemetry",
            "--silent",
        ],
    }
    with start(
        arguments[scheme], env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        wait_for_server(f"http://127.0.0.1:{port}", process)
        yield Server(scheme, f"http://127.0.0.1:{port}")


def wait_for_server(url: str, process: subprocess.Popen[str]) -> None:
    """Waits until a store answers; fails if its process ends."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            with contextlib.suppress(urllib.error.HTTPError):  # Azurite has nothing there
                urllib.request.urlopen(url, timeout=5).close()
            return
        time.sleep(0.05)
    raise AssertionError(f"{url} does not answer; exit code of the server: {process.poll()}")


def upload(directory: Path, path: str) -> str:
    """Copies a directory to `path` and returns `path`."""
    files = [file for file in directory.rglob("*") if file.is_file()]
    storage.at_once(
        lambda file: storage.write_bytes(f"{path}/{file.relative_to(directory)}", file.read_bytes()), files, path
    )
    return path


def content(path: str) -> dict[str, bytes]:
    """Reads the files below a path."""
    names = storage.glob(f"{path}/**")

    def read(name: str) -> bytes:
        with storage.open_read(name) as file:
            return file.read()

    return dict(zip([name[len(path) + 1 :] for name in names], storage.at_once(read, names, path), strict=True))
