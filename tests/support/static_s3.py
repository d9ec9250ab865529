"""A small S3 server for reading: `python static_s3.py PORT FOLDER [--delay=MS] [--gigabits=N]`.

Serves the files below FOLDER as objects; its first level are the buckets. It knows GET with a range, HEAD, and
ListObjectsV2, checks `If-Match`, and ignores signatures. Bytes go from the page cache to the socket (`sendfile`).

Each answer begins `--delay` after its request, as does the first answer of a connection once more; all answers share
`--gigabits`. `GET /_counts` gives the number of requests and the bytes sent so far, as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_PIECE = 64 << 10  # bytes that a connection sends before others have their turn
_BURST = 256 << 10  # bytes that may be sent at once although the link is slower


class Link:
    """What all connections share: the rate in bytes per second (0 for no limit), and the counts."""

    def __init__(self, rate: float):
        self.requests = self.sent = 0
        self._rate, self._lock, self._free = rate, threading.Lock(), time.monotonic()

    def count_request(self) -> None:
        with self._lock:
            self.requests += 1

    def take(self, size: int) -> None:
        """Waits until `size` more bytes may be sent."""
        with self._lock:
            self.sent += size
            if not self._rate:
                return
            now = time.monotonic()
            self._free = max(self._free, now - _BURST / self._rate) + size / self._rate
            wait = self._free - now
        if wait > 0:
            time.sleep(wait)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    folder: Path
    delay: float
    link: Link

    def setup(self) -> None:
        super().setup()
        self._ready = time.monotonic() + self.delay

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path == "/_counts":
            self._answer(200, json.dumps({"requests": self.link.requests, "bytes": self.link.sent}))
            return
        self.link.count_request()
        time.sleep(max(0.0, self._ready - time.monotonic()) + self.delay)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        path = self.folder / unquote(parts.path).strip("/")
        if "list-type" in query:
            self._answer(200, _list(path, query.get("prefix", ""), query.get("delimiter", "")))
        elif path.is_file():
            self._send_file(path)
        else:
            self._answer(404, "<Error><Code>NoSuchKey</Code></Error>")

    do_HEAD = do_GET  # noqa: N815

    def _send_file(self, path: Path) -> None:
        size, tag = path.stat().st_size, _tag(path)
        if self.headers.get("If-Match", tag) not in (tag, tag.strip('"')):
            self._answer(412, "<Error><Code>PreconditionFailed</Code></Error>")
            return
        start, stop, asked = 0, size, self.headers.get("Range")
        if asked:
            low, _, high = asked.removeprefix("bytes=").partition("-")
            start = int(low) if low else max(0, size - int(high))
            stop = min(size, int(high) + 1) if low and high else size
            if start >= size:
                self._answer(416, "<Error><Code>InvalidRange</Code></Error>")
                return
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.send_header("ETag", tag)
        self.send_header("Last-Modified", "Fri, 02 Jan 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        with path.open("rb") as file:
            while start < stop:
                self.link.take(min(_PIECE, stop - start))
                start += os.sendfile(self.connection.fileno(), file.fileno(), start, min(_PIECE, stop - start))

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None: ...


def _tag(path: Path) -> str:
    status = path.stat()
    return f'"{status.st_ino:x}-{status.st_size:x}"'


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
            found[name] = (
                f"<Contents><Key>{escape(name)}</Key><Size>{file.stat().st_size}</Size><ETag>{escape(_tag(file))}</ETag>"
                "<LastModified>2026-01-02T00:00:00.000Z</LastModified></Contents>"
            )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(found.values())}</ListBucketResult>"


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # of connections: a client that opens more waits for seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--delay", type=float, default=0.0, help="milliseconds")
    parser.add_argument("--gigabits", type=float, default=0.0, help="per second; 0 for no limit")
    args = parser.parse_args()
    Handler.folder, Handler.delay = args.folder.resolve(), args.delay / 1000
    Handler.link = Link(args.gigabits * 1e9 / 8)
    Server(("127.0.0.1", args.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
