"""Reads the arrays of an `.npz` file by rows, without pickle, and without trusting the sizes that it claims."""

from __future__ import annotations

import contextlib
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any, BinaryIO

import numpy as np

from rlds_beam import storage
from rlds_beam.text import shorten
from rlds_beam.typing import Array

_MAX_MEMBERS = 10_000
_MAX_EXPANSION = 1032
"""Deflate cannot make more bytes of one; a member that claims more is a bomb."""
_MAX_FORTRAN_BYTES = 1 << 30
"""The largest array in Fortran order, which is read at once."""
_READ = 1 << 20
_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    tokenize.TokenError,
)


class Member:
    """An array in a file. Rows must be read in order, unless it is stored without compression.

    Attributes:
      name: its name, without `.npy`.
      dtype: its dtype.
      shape: its shape.
      stored: whether it is stored without compression.
    """

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo):
        self._archive, self._info, self._at = archive, info, 0
        self._whole: Array | None = None
        self._stream: IO[bytes] | None = None
        self.name, self.stored = info.filename.removesuffix(".npy"), info.compress_type == zipfile.ZIP_STORED
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
            raise OSError(f"{self.name} is encrypted, or not compressed as numpy does")
        if not self.stored and info.file_size > info.compress_size * _MAX_EXPANSION + 1024:
            raise OSError(f"{self.name} claims {info.file_size} bytes in {info.compress_size}: not written by numpy")
        with archive.open(info) as stream:
            self.shape, self._fortran, self.dtype = _header(stream, self.name)
            self._start = stream.tell()
        self._row = math.prod(self.shape[1:]) * self.dtype.itemsize
        if info.file_size - self._start != math.prod(self.shape) * self.dtype.itemsize:
            raise OSError(f"{self.name} has {info.file_size} bytes, which do not fit its shape {list(self.shape)}")

    def rows(self, start: int, stop: int) -> Array:
        """The rows from `start` to `stop`; text as an object array of bytes."""
        if self._fortran and len(self.shape) > 1:
            return _text(self._read_whole()[start:stop])
        data = self._bytes(start * self._row, (stop - start) * self._row)
        return _text(np.frombuffer(data, self.dtype).reshape(stop - start, *self.shape[1:]))

    def _read_whole(self) -> Array:
        if self._whole is None:
            size = math.prod(self.shape) * self.dtype.itemsize
            if size > _MAX_FORTRAN_BYTES:
                raise OSError(f"{self.name} has {size} bytes in Fortran order: save numpy.ascontiguousarray of it")
            self._whole = np.frombuffer(self._bytes(0, size), self.dtype).reshape(self.shape[::-1]).T
        return self._whole

    def _bytes(self, offset: int, size: int) -> bytes:
        """Bytes of the array. A compressed stream is read on from where it is, or again from its start."""
        if self._stream is None or offset < self._at:
            self.close()
            self._stream, self._at = self._archive.open(self._info), -self._start
        if self.stored:
            self._stream.seek(self._start + offset)
        else:
            while self._at < offset:
                self._at += len(_exactly(self._stream, min(_READ, offset - self._at), self.name))
        data = _exactly(self._stream, size, self.name)
        self._at = offset + size
        return data

    def close(self) -> None:
        """Ends reading."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _exactly(stream: IO[bytes], size: int, name: str) -> bytes:
    parts = []
    while size:
        part = stream.read(min(size, 1 << 26))
        if not part:
            raise OSError(f"{name} is cut short")
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _header(stream: Any, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    formats: Any = np.lib.format
    version = formats.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise OSError(f"{name} has .npy version {version}, which is not supported")
    read = formats.read_array_header_1_0 if version == (1, 0) else formats.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise OSError(
            f"{name} holds Python objects, which only pickle reads, and pickle can run any code: save numbers or text"
        )
    return shape, fortran, dtype


def _text(array: Array) -> Array:
    """Text as an object array of bytes; other arrays with the machine's byte order."""
    if array.dtype.kind == "S":
        return array.astype(object)
    if array.dtype.kind == "U":
        return np.array([*(str(text).encode() for text in array.reshape(-1)), None], object)[:-1].reshape(array.shape)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


@contextlib.contextmanager
def open_npz(path: str) -> Iterator[Mapping[str, Member]]:
    """The arrays of a file by name. Raises OSError if it is not an `.npz` file, is damaged, or holds Python objects."""
    with contextlib.ExitStack() as closing:
        try:
            file: BinaryIO = closing.enter_context(storage.open_read(path))
            archive = closing.enter_context(zipfile.ZipFile(file))
            infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            if not infos:
                raise OSError("it holds no arrays")
            if len(infos) > _MAX_MEMBERS:
                raise OSError(f"it holds {len(infos)} arrays, more than {_MAX_MEMBERS}")
            names = [info.filename for info in infos]
            if len(set(names)) < len(names):
                raise OSError(f"it holds two arrays named {max(names, key=names.count).removesuffix('.npy')}")
            members = {}
            for info in infos:
                member = Member(archive, info)
                closing.callback(member.close)
                members[member.name] = member
        except _ERRORS as error:
            raise OSError(f"not an .npz file, or damaged: {shorten(error)}") from error
        yield members


def damage(error: Exception) -> str:
    """The reason why a file cannot be read, in one short line."""
    return shorten(error) or type(error).__name__


UNREADABLE_NPZ = (OSError, *_ERRORS)
"""The errors of damaged files."""
