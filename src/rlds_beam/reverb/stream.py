"""A stream of items to one Reverb server, until every one of them is acknowledged."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator

import grpc
import numpy as np

from rlds_beam.errors import NotVerifiedError
from rlds_beam.formats.reverb_stream import METHOD, Keys, Request, acknowledged, acknowledged_count
from rlds_beam.reverb.connection import Connection, ServerError

WINDOW_BYTES = 16 << 20
"""What may be sent and not yet acknowledged; it is kept, to be sent again if the connection is lost."""

MESSAGE_BYTES = 512 << 10
"""Requests that wait to be sent are joined to messages of this size, about."""

_RETRY_SECONDS = 0.2
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN)
"""What a broken connection ends a call with; every other status is the server's answer."""


class InsertStream:
    """Sends requests to a server. Not for more than one thread, and not for pickling.

    A connection that breaks is made again and everything unacknowledged sent again: the server has each
    item once, since the keys are the same. A server that was restarted is recognised by its `state_id`, and ends the
    stream: the items that it had acknowledged are lost.

    Args:
      address: `host:port`.
      timeout: seconds that any wait may take without an item being acknowledged.
      state_id: of the server when the job began; None asks it now.

    Attributes:
      acknowledged: items that the server has taken.

    Raises (every method):
      NotVerifiedError: the server was restarted, refused an item, or was silent for `timeout`.
    """

    def __init__(self, address: str, *, timeout: float, state_id: int | None = None):
        self._address, self._timeout = address, timeout
        self._connection = Connection(address)
        self._state_id = self._connection.info(timeout).state_id if state_id is None else state_id
        self._pending: deque[_Pending] = deque()
        self._pending_bytes = 0
        self.acknowledged = 0
        self._lost_since: float | None = None  # until an item is acknowledged again
        self._call = _Call(self._connection.channel)

    def send(self, request: Request) -> None:
        """Sends a request; waits where too much is unacknowledged."""
        self._pending.append(_Pending(request))
        self._pending_bytes += request.size
        self._call.send(request)
        while self._pending_bytes > WINDOW_BYTES and len(self._pending) > 1:
            # Until half of it is acknowledged, so that few calls are needed.
            self._settle(self._call.sent - self._newer_half())

    def flush(self, timeout: float | None = None) -> None:
        """Waits until everything sent is acknowledged.

        Args:
          timeout: seconds without progress; that of the stream by default.
        """
        while self._pending:
            self._settle(self._call.sent, timeout)

    def close(self) -> None:
        """Ends the stream and the connection; does not wait, so `flush` first."""
        self._call.cancel()
        self._connection.close()

    def _newer_half(self) -> int:
        """Items of the newer half of what is pending."""
        items, size = 0, 0
        for pending in reversed(self._pending):
            size += pending.request.size
            if size > WINDOW_BYTES // 2:
                break
            items += len(pending.request.keys)
        return items

    def _settle(self, target: int, timeout: float | None = None) -> None:
        """Waits until the call has acknowledged `target` items (and one more than before), and forgets what is done."""
        timeout = self._timeout if timeout is None else timeout
        target = min(max(target, self._call.acknowledged + 1), self._call.sent)
        lost = self._call.wait(target, timeout)
        self._forget(self._call.take())
        if lost is not None:
            self._reconnect(lost, timeout)
        elif self._call.acknowledged < target:
            raise NotVerifiedError(
                f"{self._address}: no item acknowledged for {timeout:g} s, and {self._unacknowledged():,} are still "
                "to be. The server hangs, or its table's rate limiter blocks until somebody samples; mend that and "
                "run again: under the same keys nothing is written twice"
            )

    def _forget(self, keys: Keys) -> None:
        """Takes these keys as acknowledged, and drops the requests that are done."""
        if not len(keys):
            return
        self._lost_since = None
        sent = np.concatenate([pending.keys for pending in self._pending])
        # They come in the order in which they were sent, unless a table had to wait.
        there = np.arange(len(sent)) < len(keys) if np.array_equal(sent[: len(keys)], keys) else np.isin(sent, keys)
        bounds = np.cumsum([len(pending.keys) for pending in self._pending])[:-1]
        for pending, done in zip(self._pending, np.split(there, bounds), strict=True):
            pending.keys = pending.keys[~done]
        for pending in self._pending:
            if not len(pending.keys):
                self.acknowledged += len(pending.request.keys)
                self._pending_bytes -= pending.request.size
        self._pending = deque(pending for pending in self._pending if len(pending.keys))

    def _unacknowledged(self) -> int:
        return sum(len(pending.keys) for pending in self._pending)

    def _reconnect(self, lost: grpc.RpcError, timeout: float) -> None:
        """Makes the call again, if the server is still the one that it was."""
        if lost.code() not in _LOST:
            raise NotVerifiedError(
                f"{self._address} refused an item: {lost.details()}; what was written before is there, "
                "and under the same keys is not written twice when you run again"
            )
        self._call.cancel()
        self._lost_since = self._lost_since or time.monotonic()
        deadline, cause = self._lost_since + timeout, lost
        while time.monotonic() < deadline:
            time.sleep(_RETRY_SECONDS)
            try:
                state_id = self._connection.info(max(_RETRY_SECONDS, deadline - time.monotonic())).state_id
                break
            except ServerError as error:
                cause = error
        else:
            raise NotVerifiedError(
                f"{self._address}: the connection was lost and did not come back within {timeout:g} s, or broke again "
                f"before an item was through ({lost.details()}); run again when the server is up: under the same keys "
                "nothing is written twice"
            ) from cause
        if state_id != self._state_id:
            raise NotVerifiedError(
                f"{self._address} was restarted while items were written: those that it had acknowledged are gone, "
                "unless a checkpoint held them. Run again: under the same keys nothing is written twice"
            )
        self._call = _Call(self._connection.channel)
        for pending in self._pending:
            pending.keys = pending.request.keys  # all of it is acknowledged once more
            self._call.send(pending.request)


