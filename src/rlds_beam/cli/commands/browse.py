"""`rlds-beam browse`: a page of episodes, images, and curves, on this machine only."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from rlds_beam import worker_status
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.connectors.options import ConnectorOptions
from rlds_beam.formats.options import InputOptions, OutputOptions
from rlds_beam.options import option

if TYPE_CHECKING:
    from rlds_beam.viewing.browser.server import BrowserServer

__all__ = ["BrowseConfig", "browse"]

_LOOK_SECONDS = 0.3

USAGE = "INPUT..."
EXAMPLES = """
    rlds-beam browse data/point_mass/1.0.0
    rlds-beam browse data/point_mass/1.0.0 data/cleaned
    rlds-beam browse data/point_mass/1.0.0 --items=sequences --sequence_length=16
"""

REDIRECT = """<!doctype html>
<meta name="referrer" content="no-referrer"><meta http-equiv="refresh" content="0; url={url}">
<a href="{url}">rlds-beam browse</a>
"""
"""The page that takes a web browser to the address with the token."""


@dataclasses.dataclass(frozen=True)
class BrowseConfig(OutputOptions, ConnectorOptions, CheckOptions, InputOptions):
    """Look at the episodes of datasets in a web browser on this machine; changes nothing."""

    input: tuple[str, ...] = option(  # type: ignore[assignment]
        dataclasses.MISSING,
        "datasets, and what convert wrote from them, to compare",
        positional=True,
        several=True,
    )
    _: dataclasses.KW_ONLY
    signals: str | None = option(
        None, "signals.parquet of rlds-beam check; it makes the list sortable at once", metavar="FILE"
    )
    no_scan: bool = option(False, "do not read all episodes in the background; the list can then not be sorted")
    port: int = option(0, "port on 127.0.0.1 (0: a free one)", least=0)
    no_open: bool = option(False, "print the address, but do not open it")


def browse(config: BrowseConfig) -> BrowserServer:
    """Creates the server; enter its context to start it.

    Raises:
      UsageError: a dataset cannot be opened, or the port is taken.
      MissingExtraError: the extra `view` is not installed.
    """
    from rlds_beam.viewing.browser.server import BrowserServer, check_installed, open_datasets

    check_installed()
    return BrowserServer(open_datasets(config), config.port)


def main(config: BrowseConfig) -> int:
    """Runs the command: serves until a signal ends it, and returns the exit code."""
    from rlds_beam.platforms import keep_freed_memory

    keep_freed_memory(1 << 20, 1 << 20)  # a table of a million episodes has columns of megabytes
    before = worker_status.interrupts()
    with browse(config) as server, contextlib.suppress(KeyboardInterrupt):
        for dataset in server.datasets:
            print(f"dataset   {dataset.source.describe()}")
        print(f"browse    {server.url}")
        print("          for this machine only; Ctrl-C ends it", flush=True)
        if not config.no_open and _has_display():
            _open_page(server, before)
        while worker_status.interrupts() == before:  # a finalizer may have dropped the exception
            time.sleep(_LOOK_SECONDS)
    return 0


def _open_page(server: BrowserServer, interrupts_before: int) -> None:
    """Opens the page in the user's web browser, and waits until it is there.

    Every user of a machine can read the arguments of a process, so the web browser is given a file that only this user
    can read. It is in the home directory, because a web browser in a sandbox reads neither /tmp nor hidden directories.
    """
    import pathlib
    import secrets
    import tempfile
    import webbrowser

    home = pathlib.Path.home()
    at = home if os.access(home, os.W_OK) else pathlib.Path(tempfile.gettempdir())
    page = at / f"rlds-beam-browse-{secrets.token_hex(8)}.html"
    try:  # the name is known before the file exists, so a signal at any moment leaves no file
        with open(page, "x", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(REDIRECT.format(url=server.url))
        # Some web browsers return only when they are closed; a signal must end us before.
        threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
        while not server.opened.wait(_LOOK_SECONDS) and worker_status.interrupts() == interrupts_before:
            pass
    finally:
        page.unlink(missing_ok=True)


def _has_display() -> bool:
    """Whether a person sees the terminal, and this machine can show a page."""
    graphical = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return sys.stdout.isatty() and graphical
