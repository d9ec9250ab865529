"""A Hugging Face Space that shows a dataset: the pages of `rlds-beam browse`, and its report at /report.

    DATASET=hf://datasets/USER/NAME python app.py

Unlike `rlds-beam browse`, it serves everybody: every visitor is let in, at the address of the Space and in the frame of
its page on the Hub. It is read-only, and shows one dataset.
"""

from __future__ import annotations

import html
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import uvicorn

from rlds_beam.pipelines.browse import BrowseConfig
from rlds_beam.viewing.browser.app import create_app
from rlds_beam.viewing.browser.security import BrowserConnection
from rlds_beam.viewing.browser.server import open_datasets

FRAMES = b"https://huggingface.co"
TOKEN = "public"
REPLACED = {b"host", b"cookie"}


class Report:
    """The report of a dataset, which a process writes while the pages are served already.

    Args:
      dataset: the path of the dataset.
    """

    def __init__(self, dataset: str):
        self._path = Path(tempfile.mkdtemp()) / "report.html"
        self._command = [sys.executable, "-m", "rlds_beam", "report", dataset, f"--output={self._path}", "--quiet"]
        self._failed = ""
        threading.Thread(target=self._write, daemon=True).start()

    def _write(self) -> None:
        done = subprocess.run(self._command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if not self._path.exists():
            self._failed = done.stderr.strip() or f"rlds-beam report ended with {done.returncode}"

    def answer(self) -> tuple[int, bytes]:
        """The status and the page: the report, or why there is none."""
        if self._failed:
            return 500, f"<!doctype html><title>report</title><pre>{html.escape(self._failed)}</pre>".encode()
        if not self._path.exists():  # it is renamed when it is complete
            return (
                202,
                b'<!doctype html><meta http-equiv="refresh" content="5"><title>report</title>Writing the report.',
            )
        return 200, self._path.read_bytes()


class Public:
    """ASGI middleware: sends the report, lets every visitor into `app`, and lets the Hub show the pages in a frame."""

    def __init__(self, app: Any, report: Report, port: int):
        self._app, self._report = app, report
        self._headers = [(b"host", b"localhost"), (b"cookie", f"rlds_beam_{port}={TOKEN}".encode())]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/report" and scope["method"] in ("GET", "HEAD"):
            status, page = self._report.answer()
            length = str(len(page)).encode()
            headers = [(b"content-type", b"text/html; charset=utf-8"), (b"content-length", length)]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else page})
            return

        async def framed(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [pair for pair in message["headers"] if pair[0] != b"x-frame-options"]
                allowed = b"frame-ancestors 'self' " + FRAMES
                headers = [(name, value.replace(b"frame-ancestors 'none'", allowed)) for name, value in headers]
                message = {**message, "headers": headers}
            await send(message)

        others = [pair for pair in scope["headers"] if pair[0] not in REPLACED]
        await self._app({**scope, "headers": [*others, *self._headers]}, receive, framed)


def main() -> None:
    dataset, port = os.environ["DATASET"], int(os.environ.get("PORT", "7860"))
    report = Report(dataset)
    app = create_app(open_datasets(BrowseConfig.create([dataset])), TOKEN, port)
    print(f"showing {dataset} on port {port}", flush=True)
    uvicorn.run(
        Public(app, report, port),
        host="0.0.0.0",
        port=port,
        http=BrowserConnection,
        ws="none",
        lifespan="off",
        log_level="warning",
        server_header=False,
    )


if __name__ == "__main__":
    main()
