"""Object stores on loopback, each in its own process: moto for S3, Azurite for Azure.

moto also answers what obstore asks of Google Cloud Storage, whose XML API is like S3's, except for copies.
"""

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

import memory_store
import pytest
from checkout import ROOT
from processes import DEADLINE, start
from servers import free_port

from rlds_beam import storage

_NAMES = itertools.count()
_AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key of the only account that Azurite has; it is public."""


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
            },
            "gs": {"GOOGLE_BASE_URL": url, "GOOGLE_BEARER_TOKEN": "any"},
            "az": {
                "AZURE_STORAGE_ACCOUNT_NAME": "devstoreaccount1",
                "AZURE_STORAGE_ACCOUNT_KEY": _AZURITE_KEY,
                "AZURE_STORAGE_ENDPOINT": f"{url}/devstoreaccount1",
            },
        }[scheme]

    def new_bucket(self) -> str:
        """Creates a bucket and returns its path."""
        name = f"bucket{next(_NAMES)}"
        if self.scheme == "az":
            from azure.storage.blob import BlobServiceClient

            credentials = {"account_name": "devstoreaccount1", "account_key": _AZURITE_KEY}
            BlobServiceClient(f"{self.url}/devstoreaccount1", credentials).create_container(name)
        else:
            headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=tests/20260101/us-east-1/s3/aws4_request"}
            request = urllib.request.Request(f"{self.url}/{name}", method="PUT", headers=headers)
            urllib.request.urlopen(request, timeout=DEADLINE).close()
        return f"{self.scheme}://{name}"


@contextlib.contextmanager
def serving(scheme: str, **environment: str) -> Iterator[Server]:
    """Runs a server with no buckets; skips the test if it is not installed."""
    port = free_port()
    if scheme == "az":
        azurite = shutil.which("azurite-blob", path=f"{os.environ['PATH']}:{ROOT / 'node_modules/.bin'}")
        pytest.importorskip("azure.storage.blob")
        if azurite is None:
            pytest.skip("Azurite is not installed: npm install --no-save azurite")
        command = [azurite, f"--blobPort={port}", "--inMemoryPersistence", "--skipApiVersionCheck", "--silent"]
    else:
        if importlib.util.find_spec("moto") is None:
            pytest.skip("moto is not installed")
        command = [sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", str(port)]
    home = {**os.environ, **environment}
    with start(command, env=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
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
    """Copies a directory, or a file, to `path` and returns `path`."""
    write = memory_store.put if path.startswith("memory://") else storage.write_bytes
    if directory.is_file():
        write(path, directory.read_bytes())
        return path
    files = [file for file in directory.rglob("*") if file.is_file()]
    storage.at_once(lambda file: write(f"{path}/{file.relative_to(directory)}", file.read_bytes()), files, path)
    return path


def content(path: str) -> dict[str, bytes]:
    """Reads the files below a path."""
    names = storage.glob(f"{path}/**")

    def read(name: str) -> bytes:
        with storage.open_read(name) as file:
            return file.read()

    return dict(zip([name[len(path) + 1 :] for name in names], storage.at_once(read, names, path), strict=True))
