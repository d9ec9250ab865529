"""Files by path: local ones by the operating system, `gs://` and `s3://` ones by Beam's filesystems.

Beam is imported only when a path has a scheme, so the core reads local data without it. A remote
path whose filesystem is not installed is a `UsageError` that names the extra to install. Errors of
local files are the usual `OSError`s; Beam raises `BeamIOError`, which is an `OSError` as well.
"""

from __future__ import annotations

import contextlib
import errno
import glob as _glob
import importlib.util
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, TypeVar, cast

from rlds_beam import lazy
from rlds_beam.errors import Extra, UsageError, missing
from rlds_beam.naming import is_file_path

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp")
_EXTRAS: dict[str, Extra] = {"gs": "gcs", "s3": "s3"}
SMALL = 64 << 20
"""The most bytes that a file of metadata may have."""

_AT_ONCE = 32
"""Requests to a remote store at a time: most of the time of each is waiting."""

Value = TypeVar("Value")
Result = TypeVar("Result")


def scheme(path: str) -> str | None:
    """The scheme of a remote path (`gs`), None for a local path."""
    match = _SCHEME.match(path)
    return match[1] if match else None


def open_read(path: str) -> BinaryIO:
    """Opens a file for reading its raw bytes (never decompressed because of its name); seekable.

    A local path must be that of a regular file, also through links: a FIFO or a device raises OSError at once.
    """
    if scheme(path) is None:
        return open(path, "rb", opener=_open_regular)
    stored_as_is = "application/octet-stream"
    return cast(BinaryIO, _remote(path, "open", path, stored_as_is, _uncompressed()))


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # opening a FIFO would wait for a writer
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "Not a regular file", path)


def check_regular(path: str) -> None:
    """Raises OSError unless `path` is a regular file: for libraries that open local files themselves."""
    os.close(_open_regular(path, os.O_RDONLY))


def open_write(path: str) -> BinaryIO:
    """Opens a file for writing; an existing file is replaced, a link is an OSError. A local directory must exist."""
    if scheme(path) is None:
        return open(path, "wb", opener=_no_links)
    stored_as_is = "application/octet-stream"
    return cast(BinaryIO, _remote(path, "create", path, stored_as_is, _uncompressed()))


def open_update(path: str) -> BinaryIO:
    """Opens a local file for changing some of its bytes; a link is an OSError."""
    return open(path, "r+b", opener=_no_links)


def _no_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def exists(path: str) -> bool:
    """Whether there is a file or a directory of this name."""
    if scheme(path) is None:
        return os.path.exists(path)
    return bool(_remote(path, "exists", path))


def size(path: str) -> int:
    """Bytes of a file."""
    if scheme(path) is None:
        return os.path.getsize(path)
    found = _remote(path, "match", [path])[0].metadata_list
    if not found:
        raise FileNotFoundError(f"there is no file {path}")
    return int(found[0].size_in_bytes)


def checksum(path: str) -> str:
    """What a remote store says of an object's content, without reading it: its CRC32C (`gs://`) or entity tag (`s3://`)."""
    return str(_remote(path, "checksum", path))


def glob(pattern: str) -> list[str]:
    """The files that match a pattern (`*`, `?`, `[...]`), sorted; none at all is an empty list."""
    if scheme(pattern) is None:
        return sorted(path for path in _glob.glob(pattern) if os.path.isfile(path))
    return sorted(str(found.path) for found in _remote(pattern, "match", [pattern])[0].metadata_list)


def listdir(path: str) -> list[str]:
    """The names in a directory, sorted. Remote stores have no directories: only files are named there."""
    if scheme(path) is None:
        return sorted(os.listdir(path))
    return list(sizes(path))


def sizes(path: str) -> dict[str, int]:
    """The files in a directory, by name and sorted, each with its bytes: one request, however many there are."""
    if scheme(path) is None:
        with os.scandir(path) as entries:
            return dict(sorted((entry.name, entry.stat().st_size) for entry in entries if entry.is_file()))
    found = _remote(path, "match", [join(path, "*")])[0].metadata_list
    return dict(sorted((str(file.path).rsplit("/", 1)[1], int(file.size_in_bytes)) for file in found))


