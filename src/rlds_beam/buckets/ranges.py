"""Reads ranges of objects with little processor time: plain HTTP requests to a signed address, on kept connections.

An address is signed once for each object and some minutes, so that a request is a few lines of text. One thread sends
all requests of a process and receives the answers. If an answer is not exactly the bytes that were asked for (an error,
a redirect, a connection that breaks), the vendor's client makes the request again, retries it, and explains what is
wrong.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import http.client
import os
import queue
import selectors
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from rlds_beam.text import printable

MAX_CONNECTIONS = 384
"""Connections to a server, and so requests in flight: 1 Gbit/s of images of 15 kB, 30 ms away, need 250."""

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

_CHECK_SECONDS = 1.0
"""Seconds between checks of what takes too long."""

_MAX_THREADS = 128
"""Threads that wait for something else: a connection, a signature, the vendor's client."""

Result = TypeVar("Result")


class Address(NamedTuple):
    """Where the bytes of an object are.

    Attributes:
      url: the address, with a signature if one is needed.
      headers: headers of each request, for example the version of the object.
    """

    url: str
    headers: Mapping[str, str]


class Content:
    """The bytes of a request: a lighter `Future`, which would take half as long as the request itself."""

    def __init__(self) -> None:
        self._done = threading.Lock()
        self._done.acquire()
        self._data: bytes | BaseException = b""

    def put(self, data: bytes | BaseException) -> None:
        """Sets the bytes, or what went wrong; only once."""
        self._data = data
        self._done.release()

    def result(self, timeout: float = -1) -> bytes:
        """Waits for the bytes. Raises what went wrong, or TimeoutError after as many seconds."""
        if not self._done.acquire(timeout=timeout):
            raise TimeoutError
        self._done.release()
        if isinstance(self._data, BaseException):
            raise self._data
        return self._data


class RangeReader:
    """Reads ranges of an object. Thread-safe. Raises BucketError, also if the object was replaced.

    Args:
      sign: returns the address; None if there is none.
      fetch: reads with the vendor's client.
    """

    def __init__(self, sign: Callable[[], Address | None], fetch: Callable[[int, int], bytes]):
        self._sign, self._fetch = sign, fetch
        self._target: tuple[float, _Target | None] = (0.0, None)
        self._process = os.getpid()

    def read(self, start: int, stop: int) -> bytes:
        """The bytes from `start` to `stop`."""
        return self.request(start, stop).result()

    def request(self, start: int, stop: int) -> Content:
        """Starts to read the bytes from `start` to `stop`."""
        request = _Request(self, start, stop)
        if start >= stop:
            request.content.put(b"")
        elif self._is_signed():
            request.send()
        else:
            submit(functools.partial(self._sign_and_send, request))
        return request.content

    def find_target(self) -> _Target | None:
        """Where requests go now; None if they are left to the vendor's client."""
        _, target = self._target
        return None if target is None or target.server.is_paused() else target

    def pause(self) -> None:
        """Leaves requests to the vendor's client for a while."""
        self._target = (time.monotonic() + _PAUSE_SECONDS, None)

    def fetch(self, request: _Request) -> None:
        """Reads with the vendor's client."""
        try:
            data: bytes | BaseException = self._fetch(request.start, request.stop)
        except BaseException as error:
            data = error
        request.content.put(data)

    def _is_signed(self) -> bool:
        return time.monotonic() < self._target[0] and self._process == os.getpid()

    def _sign_and_send(self, request: _Request) -> None:
        if not self._is_signed():
            target = None
            with contextlib.suppress(Exception):  # the vendor's client says what is wrong
                address = self._sign()
                target = None if address is None else _Target.of(address)
            self._process = os.getpid()
            self._target = time.monotonic() + _USED_SECONDS, target
        request.send()


class _Target(NamedTuple):
    """The server of an object, and the text of requests for it, but for their ranges."""

    server: _Server
    text: bytes

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
        text = "\r\n".join([*lines, "Accept-Encoding: identity", "Range: bytes="]).encode()
        return cls(_find_loop().find_server(parts.scheme, parts.hostname, parts.port), text)


class _Request:
    """A range that was asked for.

    Attributes:
      content: its bytes.
    """

    def __init__(self, reader: RangeReader, start: int, stop: int):
        self.reader, self.start, self.stop = reader, start, stop
        self.content, self.text = Content(), b""

    def send(self) -> None:
        """Sends it on a connection, or leaves it to the vendor's client."""
        target = self.reader.find_target()
        if target is None:
            self.fetch()
        else:
            self.text = target.text + b"%d-%d\r\n\r\n" % (self.start, self.stop - 1)
            try:
                target.server.loop.call(functools.partial(target.server.send, self))
            except RuntimeError:  # its thread cannot start
                self.fetch()

    def fetch(self) -> None:
        """Leaves it to the vendor's client."""
        submit(functools.partial(self.reader.fetch, self))


class _UnexpectedError(Exception):
    """An answer that is not the bytes that were asked for."""


