"""The server of `rlds-beam browse`: a read-only page on the loopback interface. This is its API.

Everything is GET (or HEAD; others are 405) and needs the token: `/?token=…` sets a cookie (HttpOnly, SameSite=Strict),
which all other requests then carry. The page removes the token from its address with `history.replaceState`. Answers
are JSON, except for images and videos. Numbers that JSON lacks (NaN, infinity) are null. An error is
`{"error": "what is wrong"}` with status 400 (wrong parameters), 403 (no token, or another host), 404 (no such episode,
step, or image), or 405. Texts come from datasets and may contain anything; the page never interprets them as HTML.

    /, /static/NAME   the page, its modules, and the vendored ones; the Content-Security-Policy allows no inline script
    /api/datasets     the datasets, in the order of the command line; polled every second while a job measures one
    /api/episodes     rows of the list, sorted and filtered; `filter` has conditions as of `--reject`: commas mean "or",
                      several parameters mean "and"
    /api/summary      rules, signals, distributions, and texts of the whole dataset, as in a report
    /api/episode      curves, texts, marks, and cameras (`episode_view.make_view`)
    /api/step         the values of one step, as stored
    /api/made         what the learner sees of an episode: items, frames, or rows
    /api/counterpart  the same episode in the dataset that was converted to or from this one
    /api/videos       the videos of an episode; step t is at `from + t / fps` seconds
    /image            an image as stored, or with `height` a JPEG of at most this height; with `v` (the episode's
                      `version`) browsers keep it
    /video            the MP4 file
"""

from __future__ import annotations

import dataclasses
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from rlds_beam import storage
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.errors import RldsBeamError, UsageError, needs
from rlds_beam.formats.inputs import open_input
from rlds_beam.text import shorten
from rlds_beam.viewing.browser.dataset import BrowsedDataset, compare
from rlds_beam.viewing.browser.table import TableFile, signals_beside

HOST = "127.0.0.1"
_START_SECONDS = 30


class BrowserServer:
    """Serves datasets to the user's browser; enter the context to start, leave it to stop.

    Args:
      datasets: the datasets to show.
      port: the port on 127.0.0.1; 0 for a free one.

    Attributes:
      token: the secret in the address.
      opened: set when a browser has opened the address.

    Raises:
      UsageError: the port is taken.
      MissingExtraError: the extra `view` is not installed.
    """

    def __init__(self, datasets: Sequence[BrowsedDataset], port: int = 0):
        check_installed()
        import uvicorn

        from rlds_beam.viewing.browser.app import create_app

        self._socket = _listening(port)
        self.port: int = self._socket.getsockname()[1]
        self.token, self.datasets, self.opened = secrets.token_urlsafe(24), tuple(datasets), threading.Event()
        config = uvicorn.Config(
            create_app(datasets, self.token, self.port, self.opened.set),
            log_level="error",
            access_log=False,
            lifespan="off",
            http="h11",
            ws="none",
            loop="asyncio",
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)

    @property
    def url(self) -> str:
        """The address of the page, with the token."""
        return f"http://{HOST}:{self.port}/?token={self.token}"

    def __enter__(self) -> BrowserServer:
        self._thread.start()
        deadline = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise RldsBeamError(f"the server on {HOST}:{self.port} did not start")
            time.sleep(0.01)
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.should_exit = True
        self._thread.join(_START_SECONDS)
        self._socket.close()
        for dataset in self.datasets:
            dataset.table.stop()


def check_installed() -> None:
    """Raises MissingExtraError if the extra `view` is not installed."""
    with needs("view", "rlds-beam browse needs Starlette and uvicorn"):
        import starlette
        import uvicorn  # noqa: F401

        del starlette


def _listening(port: int) -> socket.socket:
    """A socket bound to a port of the loopback interface."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # without Nagle's delay in asyncio
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((HOST, port))
    except (OSError, OverflowError) as error:
        bound.close()
        raise UsageError(f"--port={port}: {shorten(error)}; choose another port, or 0 for a free one") from error
    return bound


def open_datasets(config: Any) -> list[BrowsedDataset]:
    """Opens the datasets of a `BrowseConfig`, and their tables. Raises UsageError if one of them cannot be opened."""
    check = dataclasses.replace(CheckOptions.from_options(config), fail=())
    opened: list[BrowsedDataset] = []
    measured = None if config.signals is None else TableFile.open(config.signals).dataset()
    for number, path in enumerate(config.input):
        own = dataclasses.replace(config, input=(path,))
        source = open_input(own)
        opened.append(BrowsedDataset(str(number), path, own.source_format, source, check, config))
    compare(opened)
    for dataset in opened:
        file = signals_beside(dataset.path)
        if config.signals is not None and (len(opened) == 1 or dataset.source.dataset == measured):
            file, measured = config.signals, None  # an output in the same format has the name and keys of its input
        if file is not None:
            dataset.table.open(file)
    for dataset in opened:
        if dataset.table.rows is None and not config.no_scan and storage.scheme(dataset.path) is None:
            dataset.table.start()
    return opened