class _Pending:
    """A request, and the keys of its that are not acknowledged yet."""

    def __init__(self, request: Request):
        self.request, self.keys = request, request.keys


class _Call:
    """One InsertStream call: requests out of a queue, acknowledgements into a list.

    Attributes:
      sent, acknowledged: items, of this call.
    """

    def __init__(self, channel: grpc.Channel):
        self.sent = self.acknowledged = 0
        self._queue: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._responses: list[bytes] = []
        self._error: grpc.RpcError | None = None
        stream = channel.stream_stream(METHOD)
        self._rpc = stream(self._requests(), wait_for_ready=True)
        threading.Thread(target=self._read, name="reverb-acknowledgements", daemon=True).start()

    def send(self, request: Request) -> None:
        self.sent += len(request.keys)
        self._queue.put(request)

    def wait(self, target: int, timeout: float) -> grpc.RpcError | None:
        """Until `target` items are acknowledged, the call fails, or `timeout` seconds pass without progress."""
        with self._changed:
            while self.acknowledged < target and self._error is None:
                before = self.acknowledged
                if not self._changed.wait(timeout) and self.acknowledged == before:
                    return None
            return self._error if self.acknowledged < target else None

    def take(self) -> Keys:
        """The keys acknowledged since the last `take`."""
        with self._changed:
            responses, self._responses = self._responses, []
        return acknowledged(responses)

    def cancel(self) -> None:
        self._queue.put(None)
        self._rpc.cancel()

    def _requests(self) -> Iterator[bytes]:
        """What is to be sent. Requests that wait go as one message, which costs what each of them would have."""
        while (request := self._queue.get()) is not None:
            parts, last, size = [*request.parts], request, request.size
            while size < MESSAGE_BYTES and not self._queue.empty():  # nobody else takes from it
                request = self._queue.get()
                if request is None:
                    break
                parts += request.parts
                last, size = request, size + request.size
            yield b"".join([*parts, last.keep])
            if request is None:
                return

    def _read(self) -> None:
        error: grpc.RpcError | None = None
        try:
            for response in self._rpc:
                with self._changed:
                    self._responses.append(response)
                    self.acknowledged += acknowledged_count(response)
                    self._changed.notify_all()
        except grpc.RpcError as failure:
            error = failure
        with self._changed:
            self._error = error or _Ended()
            self._changed.notify_all()


class _Ended(grpc.RpcError):
    """The server ended the call without an error."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "the server ended the stream"
