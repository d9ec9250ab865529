"""The site in `build/docs`, served on loopback and opened in headless Chromium."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from browser_page import DEADLINE, chromium
from checkout import ROOT

SITE = ROOT / "build" / "docs"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """Serves the site; yields its address."""
    if not (SITE / "index.html").exists():
        pytest.fail("there is no site in build/docs: run `make docs`, or `make test-docs` for both")
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium, or Google Chrome."""
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def page(browser: Any, address: str) -> Iterator[Any]:
    """A tab that may use the clipboard. Its attribute `noticed` lists what went wrong in it."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"], base_url=address)
    page = context.new_page()
    page.set_default_timeout(DEADLINE)
    page.noticed = []
    page.on("console", lambda m: m.type == "error" and page.noticed.append(f"console: {m.text} {m.location}"))
    page.on("pageerror", lambda error: page.noticed.append(f"JavaScript error: {error}"))
    page.on("requestfailed", functools.partial(_failed, page.noticed))
    page.on("response", lambda r: r.status >= 400 and page.noticed.append(f"{r.url} is missing ({r.status})"))
    page.on("request", lambda r: r.url.startswith(address) or page.noticed.append(f"{r.url} is on another site"))
    yield page
    context.close()


def _failed(noticed: list[str], request: Any) -> None:
    if request.failure != "net::ERR_ABORTED":  # the page was left before it was complete
        noticed.append(f"{request.url} does not load: {request.failure}")
