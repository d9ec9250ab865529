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
    """The response to a client; `length` is what the header says of the body's length, if not the truth (HEAD)."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    length: str | None = None


class Request(NamedTuple):
    """A request: its number (from 1), method, and path with the query."""

    number: int
    method: str
    path: str


HALF = Answer(0)
"""The store's answer, cut short."""

Fault = Callable[[Request], "Answer | None"]
"""Maps a request to the answer to send instead of the store's; None passes the request on."""


class Handler(BaseHTTPRequestHandler):
    """Answers requests as `answer` says."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    fault: Fault
    lock: threading.Lock
    count = 0

    def answer(self, body: bytes) -> Answer:
        """The store's answer."""
        raise NotImplementedError

    def handle_any(self) -> None:
        with self.lock:
            kind = type(self)
            kind.count = number = kind.count + 1
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        wanted = self.fault(Request(number, self.command, self.path))
        cut = wanted is HALF
        answer = self.answer(body) if wanted is None or cut else wanted
        with contextlib.suppress(ConnectionError):  # the client had enough
            self.send_response(answer.status)
            for name, value in answer.headers:
                self.send_header(name, value)
            self.send_header("Content-Length", answer.length or str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body[: len(answer.body) // 2] if cut else answer.body)
            if cut:
                self.wfile.flush()
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_any  # noqa: N815

    def log_message(self, *_: object) -> None: ...


@contextlib.contextmanager
def serve(handler: type[Handler]) -> Iterator[int]:
    """The port of a server on loopback."""
    handler.lock = threading.Lock()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def faulty(url: str, fault: Fault) -> Iterator[str]:
    """Yields the address of a relay in front of `url`."""

    class Relay(Handler):
        def answer(self, body: bytes) -> Answer:
            connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            own = ("content-length", "transfer-encoding", "connection", "date", "server")
            headers = tuple((name, value) for name, value in answer.getheaders() if name.lower() not in own)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else None
            return Answer(answer.status, answer.read(), headers, length)

    Relay.fault = staticmethod(fault)
    with serve(Relay) as port:
        yield f"http://127.0.0.1:{port}"
