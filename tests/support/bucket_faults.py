"""An HTTP relay in front of a store: it answers some requests itself and cuts some answers short."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import urlsplit


class Answer(NamedTuple):
    """The response to a client. With `half`, the connection closes in the middle of the body."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    half: bool = False


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
            self.send_response(answer.status)
            for name, value in answer.headers:
                if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                    self.send_header(name, value)
            length = dict(answer.headers).get("Content-Length") if self.command == "HEAD" else None
            self.send_header("Content-Length", length or str(len(answer.body)))
            self.end_headers()
            if wanted is HALF:
                self.wfile.write(answer.body[: len(answer.body) // 2])
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
            elif self.command != "HEAD":
                self.wfile.write(answer.body)

        def _pass_on(self, content: bytes) -> Answer:
            connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
            connection.request(self.command, self.path, content, dict(self.headers))
            answer = connection.getresponse()
            return Answer(answer.status, answer.read(), tuple(answer.getheaders()))

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


@contextlib.contextmanager
def silent() -> Iterator[str]:
    """Yields the address (`host:port`) of a server that accepts connections but never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