class _Server:
    """A server, its connections, and the requests that wait for one. For the thread of its loop only.

    Attributes:
      loop: the loop.
      idle, busy: connections without a request, and with one.
    """

    def __init__(self, loop: _Loop, scheme: str, host: str, port: int | None):
        self.loop, self._scheme, self._host, self._port = loop, scheme, host, port
        self._waiting: collections.deque[_Request] = collections.deque()
        self._connecting, self._most, self._paused = 0, MAX_CONNECTIONS, 0.0
        self.idle: list[_Connection] = []
        self.busy: set[_Connection] = set()

    def is_paused(self) -> bool:
        return time.monotonic() < self._paused

    def send(self, request: _Request) -> None:
        """Sends a request when there is a connection."""
        if self.idle:
            self._start(self.idle.pop(), request)
            return
        self._waiting.append(request)
        self._open()

    def release(self, connection: _Connection) -> None:
        """Has a connection send the next request, or wait for one."""
        self.busy.discard(connection)
        if self._waiting:
            self._start(connection, self._waiting.popleft())
        else:
            self.idle.append(connection)

    def fail(self, connection: _Connection, error: Exception) -> None:
        """Closes a connection; its request is sent again, or left to the vendor's client."""
        request = connection.request
        self.busy.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)
        self.loop.remove(connection)
        if request is not None and connection.was_closed(error) and (connection.answers or self._accepts_fewer()):
            self.loop.call(functools.partial(self.send, request))  # closed while it was idle, or one too many
        elif request is not None:
            if isinstance(error, _UnexpectedError):
                request.reader.pause()
            else:
                self._pause()
            request.fetch()
        self._open()

    def check_times(self) -> None:
        """Fails what takes too long; tries more connections again."""
        now, self._most = time.monotonic(), min(MAX_CONNECTIONS, 2 * self._most)
        for connection in [connection for connection in self.busy if connection.deadline < now]:
            self.fail(connection, TimeoutError())

    def abandon(self) -> None:
        """Leaves everything to the vendor's client, after an error that nobody expected."""
        self._pause()
        for connection in list(self.busy):
            self.fail(connection, TimeoutError())

    def _start(self, connection: _Connection, request: _Request) -> None:
        self.busy.add(connection)
        connection.send(request)

    def _open(self) -> None:
        """Opens a connection if a request waits for one."""
        if self._connecting < len(self._waiting) and self._connecting + len(self.busy) < self._most:
            self._connecting += 1
            submit(self._connect)

    def _connect(self) -> None:
        """Opens a connection; called by another thread."""
        sock = None
        with contextlib.suppress(Exception):  # the vendor's client says what is wrong
            made = http.client.HTTPConnection(self._host, self._port, timeout=_CONNECT_SECONDS)
            if self._scheme == "https":
                made = http.client.HTTPSConnection(self._host, self._port, timeout=_CONNECT_SECONDS, context=_tls())
            made.connect()
            made.sock.setblocking(False)
            sock = made.sock
        self.loop.call(functools.partial(self._add, sock))

    def _add(self, sock: socket.socket | None) -> None:
        self._connecting -= 1
        if sock is not None:
            connection = _Connection(sock, self)
            with contextlib.suppress(OSError):  # too many files for the selector
                self.loop.add(connection)
                self.release(connection)
                return
        if not self._accepts_fewer():
            self._pause()

    def _accepts_fewer(self) -> bool:
        """Opens no more connections for a moment, if there are some; the server may not accept more."""
        self._most = len(self.busy) + len(self.idle) or MAX_CONNECTIONS
        return bool(self.busy or self.idle)

    def _pause(self) -> None:
        """Leaves all requests to the vendor's client for a while."""
        self._paused = time.monotonic() + _PAUSE_SECONDS
        while self._waiting:
            self._waiting.popleft().fetch()


class _Connection:
    """A connection.

    Attributes:
      request: the request that it was sent; None if it has its answer.
      answers: the number of answers that were received.
      deadline: when the answer must be there.
    """

    def __init__(self, sock: Any, server: _Server):
        self.sock, self._server = sock, server
        self.request: _Request | None = None
        self.deadline = 0.0
        self.answers = 0
        self._chunks, self._received, self._begin, self._keeps_open = list[bytes](), 0, -1, False

    def send(self, request: _Request) -> None:
        size = request.stop - request.start
        self.request, self._chunks, self._received, self._begin = request, [], 0, -1
        self.deadline = time.monotonic() + _READ_SECONDS + size / _MIN_BYTES_PER_SECOND
        try:
            if self.sock.send(request.text) != len(request.text):
                raise ConnectionError
        except OSError as error:
            self._server.fail(self, error)

    def was_closed(self, error: Exception) -> bool:
        """Whether the server closed it before an answer began."""
        return not self._received and not isinstance(error, TimeoutError)

    def receive(self) -> None:
        """Receives what is there."""
        try:
            while self._receive():
                pass
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        except (OSError, _UnexpectedError) as error:
            self._server.fail(self, error)

    def _receive(self) -> bool:
        """Receives some bytes; returns whether there may be more that the selector does not know of."""
        request = self.request
        if request is None:  # the server closes an idle connection
            raise ConnectionError
        size = request.stop - request.start
        chunk = self.sock.recv((_MAX_HEAD if self._begin < 0 else self._begin) + size - self._received)
        if not chunk:
            raise ConnectionError
        self._chunks.append(chunk)
        self._received += len(chunk)
        if self._begin < 0:
            self._find_begin(request)
        if 0 <= self._begin <= self._received - size:
            self._finish(request)
        return isinstance(self.sock, ssl.SSLSocket) and self.sock.pending() > 0

    def _find_begin(self, request: _Request) -> None:
        content = _join(self._chunks)
        end = content.find(b"\r\n\r\n")
        if end >= 0:
            self._begin, self._keeps_open = end + 4, _check_head(content[:end], request.start, request.stop)
        elif self._received >= _MAX_HEAD:
            raise _UnexpectedError

    def _finish(self, request: _Request) -> None:
        data = _join(self._chunks)[self._begin :]
        if len(data) != request.stop - request.start:
            raise _UnexpectedError
        self.request, self._chunks = None, []
        self.answers += 1
        request.content.put(data)
        if self._keeps_open:
            self._server.release(self)
        else:
            self._server.fail(self, ConnectionError())


