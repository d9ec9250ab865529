"""Streams items to one Reverb server until all of them are acknowledged."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np

from rlds_beam.encoding.wire import MalformedError
from rlds_beam.errors import NotVerifiedError
from rlds_beam.reverb.connection import Connection, ServerError, clean_details
from rlds_beam.reverb.inserts import METHOD, Keys, Request, acknowledged_keys, count_keys, decode_keys

WINDOW_BYTES = 16 << 20
"""Maximum unacknowledged bytes, which are kept to be sent again if the connection is lost."""

MESSAGE_BYTES = 512 << 10
"""Target size of messages, into which waiting requests are joined."""

_RETRY_SECONDS = 0.2
_LOOK_SECONDS = 0.25
"""Seconds between two checks of acknowledgements during a wait."""
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN)
"""Status codes of a broken connection; every other status is the server's answer."""


class InsertStream:
    """Sends requests to a server. Not thread-safe, and not picklable.

    After a broken connection, reconnects and sends everything unacknowledged again; the keys are the same, so the
    server has each item once. A restarted server, recognized by its `state_id`, ends the stream, because the items that
    it had acknowledged are lost. The server is not trusted: only the first acknowledgment of an item that was sent
    counts as progress.

    Args:
      address: the server's `host:port`.
      timeout: the seconds that any wait, and any reconnection, may take without progress.
      state_id: the server's state ID when the job began; None requests it now.

    Attributes:
      acknowledged: the number of items that the server has acknowledged.

    Raises (every method):
      NotVerifiedError: the server was restarted, refused an item, was silent for `timeout`, or acknowledged an item
        that it was not sent.
    """

    def __init__(self, address: str, *, timeout: float, state_id: int | None = None):
        self._address, self._timeout = address, timeout
        self._connection = Connection(address)
        self._state_id = self._connection.info(timeout).state_id if state_id is None else state_id
        self._pending: deque[_Pending] = deque()
        self._count = self._pending_bytes = self._missing = 0
        self.acknowledged = 0
        self._call = _Call(self._connection.channel)

    def send(self, request: Request) -> None:
        """Sends a request; waits if too much is unacknowledged."""
        self._count += 1
        self._pending.append(_Pending(request, self._count))
        self._pending_bytes += request.size
        self._missing += len(request.keys)
        self._call.send(request, self._count)
        while self._pending_bytes > WINDOW_BYTES and len(self._pending) > 1:
            # Wait for half of it, to need fewer calls.
            self._settle(self._newer_half(), self._timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Waits until everything sent is acknowledged.

        Args:
          timeout: the seconds without progress; by default the stream's.
        """
        if self._missing:
            self._settle(0, self._timeout if timeout is None else timeout)

    @property
    def idle(self) -> bool:
        """Whether the server seems to have acknowledged everything; only `flush` verifies it."""
        return self._call.idle

    def close(self) -> None:
        """Ends the stream and the connection without waiting; call `flush` first."""
        self._call.cancel()
        self._connection.close()

    def _newer_half(self) -> int:
        """The number of unacknowledged items in the newer half of the pending bytes."""
        items, size = 0, 0
        for pending in reversed(self._pending):
            size += pending.request.size
            if size > WINDOW_BYTES // 2:
                break
            items += len(pending.missing)
        return items

    def _settle(self, leave: int, timeout: float) -> None:
        """Waits until at most `leave` items are unacknowledged, and at least one fewer than before."""
        leave = min(leave, self._missing - 1)
        deadline = time.monotonic() + timeout
        lost: Exception | None = None  # since the last progress
        while self._missing > leave:
            failure = self._call.wait(self._missing - leave, min(_LOOK_SECONDS, deadline - time.monotonic()))
            try:
                progress = self._take()
            except (MalformedError, _ProtocolError) as error:
                progress, failure = 0, error
                self._call.fail(error)
            if progress:
                deadline, lost = time.monotonic() + timeout, None
            elif failure is None and time.monotonic() >= deadline:
                raise self._give_up(timeout, lost)
            if failure is not None and self._missing > leave:
                if lost is None:
                    deadline = time.monotonic() + timeout
                lost = failure
                self._reconnect(failure, deadline, timeout)

    def _give_up(self, timeout: float, lost: Exception | None) -> NotVerifiedError:
        """The error for a wait without progress; `lost` is the error that broke the connection, if any."""
        if isinstance(lost, grpc.RpcError):
            return NotVerifiedError(
                f"{self._address}: the connection was lost and did not come back within {timeout:g} s, or broke again "
                f"before an item was acknowledged ({clean_details(lost)}); run again when the server is up: no item is "
                "written twice"
            )
        return NotVerifiedError(
            f"{self._address}: no item was acknowledged for {timeout:g} s, and {self._missing:,} are missing. The "
            "server hangs, or its table's rate limiter blocks until a client samples; remove the cause and run again: "
            "no item is written twice"
        )

    def _take(self) -> int:
        """Processes acknowledgements; returns the number of newly acknowledged items.

        Raises:
          MalformedError: a key is not a number.
          _ProtocolError: the server acknowledged an item that it was not sent.
        """
        keys = self._call.take()
        if not len(keys):
            return 0
        done = _matches(np.concatenate([pending.keys for pending in self._pending]), keys)
        before = self._missing
        bounds = np.cumsum([len(pending.keys) for pending in self._pending])[:-1]
        for pending, which in zip(self._pending, np.split(done, bounds), strict=True):
            self._missing -= pending.acknowledge(which)
            if not len(pending.missing):
                self._pending_bytes -= pending.release()
        self._pending = deque(pending for pending in self._pending if len(pending.keys))
        self.acknowledged += before - self._missing
        return before - self._missing

    def _reconnect(self, failure: Exception, deadline: float, timeout: float) -> None:
        """Repeats the call, if the server was not restarted."""
        if not isinstance(failure, grpc.RpcError):
            raise NotVerifiedError(
                f"{self._address} violates Reverb's protocol: {failure}. Its acknowledgements cannot be trusted. Check "
                "what runs there (another version of Reverb, or a proxy in between?) and run again: no item is written "
                "twice"
            ) from failure
        if failure.code() not in _LOST:
            raise NotVerifiedError(
                f"{self._address} refused an item: {clean_details(failure)}; earlier items were written, and running "
                "again does not write them twice"
            )
        self._call.cancel()
        cause: Exception = failure
        while time.monotonic() < deadline:
            time.sleep(_RETRY_SECONDS)
            try:
                state_id = self._connection.info(max(_RETRY_SECONDS, deadline - time.monotonic())).state_id
                break
            except ServerError as error:
                cause = error
        else:
            raise self._give_up(timeout, failure) from cause
        if state_id != self._state_id:
            raise NotVerifiedError(
                f"{self._address} was restarted while items were written: items that it had acknowledged are lost, "
                "unless a checkpoint held them. Run again: no item is written twice"
            )
        self._call = _Call(self._connection.channel)
        self._pending = deque(pending for pending in self._pending if len(pending.missing))
        for pending in self._pending:
            pending.keys = pending.request.keys  # all items are sent and acknowledged again
            self._call.send(pending.request, pending.number)


class _ProtocolError(Exception):
    """A server sent something that Reverb never sends."""


class _Pending:
    """A request with unacknowledged items.

    Attributes:
      request: the request.
      number: the request's number in the stream.
      keys: the keys that the current call has not acknowledged yet.
      missing: the keys that no call has acknowledged yet.
    """

    def __init__(self, request: Request, number: int):
        self.request, self.number = request, number
        self.keys = self.missing = request.keys
        self._held = request.size

    def acknowledge(self, which: np.ndarray[Any, np.dtype[np.bool_]]) -> int:
        """Marks these `keys` as acknowledged; returns how many are acknowledged for the first time."""
        before, known = len(self.missing), self.keys[which]
        again = self.missing is not self.keys
        self.keys = self.keys[~which]
        self.missing = self.missing[~np.isin(self.missing, known)] if again else self.keys
        return before - len(self.missing)

    def release(self) -> int:
        """Releases the request's bytes of the window, and returns their number."""
        held, self._held = self._held, 0
        return held


def _matches(sent: Keys, keys: Keys) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of the sent keys are acknowledged by `keys`, in any order; each of `keys` acknowledges one.

    Raises:
      _ProtocolError: a key was not sent, or is already acknowledged.
    """
    count = len(keys)
    if np.array_equal(sent[:count], keys):  # in the order sent, unless a table had to wait
        return np.arange(len(sent)) < count
    order, keys = np.argsort(sent, kind="stable"), np.sort(keys)
    ordered = sent[order]
    # Equal keys match one after the other.
    place = ordered.searchsorted(keys) + np.arange(count) - keys.searchsorted(keys)
    ours = place < len(sent)
    ours[ours] = ordered[place[ours]] == keys[ours]
    if not ours.all():
        raise _ProtocolError(f"it acknowledged an item that it was not sent, or one twice (key {keys[~ours][0]})")
    done = np.zeros(len(sent), bool)
    done[order[place]] = True
    return done


class _Call:
    """One InsertStream call: sends requests from a queue and collects acknowledgements in a list.

    A thread reads the responses; `wait` returns any error that it raised.
    """

    def __init__(self, channel: grpc.Channel):
        self._queue: queue.SimpleQueue[tuple[Request, bool] | None] = queue.SimpleQueue()
        self._last: int | None = None  # the number of the last request
        self._changed = threading.Condition()
        self._due = 0  # items sent but not acknowledged
        self._untaken: list[bytes] = []  # acknowledged keys not taken yet
        self._untaken_count = self._wanted = 0
        self._failure: Exception | None = None
        stream = channel.stream_stream(METHOD)
        self._rpc = stream(self._requests(), wait_for_ready=True)
        threading.Thread(target=self._read, name="reverb-acknowledgements", daemon=True).start()

    @property
    def idle(self) -> bool:
        return not self._due

    def send(self, request: Request, number: int) -> None:
        """Sends a request, without chunks that the server kept from the previous one if that was on this call."""
        with self._changed:
            self._due += len(request.keys)
        self._queue.put((request, self._last is None or number != self._last + 1))
        self._last = number

    def wait(self, count: int, seconds: float) -> Exception | None:
        """Waits until this many keys can be taken, the call fails, or time is up; returns the call's error."""
        with self._changed:
            self._wanted = count
            self._changed.wait_for(lambda: self._untaken_count >= count or self._failure is not None, max(0, seconds))
            return self._failure

    def take(self) -> Keys:
        """The keys acknowledged since the last `take`. Raises MalformedError if a key is not a number."""
        with self._changed:
            packed, self._untaken, self._untaken_count = self._untaken, [], 0
        return decode_keys(packed)

    def fail(self, failure: Exception) -> None:
        """Ends the call with an error, which `wait` then returns.

        Keeps the first error, except that a protocol violation replaces a lost connection: a server that sends invalid
        data and hangs up must not be called again.
        """
        with self._changed:
            breach = not isinstance(failure, grpc.RpcError)
            if self._failure is None or (breach and isinstance(self._failure, grpc.RpcError)):
                self._failure = failure
            self._changed.notify_all()
        self.cancel()

    def cancel(self) -> None:
        self._queue.put(None)
        self._rpc.cancel()

    def _requests(self) -> Iterator[bytes]:
        """Yields messages to send; joins waiting requests, because a message's cost hardly depends on its size."""
        while (taken := self._queue.get()) is not None:
            parts, size = list[bytes | memoryview](), 0
            while taken is not None:
                last, alone = taken
                parts += (*last.kept, *last.parts) if alone else last.parts
                size += last.size
                if size >= MESSAGE_BYTES or self._queue.empty():  # only this thread takes from it
                    break
                taken = self._queue.get()
            yield b"".join([*parts, last.keep])
            if taken is None:
                return

    def _read(self) -> None:
        try:
            for response in self._rpc:
                self._acknowledge(acknowledged_keys(response))
        except Exception as failure:
            self.fail(failure)
        else:
            self.fail(_Ended())

    def _acknowledge(self, packed: bytes) -> None:
        count = count_keys(packed)
        with self._changed:
            if count > self._due:
                raise _ProtocolError("it acknowledged more items than it was sent")
            self._due -= count
            if count:
                self._untaken.append(packed)
                self._untaken_count += count
            if self._untaken_count >= self._wanted:
                self._changed.notify_all()


class _Ended(grpc.RpcError):
    """The server ended the call without an error."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "the server ended the stream"
