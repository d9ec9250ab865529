"""Sends large values between the processes of a job as names of files."""

from __future__ import annotations

import pickle
import uuid
from typing import Any, Generic, TypeVar

from rlds_beam import storage

Value = TypeVar("Value")


class Shared(Generic[Value]):
    """A value that is pickled as the name of a file.

    Beam holds several copies of each value that it sends from one process to another.

    Args:
      value: the value.
      directory: a directory that all workers share, and that outlives the value. None pickles the value itself.
    """

    def __init__(self, value: Value, directory: str | None = None):
        self._value, self._directory, self._path = value, directory, ""

    @property
    def value(self) -> Value:
        """The value; read from its file each time, once it has been pickled."""
        if not self._path:
            return self._value
        with open(self._path, "rb") as file:
            value: Value = pickle.load(file)
        return value

    def __getstate__(self) -> dict[str, Any]:
        if self._directory is not None and not self._path:
            path = storage.below(self._directory, f"{uuid.uuid4().hex}.pickle")
            storage.write_bytes(path, pickle.dumps(self._value, pickle.HIGHEST_PROTOCOL))
            self._path = path
            del self._value
        return self.__dict__
