"""Restricts a Reverb server to loopback.

Reverb has no passwords: every client that reaches its port can read and delete all tables. It always listens on
`[::]:port` (reverb/cc/platform/default/server.cc), without an option for another address. So, in the server's process:

- The port is first bound exclusively. gRPC binds with SO_REUSEPORT, so Reverb alone would share a port with another
  server, and each would get some of the clients.
- As soon as Reverb listens, its socket is bound to the device `lo` (SO_BINDTODEVICE, socket(7): without privileges
  since Linux 5.7). From then on the kernel refuses connections from elsewhere as if no process listened.
- A connection from elsewhere in the milliseconds in between would still be open now (/proc/net/tcp, tcp6): if there is
  one, the server does not start.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat

from rlds_beam import platforms
from rlds_beam.errors import RldsBeamError, UsageError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
EVERYWHERE = ("0.0.0.0", "::")
"""The hosts to listen on: the kernel can distinguish only these two for a socket on `[::]`."""


def reserve_port(port: int | None) -> socket.socket:
    """Reserves a port, on which Reverb can then listen while the socket is open.

    Args:
      port: the port; None for a free one.

    Raises:
      UsageError: another process listens on the port, or it cannot be bound.
    """
    dual = socket.has_dualstack_ipv6()
    reserved = socket.socket(socket.AF_INET6 if dual else socket.AF_INET)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of an earlier server may linger
    if dual:
        reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        reserved.bind(("::" if dual else "0.0.0.0", port or 0))
    except OSError as error:
        reserved.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(f"--port={port}: another process listens on it; omit --port to use a free one") from error
        raise UsageError(f"--port={port}: {error.strerror}") from error
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return reserved


def keep_to_loopback(port: int) -> None:
    """Restricts the sockets of this process that listen on `port` to loopback.

    Raises:
      RldsBeamError: the kernel does not allow it, or another machine is already connected.
    """
    try:
        listeners = _listeners(port)
        with contextlib.ExitStack() as stack:
            for listener in listeners:
                platforms.bind_to_loopback(stack.enter_context(listener))
        peers = [*platforms.find_peers(port)]
    except OSError as error:
        raise RldsBeamError(
            f"this kernel cannot restrict Reverb to loopback ({error.strerror}; Linux 5.7 or newer can). Use "
            "--host=0.0.0.0 to serve every client that can reach this machine, without a password"
        ) from error
    if not listeners:
        raise RldsBeamError(f"Reverb's socket on port {port} was not found, so it could not be restricted to loopback")
    for peer in peers:
        if not peer.is_loopback:
            raise RldsBeamError(f"{peer} connected while the server was starting; start it again")


def _listeners(port: int) -> list[socket.socket]:
    """Duplicates of this process's sockets that listen on a port; the caller closes them."""
    listeners = []
    for descriptor in platforms.list_descriptors():
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            candidate = socket.socket(fileno=os.dup(descriptor))
        except OSError:  # already closed
            continue
        inet = candidate.family in (socket.AF_INET, socket.AF_INET6)
        listens = inet and candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if listens and candidate.getsockname()[1] == port:
            listeners.append(candidate)
        else:
            candidate.close()
    return listeners