def at_once(function: Callable[[Value], Result], values: Sequence[Value], path: str) -> list[Result]:
    """`function` of each value, in their order; of many at a time where `path` is remote.

    Args:
      function: makes a request or two; called by several threads.
      values: of its argument.
      path: any of what it asks for.
    """
    if scheme(path) is None or len(values) < 2:
        return [function(value) for value in values]
    with ThreadPoolExecutor(min(_AT_ONCE, len(values))) as pool:
        return list(pool.map(function, values))


def rename(source: str, destination: str) -> None:
    """Moves a file over another or to a new name in the same store; locally in one atomic step."""
    if scheme(source) != scheme(destination):
        raise UsageError(f"cannot move {source} to {destination}: they are not in the same store")
    if scheme(source) is None:
        os.replace(source, destination)
    else:
        _remote(source, "rename", [source], [destination])


def makedirs(path: str) -> None:
    """Makes a directory and those above it; one that is there already is fine."""
    if scheme(path) is None:
        os.makedirs(path, exist_ok=True)
    elif not exists(path):
        _remote(path, "mkdirs", path)


def remove(path: str) -> None:
    """Removes a file; FileNotFoundError if it is not there."""
    if scheme(path) is None:
        os.remove(path)
    elif not exists(path):
        raise FileNotFoundError(f"there is no file {path}")
    else:
        _remote(path, "delete", [path])


def remove_files(directory: str, names: Iterable[str]) -> None:
    """Removes the files of these names that exist in a directory, or in directories below it (`name/name`).

    Raises:
      UsageError: a name leads out of the directory (`below`); nothing was removed.
    """
    wanted: dict[str, list[str]] = {}
    for name in names:
        if not is_file_path(name):
            raise _leads_out(directory, name)
        wanted.setdefault(name.rpartition("/")[0], []).append(name)
    for some in wanted.values():
        below(directory, some[0])  # the others are next to it
    if scheme(directory) is None:
        for path in (join(directory, name) for some in wanted.values() for name in some):
            if os.path.lexists(path):
                os.remove(path)
        return
    for parent, some in wanted.items():
        there = sizes(join(directory, parent) if parent else directory)
        if found := [join(directory, name) for name in some if name.rpartition("/")[2] in there]:
            _remote(directory, "delete", found)


def remove_empty(directory: str) -> None:
    """Removes a local directory that is empty; a remote store has no directories."""
    is_own = scheme(directory) is None and os.path.isdir(directory) and not os.path.islink(directory)
    if is_own and not os.listdir(directory):
        os.rmdir(directory)


def rmtree(path: str) -> None:
    """Removes a directory with all that is in it; nothing is done if it is not there."""
    if scheme(path) is None:
        if os.path.isdir(path):
            shutil.rmtree(path)
    elif found := glob(join(path, "**")):  # a store has no directories, and Beam deletes what it is told by name
        _remote(path, "delete", found)


def below(directory: str, *names: str) -> str:
    """The path of a file or directory below `directory`, for everything that is written, renamed or removed there.

    Args:
      directory: may be a link itself, and lead through links.
      names: each a name, or a path of names (`name/name`).

    Raises:
      UsageError: a name is absolute or holds `..`, or a directory on the way is a link that leads out.
    """
    for name in names:
        if not is_file_path(name):
            raise _leads_out(directory, name)
    path = join(directory, *names)
    if scheme(directory) is None:
        root, parent = os.path.realpath(directory), os.path.realpath(os.path.dirname(path) if names else directory)
        if os.path.commonpath([root, parent]) != root:
            raise UsageError(f"{path}: a directory on the way is a link that leads out of {directory}: remove the link")
    return path


def is_outside(directory: str, name: str) -> bool:
    """Whether a file of a directory is a link to a file elsewhere.

    In the cache of the Hugging Face hub each file of `snapshots/REVISION` is a link into `blobs` next to `snapshots`;
    those are files of the same dataset.
    """
    if scheme(directory) is not None:
        return False
    root, target = os.path.realpath(directory), os.path.realpath(join(directory, name))
    cache, of_snapshot, _ = root.rpartition("/snapshots/")
    homes = [root, *([f"{cache}/blobs"] if of_snapshot else [])]
    return not any(os.path.commonpath([home, target]) == home for home in homes)


def _leads_out(directory: str, name: object) -> UsageError:
    return UsageError(f"{name!r} is not the name of a file below {directory}: nothing was written there")


