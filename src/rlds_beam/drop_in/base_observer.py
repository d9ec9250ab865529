"""The common base of the drop-in observers (see `rlds_beam.reverb_observers`)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlds_beam.drop_in.frame_writer import FrameWriter, KeySequence
from rlds_beam.drop_in.nests import NestedFrames
from rlds_beam.episodes.schema import LAST
from rlds_beam.reverb.stream import InsertStream

DEFAULT_TIMEOUT = 60.0
"""The default timeout in seconds."""


class Observer:
    """The base of the observers; checks the arguments that they share."""

    def __init__(
        self,
        py_client: Any,
        table_name: str | Sequence[str],
        priority: float,
        item_length: int | None,
        kind: str,
        *,
        timeout: float,
        key_seed: int | str | None,
        chunk_length: int | None,
    ):
        if not timeout > 0:
            raise ValueError(f"`timeout` must be positive, not {timeout}.")
        if chunk_length is not None and chunk_length < 1:
            raise ValueError(f"`chunk_length` must be at least 1, not {chunk_length}.")
        self._py_client = py_client
        self._table_names = [table_name] if isinstance(table_name, str) else table_name
        self._priority = priority
        self._timeout, self._chunk_length, self._item_length = timeout, chunk_length, item_length
        self._keys = KeySequence(key_seed, self._table_names, kind)
        self._cached_steps = 0
        self._writer: FrameWriter | None = self._new_writer()

    def _new_writer(self) -> FrameWriter:
        return FrameWriter(
            self._open_stream,
            self._table_names,
            self._keys,
            item_length=self._item_length,
            chunk_length=self._chunk_length,
        )

    def _open_stream(self) -> InsertStream:
        address = getattr(self._py_client, "server_address", None)
        if not isinstance(address, str):
            raise TypeError(
                "`py_client` must be a reverb.Client or have its `server_address` (a str, host:port), because items "
                f"are sent there directly. Got {type(self._py_client).__name__}."
            )
        return InsertStream(address, timeout=self._timeout)

    def _get_writer(self) -> FrameWriter:
        if self._writer is None:
            raise ValueError("Could not obtain writer from py_client.")
        return self._writer

    @property
    def py_client(self) -> Any:
        """The reverb.Client given to the observer."""
        return self._py_client

    def get_table_signature(self) -> Any:
        """Returns the signature of the first table, a nest of tf.TensorSpec (or None).

        Raises:
          reverb.errors.DeadlineExceededError: the server does not answer within `timeout`.
        """
        return self._py_client.server_info(timeout=math.ceil(self._timeout))[self._table_names[0]].signature

    def flush(self) -> None:
        """Waits until all items are in their tables.

        Raises:
          NotVerifiedError: they are not there within `timeout`, or cannot arrive anymore.
          ServerError: the server cannot be reached.
          ValueError: the observer is closed.
        """
        self._get_writer().flush()

    def close(self) -> None:
        """Sends complete items, waits for them like `flush`, and closes the connection. Drops cached steps."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            try:
                writer.flush()
            finally:
                writer.close()

    def open(self) -> None:
        """Reopens a closed observer; does nothing if it is open."""
        if self._writer is None:
            self._writer = self._new_writer()

    def reset(self, write_cached_steps: bool = True) -> None:
        """Ends the current episode and waits until its items are in their tables.

        Args:
          write_cached_steps: whether to write the steps since the last item first (see the observer's class), or drop
            them.

        Raises:
          ValueError: there are too few steps for an item.
          NotVerifiedError: the items are not in the table within `timeout`.
        """
        self._reset(write_cached_steps)
        if self._writer is not None:
            self._writer.flush()

    def _reset(self, write_cached_steps: bool) -> None:
        raise NotImplementedError

    @contextlib.contextmanager
    def _send_together(self) -> Iterator[None]:
        """Sends the items written inside at the end, in as few messages as possible, even after an error."""
        try:
            yield
        finally:
            if self._writer is not None:
                self._writer.send()

    def _end_episode(self) -> None:
        self._cached_steps = 0
        if self._writer is None:
            self.open()
        else:
            self._writer.end_episode()


def is_boundary(trajectory: Any) -> bool:
    """Whether a frame is the last one of its episode."""
    return bool(np.asarray(trajectory.step_type) == LAST)


def episodes(run: NestedFrames, step_type: Any) -> Iterator[tuple[NestedFrames, bool]]:
    """Cuts the run after each boundary frame; yields the pieces, and whether each ends with a boundary."""
    begin = 0
    for end in (np.flatnonzero(np.asarray(step_type) == LAST) + 1).tolist():
        yield run[begin:end], True
        begin = end
    if begin < len(run):
        yield run[begin:], False
