"""Reads ranges of objects with little processor time: plain HTTP requests to a signed address, on kept connections.

An address is signed once for each object and some minutes, so that a request is a few lines of text. If the answer is
not exactly the bytes that were asked for (an error, a redirect, a connection that breaks), the vendor's client makes
the request again, retries it, and explains what is wrong.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import http.client
import os
import queue
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from rlds_beam import watchdog
from rlds_beam.buckets.base import KEPT_CONNECTIONS, RangeReader
from rlds_beam.text import printable

MAX_REQUESTS = 128
"""Requests of a process that are in flight at the same time."""

SIGNED_SECONDS = 3600
"""Seconds for which an address is signed ..."""

_USED_SECONDS = 600.0
"""... and for which it is used."""

_CONNECT_SECONDS = 5.0
_READ_SECONDS = 20.0
_MIN_BYTES_PER_SECOND = 64 << 10
"""The least speed of an answer; a slower one is left to the vendor's client."""

_PAUSE_SECONDS = 5.0
"""Seconds for which all is left to the vendor's client after an answer was, or after a connection failed."""

_MAX_HEAD = 16 << 10
"""Maximum bytes of the header of an answer."""


class Address(NamedTuple):
    """Where the bytes of an object are.

    Attributes:
      url: the address, with a signature if one is needed.
      headers: headers of each request, for example the version of the object.
    """

    url: str
    headers: Mapping[str, str]


class _UnexpectedError(Exception):
    """An answer that is not the bytes that were asked for."""


class SignedReader:
    """Reads ranges of an object (`RangeReader`).

    Args:
      sign: returns the address; None if there is none.
      fetch: reads with the vendor's client.
    """

    def __init__(self, sign: Callable[[], Address | None], fetch: RangeReader):
        self._sign, self._fetch = sign, fetch
        self._target: tuple[float, _Target | None] = (0.0, None)
        self._process = os.getpid()

    def __call__(self, start: int, stop: int) -> bytes:
        if start >= stop:
            return b""
        with watchdog.waiting():
            target = self._find_target()
            if target is not None:
                try:
                    return target.read(start, stop)
                except _UnexpectedError:
                    self._target = (time.monotonic() + _PAUSE_SECONDS, None)
                except (OSError, http.client.HTTPException):
                    target.server.pause()
            return self._fetch(start, stop)

    def _find_target(self) -> _Target | None:
        until, target = self._target
        if time.monotonic() >= until or self._process != os.getpid():
            self._process = os.getpid()
            address = None
            with contextlib.suppress(Exception):  # the vendor's client says what is wrong
                address = self._sign()
            target = None if address is None else _Target.of(address)
            self._target = (time.monotonic() + _USED_SECONDS, target)
        return None if target is None or target.server.is_paused() else target


