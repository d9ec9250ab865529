"""A running server of `rlds-beam browse`, and a client with its cookie."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rlds_beam.cli.commands.browse import BrowseConfig, browse
from rlds_beam.viewing.browser.server import BrowserServer

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")
httpx = pytest.importorskip("httpx")

_SECONDS = 60.0


class Browser:
    """Sends requests to a server.

    Attributes:
      server: the server.
      client: has the cookie.
    """

    def __init__(self, server: BrowserServer, client: Any):
        self.server, self.client = server, client

    def get(self, path: str, headers: dict[str, str] | None = None, **query: Any) -> Any:
        """The response of a GET request; `dataset` is 0 by default."""
        return self.client.get(path, params={"dataset": "0", **query}, headers=headers)

    def json(self, path: str, **query: Any) -> Any:
        """The JSON of a GET request that succeeds."""
        response = self.get(path, **query)
        assert response.status_code == 200, response.text
        return response.json()

    def list_keys(self, **query: Any) -> list[str]:
        """The keys of the list's rows."""
        return [row["key"] for row in self.json("/api/episodes", **query)["rows"]]

    def scanned(self) -> list[dict[str, Any]]:
        """`/api/datasets`, when no scan is running any more."""
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            datasets: list[dict[str, Any]] = self.json("/api/datasets")
            if all(one["scan"]["state"] != "running" for one in datasets):
                return datasets
            time.sleep(0.02)
        raise AssertionError("the scan has not ended")


@contextlib.contextmanager
def browsing(*paths: object, **options: Any) -> Iterator[Browser]:
    """Serves datasets; does not scan them unless `no_scan=False`."""
    config = BrowseConfig.create([str(path) for path in paths], **{"no_scan": True, **options})
    with browse(config) as server, httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=_SECONDS) as client:
        client.get("/", params={"token": server.token})
        yield Browser(server, client)
