"""Limits for connections that have not sent a request: every user of this machine can open them."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_HEADER_SECONDS = 10.0
"""Seconds until the headers of a connection's first request must be there."""

MAX_WAITING = 256
"""Connections without a request. One more closes the oldest, so the user's browser always gets through."""

_numbers = itertools.count()


class BrowserConnection(H11Protocol):
    """A connection that is closed if its first request is late. `Guard` closes those whose request has no token."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._number, self._timer = next(_numbers), self.loop.call_later(MAX_HEADER_SECONDS, self._end_if_waiting)
        waiting = list(filter(_is_waiting, self.connections))
        if len(waiting) > MAX_WAITING:
            min(cast("list[BrowserConnection]", waiting), key=lambda entry: entry._number)._end_if_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def _end_if_waiting(self) -> None:
        if _is_waiting(self):
            self.connections.discard(self)
            self.transport.abort()


def _is_waiting(connection: Any) -> bool:
    """Whether a connection has not sent the headers of a request."""
    return connection.cycle is None
