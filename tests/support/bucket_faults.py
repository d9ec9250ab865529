"""An HTTP relay in front of a store: it answers some requests itself and cuts some answers short."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import urlsplit


class Answer(NamedTuple):
    """The response to a client.

    Attributes:
      status: the status.
      body: the body, or its parts, which may never end.
      headers: the headers.
      half: whether the connection closes in the middle of the body.
      length: what the header says of the body's length; None for the truth.
    """

    status: int
    body: bytes | Iterable[bytes] = b""
    headers: tuple[tuple[str, str], ...] = ()
    half: bool = False
    length: int | None = None


def send(handler: BaseHTTPRequestHandler, answer: Answer, *, cut: bool = False) -> Iterator[int]:
    """Sends an answer; yields the size of each part of the body that was sent."""
    whole = answer.body if isinstance(answer.body, bytes) else None
    length = answer.length if whole is None or answer.length is not None else len(whole)
    handler.send_response(answer.status)
    for name, value in answer.headers:
        handler.send_header(name, value)
    if length is not None:
        handler.send_header("Content-Length", str(length))
    handler.close_connection = cut or (handler.command != "HEAD" and (whole is None or length != len(whole)))
    if handler.close_connection:
        handler.send_header("Connection", "close")
    handler.end_headers()
    if handler.command != "HEAD":
        parts = answer.body if whole is None else [whole[: len(whole) // 2] if cut else whole]
        for part in parts:
            handler.wfile.write(part)  # type: ignore[arg-type]
            handler.wfile.flush()
            yield len(part)  # type: ignore[arg-type]
    if handler.close_connection:
        handler.connection.shutdown(socket.SHUT_RDWR)


class Request(NamedTuple):
    """A request: its number (from 1), method, and path with the query."""

    number: int
    method: str
    path: str


HALF = Answer(0, half=True)
"""The store's answer, cut short."""

Fault = Callable[[Request], "Answer | None"]
"""Maps a request to the answer to send instead of the store's; None passes the request on."""


@contextlib.contextmanager
def faulty(url: str, fault: Fault) -> Iterator[str]:
    """Yields the address of a relay in front of `url` (empty if `fault` answers every request)."""
    lock, count = threading.Lock(), 0

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            nonlocal count
            with lock:
                count += 1
                number = count
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            wanted = fault(Request(number, self.command, self.path))
            answer = self._pass_on(content) if wanted is None or wanted is HALF else wanted
            with contextlib.suppress(ConnectionError):  # the client had enough
                for _ in send(self, answer, cut=wanted is HALF):
                    pass

        def _pass_on(self, content: bytes) -> Answer:
            connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
            connection.request(self.command, self.path, content, dict(self.headers))
            answer = connection.getresponse()
            own = ("content-length", "transfer-encoding", "connection", "date", "server")
            headers = tuple((name, value) for name, value in answer.getheaders() if name.lower() not in own)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else None
            return Answer(answer.status, answer.read(), headers, length=None if length is None else int(length))

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_any  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