class _Target:
    """The requests for an object."""

    def __init__(self, server: _Server, before: bytes):
        self.server, self._before = server, before

    @classmethod
    def of(cls, address: Address) -> _Target | None:
        """The target of an address; None if it cannot be asked for directly, for example behind a proxy."""
        parts = urlsplit(address.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return None
        if urllib.request.getproxies().get(parts.scheme) and not urllib.request.proxy_bypass(parts.hostname):
            return None
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        lines = [f"GET {path} HTTP/1.1", f"Host: {parts.netloc}", *(f"{k}: {v}" for k, v in address.headers.items())]
        if any(printable(line, 1 << 16) != line or not line.isascii() for line in lines):
            return None
        before = "\r\n".join([*lines, "Accept-Encoding: identity", "Range: bytes="]).encode()
        return cls(_server(os.getpid(), parts.scheme, parts.hostname, parts.port), before)

    def read(self, start: int, stop: int) -> bytes:
        """Reads a range.

        Raises:
          _UnexpectedError: the server answers something else.
          OSError, HTTPException: the connection fails.
        """
        request = self._before + b"%d-%d\r\n\r\n" % (start, stop - 1)
        while True:
            sock, kept = self.server.take()
            try:
                _send(sock, request)
                data, keeps_open = _receive(sock, start, stop)
            except _StaleError:
                sock.close()
                if kept:  # the server closed it while it was idle
                    continue
                raise
            except BaseException:
                sock.close()
                raise
            if keeps_open:
                self.server.put_back(sock)
            else:
                sock.close()
            return data


class _StaleError(ConnectionError):
    """The connection ended before the answer began."""


def _send(sock: Any, request: bytes) -> None:
    try:
        sock.sendall(request)
    except (ConnectionError, ssl.SSLError) as error:
        raise _StaleError from error


def _receive(sock: Any, start: int, stop: int) -> tuple[bytes, bool]:
    """Receives an answer, which must be exactly these bytes.

    Returns:
      The bytes, and whether the connection can be used again.
    """
    size = stop - start
    deadline = time.monotonic() + _READ_SECONDS + size / _MIN_BYTES_PER_SECOND
    buffer = bytearray(_MAX_HEAD + size)
    view, received, end = memoryview(buffer), 0, -1
    while end < 0:
        if received >= _MAX_HEAD:
            raise _UnexpectedError
        try:
            count = sock.recv_into(view[received:])
        except (ConnectionError, ssl.SSLError) as error:
            raise (_StaleError() if not received else error) from None
        if not count:
            raise _StaleError if not received else ConnectionError
        received += count
        end = buffer.find(b"\r\n\r\n", 0, received)
        _check_time(deadline)
    first, *lines = bytes(view[:end]).split(b"\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    sound = first.startswith((b"HTTP/1.1 206", b"HTTP/1.0 206")) and headers.get(b"content-length") == b"%d" % size
    extent = headers.get(b"content-range", b"").partition(b"/")[0] == b"bytes %d-%d" % (start, stop - 1)
    plain = headers.get(b"content-encoding", b"identity") == b"identity" and b"transfer-encoding" not in headers
    if not (sound and extent and plain):
        raise _UnexpectedError
    begin = end + 4
    while received < begin + size:
        count = sock.recv_into(view[received : begin + size])
        if not count:
            raise ConnectionError
        received += count
        _check_time(deadline)
    if received > begin + size:
        raise _UnexpectedError
    keeps_open = first.startswith(b"HTTP/1.1") and headers.get(b"connection", b"").lower() != b"close"
    return bytes(view[begin:received]), keeps_open


def _check_time(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError


class _Server:
    """A server, and its idle connections."""

    def __init__(self, scheme: str, host: str, port: int | None):
        self._scheme, self._host, self._port = scheme, host, port
        self._idle: collections.deque[Any] = collections.deque(maxlen=KEPT_CONNECTIONS)
        self._paused = 0.0

    def take(self) -> tuple[Any, bool]:
        """A connected socket, and whether it was used before."""
        with contextlib.suppress(IndexError):
            return self._idle.pop(), True
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_CONNECT_SECONDS)
        if self._scheme == "https":
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=_CONNECT_SECONDS, context=_tls())
        connection.connect()
        connection.sock.settimeout(_READ_SECONDS)
        return connection.sock, False

    def put_back(self, sock: Any) -> None:
        self._idle.append(sock)

    def pause(self) -> None:
        """Leaves requests to the vendor's client for a while."""
        self._paused = time.monotonic() + _PAUSE_SECONDS
        self._idle.clear()

    def is_paused(self) -> bool:
        return time.monotonic() < self._paused


@functools.cache
def _server(process: int, scheme: str, host: str, port: int | None) -> _Server:
    del process  # a forked process cannot use its parent's connections
    return _Server(scheme, host, port)


@functools.cache
def _tls() -> ssl.SSLContext:
    """Certificates as the vendors' clients find them; if these do not suffice, the clients are used."""
    given = os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE")
    return ssl.create_default_context(cafile=given or None)


class _Pool:
    """Threads that make requests; daemons, so that the process can end without waiting for the store."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._queue: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._threads = 0

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        if self._threads < MAX_REQUESTS:
            self._threads += 1
            try:
                threading.Thread(target=self._work, name="ranges", daemon=True).start()
            except RuntimeError:  # too many threads, or the interpreter is shutting down
                self._threads -= 1
                if not self._threads:
                    raise
        self._queue.put((future, function))
        return future

    def _work(self) -> None:
        while True:
            future, function = self._queue.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)
            del future, function


_pool = _Pool()


def submit(function: Callable[[], bytes]) -> Future[bytes]:
    """Calls a function that makes a request in one of `MAX_REQUESTS` threads."""
    global _pool
    if _pool.process != os.getpid():  # threads do not survive a fork
        _pool = _Pool()
    return _pool.submit(function)