def _join(chunks: list[bytes]) -> bytes:
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _check_head(head: bytes, start: int, stop: int) -> bool:
    """Checks that an answer is exactly these bytes; returns whether the connection can be used again."""
    first, *lines = head.split(b"\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    sound = first.startswith((b"HTTP/1.1 206", b"HTTP/1.0 206"))
    sound = sound and headers.get(b"content-length") == b"%d" % (stop - start)
    extent = headers.get(b"content-range", b"").partition(b"/")[0] == b"bytes %d-%d" % (start, stop - 1)
    plain = headers.get(b"content-encoding", b"identity") == b"identity" and b"transfer-encoding" not in headers
    if not (sound and extent and plain):
        raise _UnexpectedError
    return first.startswith(b"HTTP/1.1") and headers.get(b"connection", b"").lower() != b"close"


class _Loop:
    """A thread that sends the requests of this process, and receives the answers."""

    def __init__(self) -> None:
        self._calls: collections.deque[Callable[[], object]] = collections.deque()
        self._servers: dict[tuple[str, str, int | None], _Server] = {}
        self._lock, self._asleep, self._checked = threading.Lock(), False, 0.0
        self._thread: threading.Thread | None = None

    def find_server(self, scheme: str, host: str, port: int | None) -> _Server:
        """The server at an address."""
        return self._servers.setdefault((scheme, host, port), _Server(self, scheme, host, port))

    def call(self, function: Callable[[], object]) -> None:
        """Calls a function in the thread."""
        if self._thread is None:
            self._start()
        self._calls.append(function)
        if self._asleep:
            self._asleep = False
            with contextlib.suppress(BlockingIOError):
                self._waker.send(b"0")

    def add(self, connection: _Connection) -> None:
        self._selector.register(connection.sock, selectors.EVENT_READ, connection)

    def remove(self, connection: _Connection) -> None:
        self._selector.unregister(connection.sock)
        connection.sock.close()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._selector = selectors.DefaultSelector()
                self._waker, self._woken = socket.socketpair()
                self._waker.setblocking(False)
                self._selector.register(self._woken, selectors.EVENT_READ)
                thread = threading.Thread(target=self._run, name="ranges", daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while True:
            try:
                self._turn()
            except Exception:  # requests must not wait forever
                for server in self._servers.values():
                    server.abandon()

    def _turn(self) -> None:
        """Waits for answers and calls, and handles them."""
        self._asleep = True
        busy = any(server.busy for server in self._servers.values())
        events = self._selector.select(0 if self._calls else _CHECK_SECONDS if busy else None)
        self._asleep = False
        for key, _ in events:
            if key.data is None:
                self._woken.recv(4096)
            else:
                key.data.receive()
        while self._calls:
            self._calls.popleft()()
        if time.monotonic() >= self._checked + _CHECK_SECONDS:
            self._checked = time.monotonic()
            for server in self._servers.values():
                server.check_times()


_loops: dict[int, _Loop] = {}
"""The loop of each process: a forked process cannot use its parent's connections."""


def _find_loop() -> _Loop:
    return _loops.setdefault(os.getpid(), _Loop())


@functools.cache
def _tls() -> ssl.SSLContext:
    """Certificates as the vendors' clients find them; if these do not suffice, the clients are used."""
    given = os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE")
    return ssl.create_default_context(cafile=given or None)


class _Pool:
    """Threads for calls that wait; daemons, so that the process can end without waiting for the store."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._queue: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._threads = 0

    def submit(self, function: Callable[[], Result]) -> Future[Result]:
        future: Future[Result] = Future()
        if self._threads < _MAX_THREADS:
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


def submit(function: Callable[[], Result]) -> Future[Result]:
    """Calls a function that waits for a store, in a pool of threads."""
    global _pool
    if _pool.process != os.getpid():  # threads do not survive a fork
        _pool = _Pool()
    return _pool.submit(function)
