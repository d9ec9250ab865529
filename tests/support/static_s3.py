"""A small S3 server for reading: `python static_s3.py PORT FOLDER [--delay=MS] [--gigabits=N]`.

Serves the files below FOLDER as objects; its first level are the buckets. It knows GET with a range, HEAD, and
ListObjectsV2, checks `If-Match`, and ignores signatures. Bytes go from the page cache to the socket (`sendfile`), so
that the server takes less time than most clients.

Each answer begins `--delay` after its request, as does the first answer of a connection once more; all answers share
`--gigabits`. `GET /_counts` gives the number of requests and the bytes sent so far, as JSON.
"""

from __future__ import annotations

import argparse
import collections
import heapq
import json
import os
import re
import selectors
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_AT_ONCE = 64 << 10
"""Bytes that a connection sends before others have their turn."""

_BURST = 256 << 10
"""Bytes that may be sent at once although the link is slower."""


class _Connection:
    """A client, its unread bytes, and the answers it waits for: (due, header and body, file, start, stop)."""

    def __init__(self, client: socket.socket, ready: float):
        self.client, self.ready, self.received = client, ready, b""
        self.answers: collections.deque[list[Any]] = collections.deque()
        self.writing = False


class Server:
    """See the module."""

    def __init__(self, port: int, folder: Path, delay: float, rate: float):
        self._folder, self._delay, self._rate = folder.resolve(), delay, rate
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", port), backlog=1024)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._timers: list[tuple[float, int, _Connection]] = []
        self._files: dict[str, tuple[int, int, str]] = {}
        self._budget, self._filled, self._timer = float(_BURST), time.monotonic(), 0
        self.requests = self.sent = 0

    def serve(self) -> None:
        while True:
            wait = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
            for key, events in self._selector.select(wait):
                if key.data is None:
                    self._accept()
                elif events & selectors.EVENT_READ:
                    self._read(key.data)
                elif events & selectors.EVENT_WRITE:
                    self._write(key.data)
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                self._write(heapq.heappop(self._timers)[2])

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(client, time.monotonic() + self._delay)
        self._selector.register(client, selectors.EVENT_READ, connection)

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.client.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(connection)
            return
        connection.received += data
        while (end := connection.received.find(b"\r\n\r\n")) >= 0:
            head, rest = connection.received[:end], connection.received[end + 4 :]
            body = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
            size = int(body[1]) if body else 0
            if len(rest) < size:
                break
            connection.received = rest[size:]
            due = max(connection.ready, time.monotonic()) + self._delay
            answer, file, start, stop = self._answer(head.decode("latin-1"))
            if head.startswith(b"HEAD"):
                answer, stop = answer[: answer.index(b"\r\n\r\n") + 4], start
            connection.answers.append([due, answer, file, start, stop])
            if len(connection.answers) == 1:
                self._wake(connection, due)

    def _wake(self, connection: _Connection, due: float) -> None:
        self._timer += 1
        heapq.heappush(self._timers, (due, self._timer, connection))

    def _write(self, connection: _Connection) -> None:
        """Sends what is due, as far as the socket and the link take it."""
        while connection.answers:
            answer = connection.answers[0]
            due, head, file, start, stop = answer
            now = time.monotonic()
            if due > now:
                self._wake(connection, due)
                break
            wanted = min(len(head) + stop - start, _AT_ONCE)
            if self._rate:
                self._budget = min(_BURST, self._budget + (now - self._filled) * self._rate)
                self._filled = now
                if self._budget < wanted:
                    self._wake(connection, now + (wanted - self._budget) / self._rate)
                    break
            try:
                if head:
                    count = connection.client.send(head, socket.MSG_MORE if stop > start else 0)
                    answer[1] = head[count:]
                else:
                    count = os.sendfile(connection.client.fileno(), file, start, wanted)
                    answer[3] += count
            except BlockingIOError:
                self._watch(connection, True)
                return
            except OSError:
                self._close(connection)
                return
            self._budget -= count
            self.sent += count
            if not answer[1] and answer[3] == answer[4]:
                connection.answers.popleft()
        self._watch(connection, False)

    def _watch(self, connection: _Connection, writing: bool) -> None:
        if connection.writing != writing and connection.client.fileno() >= 0:
            connection.writing = writing
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
            self._selector.modify(connection.client, events, connection)

    def _close(self, connection: _Connection) -> None:
        if connection.client.fileno() >= 0:
            self._selector.unregister(connection.client)
            connection.client.close()
        connection.answers.clear()

    def _answer(self, head: str) -> tuple[bytes, int, int, int]:
        """The answer to a request: the header (with a short body), and the file and the bytes that follow."""
        line, *lines = head.split("\r\n")
        method, target, _ = line.split(" ")
        path, _, query = target.partition("?")
        if path == "/_counts":
            return _text(200, json.dumps({"requests": self.requests, "bytes": self.sent}))
        self.requests += 1
        if method not in ("GET", "HEAD"):
            return _text(403, "<Error><Code>AccessDenied</Code></Error>")
        if "list-type=2" in query:
            return _text(200, self._list(unquote(path).strip("/"), query))
        found = self._files.get(path) or self._open(path)
        if found is None:
            return _text(404, "<Error><Code>NoSuchKey</Code></Error>")
        file, size, tag = found
        start, stop, status = 0, size, "200 OK"
        more = ""
        for header in lines:
            name, _, value = header.partition(":")
            name, value = name.lower(), value.strip()
            if name == "range":
                low, _, high = value.removeprefix("bytes=").partition("-")
                if not low:
                    start = max(0, size - int(high))
                else:
                    start, stop = int(low), min(size, int(high) + 1) if high else size
                if start >= size:
                    return _text(416, "<Error><Code>InvalidRange</Code></Error>")
                status, more = "206 Partial Content", f"Content-Range: bytes {start}-{stop - 1}/{size}\r\n"
            elif name == "if-match" and value.strip('"') != tag:
                return _text(412, "<Error><Code>PreconditionFailed</Code></Error>")
        text = (
            f'HTTP/1.1 {status}\r\nContent-Length: {stop - start}\r\nETag: "{tag}"\r\nAccept-Ranges: bytes\r\n'
            f"Last-Modified: Fri, 02 Jan 2026 00:00:00 GMT\r\n{more}\r\n"
        )
        return text.encode(), file, start, stop

    def _open(self, path: str) -> tuple[int, int, str] | None:
        local = self._folder / unquote(urlsplit(path).path).strip("/")
        if not local.is_file():
            return None
        file = os.open(local, os.O_RDONLY)
        status = os.fstat(file)
        self._files[path] = file, status.st_size, f"{status.st_ino:x}-{status.st_size:x}"
        return self._files[path]

    def _list(self, bucket: str, query: str) -> str:
        asked = {name: values[0] for name, values in parse_qs(query).items()}
        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
        root = self._folder / bucket
        names = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
        objects, directories = [], dict[str, None]()
        for name in names:
            if name.startswith(prefix):
                rest = name[len(prefix) :]
                if delimiter and delimiter in rest:
                    directories[prefix + rest.partition(delimiter)[0] + delimiter] = None
                else:
                    objects.append(name)
        after = asked.get("start-after", "")
        parts = []
        for name in objects:
            if name > after:
                status = (root / name).stat()
                parts.append(
                    f"<Contents><Key>{escape(name)}</Key><Size>{status.st_size}</Size><ETag>&quot;{status.st_ino:x}-"
                    f"{status.st_size:x}&quot;</ETag><LastModified>2026-01-02T00:00:00.000Z</LastModified></Contents>"
                )
        parts += [f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in directories]
        return (
            '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(parts)}</KeyCount>"
            f"<IsTruncated>false</IsTruncated>{''.join(parts)}</ListBucketResult>"
        )


def _text(status: int, body: str) -> tuple[bytes, int, int, int]:
    head = f"HTTP/1.1 {status} .\r\nContent-Type: application/xml\r\nContent-Length: {len(body.encode())}\r\n\r\n"
    return (head + body).encode(), -1, 0, 0


def main() -> None:
    parser: Any = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--delay", type=float, default=0.0, help="milliseconds")
    parser.add_argument("--gigabits", type=float, default=0.0, help="per second; 0 for no limit")
    args = parser.parse_args()
    Server(args.port, args.folder, args.delay / 1000, args.gigabits * 1e9 / 8).serve()


if __name__ == "__main__":
    main()