def join(path: str, *names: str) -> str:
    """`path` with names after it, in the spelling of its store."""
    if scheme(path) is None:
        return os.path.join(path, *names)
    return "/".join([path.rstrip("/"), *(name.strip("/") for name in names)])


def isdir(path: str) -> bool:
    """Whether `path` is a directory (in a remote store: whether there are files below it)."""
    return os.path.isdir(path) if scheme(path) is None else bool(glob(join(path, "*")))


def is_link(path: str) -> bool:
    """Whether `path` is a symbolic link; a remote store has none."""
    return scheme(path) is None and os.path.islink(path)


def split(path: str) -> tuple[str, str]:
    """(directory, name) of a file."""
    if scheme(path) is None:
        return os.path.split(path)
    directory, _, name = path.rpartition("/")
    return directory, name


def read_small(path: str) -> bytes:
    """The bytes of a file of metadata.

    Raises:
      UsageError: it is larger than `SMALL`, or it is a directory, a FIFO or a device.
      OSError: it cannot be opened or read.
    """
    try:
        with open_read(path) as file:
            content = file.read(SMALL + 1)
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.EINVAL):
            raise UsageError(f"{path} is not a regular file") from error
        raise
    if len(content) > SMALL:
        raise UsageError(f"{path} is larger than {SMALL >> 20} MB, so it is not metadata")
    return content


def read_text(path: str) -> str:
    """The text of a file of metadata.

    Raises:
      UsageError: as `read_small`; or it is not UTF-8.
      OSError: it cannot be opened or read.
    """
    try:
        return read_small(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: {error.reason} at byte {error.start:,}") from None


def temporary_name(path: str) -> str:
    """A temporary name in the directory of `path` that no other writer takes."""
    directory, name = split(path)
    return join(directory, f".{name}.{uuid.uuid4().hex[:8]}.tmp")


def is_temporary(name: str) -> bool:
    """Whether a file of this name is what a writer left that was killed."""
    return temporary_of(name) is not None


def temporary_of(name: str) -> str | None:
    """The name of the file that a temporary one was to become; None of any other file."""
    match = _TEMPORARY.fullmatch(name)
    return match[1] if match else None


def write_text(path: str, text: str) -> None:
    """Writes a small text file: whole, or (locally) not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str, content: bytes) -> None:
    """Writes a small file: whole, or (locally) not at all."""
    temporary = temporary_name(path)
    try:
        with naming(path), open_write(temporary) as file:
            file.write(content)
        rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            remove(temporary)
        raise


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Gives an error of the operating system the file that it is about, where it names none: writing to a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, path) from error


def sync(directory: str) -> None:
    """Writes a local directory and all that is in it through to the disk; a remote store has done so at its close."""
    if scheme(directory) is not None:
        return
    for parent, _, names in os.walk(directory):
        for path in (*(os.path.join(parent, name) for name in names), parent):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _uncompressed() -> str:
    from apache_beam.io.filesystem import CompressionTypes

    return str(CompressionTypes.UNCOMPRESSED)


def _remote(path: str, operation: str, *arguments: Any) -> Any:
    """Calls an operation of Beam's filesystem for the path; a filesystem that cannot work is a UsageError."""
    try:
        from apache_beam.io.filesystems import FileSystems

        lazy.show_clients(scheme(path))
    except ImportError as error:
        raise _not_installed(path) from error
    try:
        FileSystems.get_filesystem(path)
    except Exception as error:  # Beam raises ValueError for an unknown scheme, BeamIOError for a failed start
        raise _not_installed(path) from error
    if scheme(path) == "s3" and importlib.util.find_spec("boto3") is None:  # which Beam notices in the middle of a call
        raise _not_installed(path)
    call: Callable[..., Any] = getattr(FileSystems, operation)
    try:
        return call(*arguments)
    except (AssertionError, ImportError, ValueError) as error:
        raise _not_installed(path, str(error)) from error


def _not_installed(path: str, detail: str = "") -> UsageError:
    name = scheme(path) or ""
    why = f"cannot open {path}" + (f" ({detail})" if detail else "")
    if name in _EXTRAS:
        return missing(_EXTRAS[name], f"{why}: {name}:// needs an extra")
    known = ", ".join(f"{scheme}://" for scheme in _EXTRAS)
    return UsageError(f"{why}: there is no filesystem for {name}://; use a local path or {known}")
