"""A TCP relay before a Reverb server, in which things go wrong at a given byte, not at a given time."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
import threading
from collections.abc import Callable, Iterator

DEADLINE = 30.0
"""Seconds that the relay waits for anything."""

_DATA = 0  # type of an HTTP/2 frame: what a call answers, here acknowledgements
_HEAD_BYTES = 9  # of an HTTP/2 frame's head: length, type, flags, stream


@dataclasses.dataclass
class _Link:
    """One connection: the client's end, the server's end."""

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
    """Relays connections to `target`, which may come and go.

    `at_byte(n, action)` calls `action()` when clients have sent n bytes and no byte more has been passed on;
    `at_connection(k, action)` when the k-th connection (from 1) is about to be made. The relay passes nothing
    on meanwhile. Each happens once.

    Attributes:
      sent: bytes of clients that were passed on.
      connections: that were made.
      swallowed: answers that were kept from the clients.
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
        self._moving = threading.RLock()  # one message at a time, and none while something goes wrong
        self.errors: list[BaseException] = []
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def at_byte(self, count: int, action: Callable[[], object]) -> None:
        self._at_byte = sorted([*self._at_byte, (count, action)], key=lambda pair: pair[0])

    def at_connection(self, count: int, action: Callable[[], object]) -> None:
        self._at_connection[count] = action

    def cut_every(self, count: int) -> None:
        """Breaks every connection that sends so many bytes, for as long as there are any."""

        def cut_and_go_on() -> None:
            self.cut()
            self.at_byte(self.sent + count, cut_and_go_on)

        self.at_byte(self.sent + count, cut_and_go_on)

    def cut(self) -> None:
        """Breaks all connections; new ones work."""
        self._swallowing = False
        for link in self._links:
            link.break_off()
        self._links = []

    def swallow(self) -> None:
        """Keeps the next acknowledgement from the clients, and then cuts: it is lost for certain."""
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
            except BaseException as error:  # shown by the test, not by a thread
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
            link.server.sendall(before)  # fails where the connection was cut; then it is for the next one to get there
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
    """The HTTP/2 frames that come from a server, whole."""
    buffer = b""
    while data := end.recv(1 << 16):
        buffer += data
        while len(buffer) >= _HEAD_BYTES:
            size = _HEAD_BYTES + int.from_bytes(buffer[:3], "big")
            if len(buffer) < size:
                break
            yield buffer[:size]
            buffer = buffer[size:]
