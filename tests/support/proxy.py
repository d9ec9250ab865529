"""A TCP relay in front of a Reverb server that injects faults at a given byte rather than a given time."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
import threading
from collections.abc import Callable, Iterator

DEADLINE = 30.0
"""Seconds that the relay waits for any event."""

_DATA = 0  # the HTTP/2 frame type of a call's answers, here acknowledgments
_HEAD_BYTES = 9  # an HTTP/2 frame header: length, type, flags, stream


@dataclasses.dataclass
class _Link:
    """One connection: the client's end and the server's end."""

    client: socket.socket
    server: socket.socket

    def break_off(self) -> None:
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, without a FIN
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Proxy:
    """Relays connections to `target`, which may be restarted meanwhile.

    `at_byte(n, action)` calls `action()` once clients have sent n bytes, before any further byte is passed on;
    `at_connection(k, action)` just before the k-th connection (from 1) is made. The relay passes nothing on during the
    action. Each action runs once.

    Attributes:
      sent: the number of client bytes passed on.
      connections: the number of connections made.
      swallowed: the number of answers kept from clients.
    """

    def __init__(self, target: str):
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.sent = self.connections = self.swallowed = 0
        self._swallowing = False
        self._at_byte: list[tuple[int, Callable[[], object]]] = []
        self._at_connection: dict[int, Callable[[], object]] = {}
        self._links: list[_Link] = []
        self._moving = threading.RLock()  # one message at a time, and none during an action
        self.errors: list[BaseException] = []
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def at_byte(self, count: int, action: Callable[[], object]) -> None:
        self._at_byte = sorted([*self._at_byte, (count, action)], key=lambda pair: pair[0])

    def at_connection(self, count: int, action: Callable[[], object]) -> None:
        self._at_connection[count] = action

    def cut(self) -> None:
        """Breaks all connections; new ones work."""
        self._swallowing = False
        for link in self._links:
            link.break_off()
        self._links = []

    def swallow(self) -> None:
        """Keeps the next acknowledgment from the clients and then cuts, so it is certainly lost."""
        self._swallowing = True

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if self.errors:
            raise self.errors[0]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._happen(self._at_connection.pop(self.connections, None))
            try:
                server = socket.create_connection(self._target, timeout=DEADLINE)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            link = _Link(client, server)
            self._links.append(link)
            for pump in (self._up, self._down):
                threading.Thread(target=pump, args=(link,), daemon=True).start()

    def _happen(self, action: Callable[[], object] | None) -> None:
        if action is not None:
            try:
                action()
            except BaseException as error:  # raised by the test, not in this thread
                self.errors.append(error)

    def _up(self, link: _Link) -> None:
        with contextlib.suppress(OSError):
            while data := link.client.recv(1 << 16):
                with self._moving:
                    self._pass_on(link, data)
        link.break_off()

    def _pass_on(self, link: _Link, data: bytes) -> None:
        while self._at_byte and self.sent + len(data) >= self._at_byte[0][0]:
            count, action = self._at_byte[0]
            before, data = data[: count - self.sent], data[count - self.sent :]
            link.server.sendall(before)  # fails if the connection was cut; the client then sends again
            self.sent += len(before)
            self._at_byte.pop(0)
            self._happen(action)
        link.server.sendall(data)
        self.sent += len(data)

    def _down(self, link: _Link) -> None:
        with contextlib.suppress(OSError):
            for frame in _frames(link.server):
                if self._swallowing and frame[3] == _DATA:
                    self.swallowed += 1
                    self.cut()
                else:
                    link.client.sendall(frame)
        link.break_off()


def _frames(end: socket.socket) -> Iterator[bytes]:
    """Yields the complete HTTP/2 frames from a server."""
    buffer = b""
    while data := end.recv(1 << 16):
        buffer += data
        while len(buffer) >= _HEAD_BYTES:
            size = _HEAD_BYTES + int.from_bytes(buffer[:3], "big")
            if len(buffer) < size:
                break
            yield buffer[:size]
            buffer = buffer[size:]
