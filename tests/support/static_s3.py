"""A small S3 server for reading: `python static_s3.py PORT FOLDER [--delay=MS] [--gigabits=N]`.

Serves the files below FOLDER as objects; its first level are the buckets. It knows GET with a range, HEAD, and
ListObjectsV2, checks `If-Match`, and ignores signatures. It reads a request with a few searches in its bytes, since it
shares its cores with the client whose speed is measured.

Each answer begins `--delay` after its request, as does the first answer of a connection once more; all answers share
`--gigabits`. `GET /_counts` gives the number of requests and the bytes sent so far, as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import http
import json
import os
import re
import time
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_PIECE = 64 << 10  # bytes that a connection sends before others have their turn
_BURST = 256 << 10  # bytes that may be sent at once although the link is slower
_BUFFERED = 1 << 20  # bytes that may wait for a client
_HEADERS = re.compile(rb"\r\n(range|if-match): *([^\r]+)", re.IGNORECASE)


class Link:
    """What all connections share: the rate in bytes per second (0 for no limit), and the counts."""

    def __init__(self, rate: float):
        self.requests = self.sent = 0
        self._rate, self._free = rate, time.monotonic()

    def take(self, size: int) -> float:
        """The seconds after which `size` more bytes may be sent."""
        self.sent += size
        if not self._rate:
            return 0.0
        now = time.monotonic()
        self._free = max(self._free, now - _BURST / self._rate) + size / self._rate
        return max(0.0, self._free - now)


class Connection(asyncio.Protocol):
    """A client, which waits for each answer before it sends the next request."""

    def __init__(self, folder: Path, delay: float, link: Link):
        self._folder, self._delay, self._link = folder, delay, link
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._loop = transport, asyncio.get_running_loop()
        self._ready = self._loop.time() + self._delay

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if end:
            self._received = rest
            due = max(self._ready, self._loop.time()) + self._delay
            self._loop.call_at(due, self._send, *self._answer(head))

    def _answer(self, head: bytes) -> tuple[bytes, int, int, int]:
        """The head of an answer with a short body, and the open file with the range of bytes that follows."""
        method, target, _ = head.partition(b"\r\n")[0].decode().split(" ")
        parts = urlsplit(target)
        if parts.path == "/_counts":
            return _text(200, json.dumps({"requests": self._link.requests, "bytes": self._link.sent}))
        self._link.requests += 1
        path = self._folder / unquote(parts.path).strip("/")
        if "list-type" in parts.query:
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            return _text(200, _list(path, query.get("prefix", ""), query.get("delimiter", "")))
        try:
            file, size, tag = _open(path)
        except OSError:
            return _text(404, "<Error><Code>NoSuchKey</Code></Error>")
        asked = {name.lower(): value.decode() for name, value in _HEADERS.findall(head)}
        if asked.get(b"if-match", tag) not in (tag, tag.strip('"')):
            return _text(412, "<Error><Code>PreconditionFailed</Code></Error>")
        start, stop, status = 0, size, "200 OK"
        if b"range" in asked:
            low, _, high = asked[b"range"].removeprefix("bytes=").partition("-")
            start = int(low) if low else max(0, size - int(high))
            stop = min(size, int(high) + 1) if low and high else size
            if start >= size:
                return _text(416, "<Error><Code>InvalidRange</Code></Error>")
            status = f"206 Partial Content\r\nContent-Range: bytes {start}-{stop - 1}/{size}"
        text = (
            f"HTTP/1.1 {status}\r\nETag: {tag}\r\nLast-Modified: Fri, 02 Jan 2026 00:00:00 GMT\r\n"
            f"Content-Length: {stop - start}\r\n\r\n"
        )
        return text.encode(), file, start, start if method == "HEAD" else stop

    def _send(self, head: bytes, file: int, start: int, stop: int) -> None:
        """Sends a piece as soon as the link takes it, then the others."""
        if self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > _BUFFERED:
            self._loop.call_later(0.001, self._send, head, file, start, stop)
            return
        content = head + os.pread(file, min(_PIECE, stop - start), start) if start < stop else head
        start += len(content) - len(head)
        wait = self._link.take(len(content))
        if wait > 0:
            self._loop.call_later(wait, self._write, content, file, start, stop)
        else:
            self._write(content, file, start, stop)

    def _write(self, content: bytes, file: int, start: int, stop: int) -> None:
        self._transport.write(content)
        if start < stop:
            self._loop.call_soon(self._send, b"", file, start, stop)


@functools.cache
def _open(path: Path) -> tuple[int, int, str]:
    """A file's descriptor, size, and entity tag."""
    file = os.open(path, os.O_RDONLY)
    status = os.fstat(file)
    os.pread(file, 1, 0)  # not a directory
    return file, status.st_size, f'"{status.st_ino:x}-{status.st_size:x}"'


def _text(status: int, body: str) -> tuple[bytes, int, int, int]:
    head = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\nContent-Type: application/xml\r\n"
    return f"{head}Content-Length: {len(body.encode())}\r\n\r\n{body}".encode(), -1, 0, 0


def _list(bucket: Path, prefix: str, delimiter: str) -> str:
    found = dict[str, str]()
    for file in sorted(path for path in bucket.rglob("*") if path.is_file()):
        name = str(file.relative_to(bucket))
        rest = name.removeprefix(prefix)
        if not name.startswith(prefix):
            continue
        if delimiter and delimiter in rest:
            folder = escape(prefix + rest.partition(delimiter)[0] + delimiter)
            found[folder] = f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>"
        else:
            _, size, tag = _open(file)
            found[name] = (
                f"<Contents><Key>{escape(name)}</Key><Size>{size}</Size><ETag>{escape(tag)}</ETag>"
                "<LastModified>2026-01-02T00:00:00.000Z</LastModified></Contents>"
            )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(found.values())}</ListBucketResult>"


async def serve(port: int, folder: Path, delay: float, link: Link) -> None:
    loop = asyncio.get_running_loop()
    make = functools.partial(Connection, folder, delay, link)
    server = await loop.create_server(make, "127.0.0.1", port, backlog=1024)  # S3 takes many connections at once
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--delay", type=float, default=0.0, help="milliseconds")
    parser.add_argument("--gigabits", type=float, default=0.0, help="per second; 0 for no limit")
    args = parser.parse_args()
    link = Link(args.gigabits * 1e9 / 8)
    asyncio.run(serve(args.port, args.folder.resolve(), args.delay / 1000, link))


if __name__ == "__main__":
    main()
