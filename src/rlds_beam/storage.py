"""Files by path: local ones by `os`, and those with a scheme by `remote`, which is imported when the first is used.

Local files raise the usual `OSError`s; a store raises `BucketError`, or `FileNotFoundError` for a missing file.
"""

from __future__ import annotations

import contextlib
import errno
import glob as _glob
import io
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, BinaryIO, TypeVar, cast

from rlds_beam.errors import UsageError
from rlds_beam.naming import is_file_path

if TYPE_CHECKING:
    from rlds_beam.remote import Bucket, Entry, Filesystem, Store

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")
_POINTER, _MAX_POINTER = b"version https://git-lfs.github.com/spec/", 1024  # how a pointer of Git LFS begins; bytes
SMALL = 64 << 20  # the largest allowed metadata file in bytes
_AT_ONCE = 32  # concurrent requests to a store, which mostly wait

Stamp = tuple[int, int, int, int]
"""Inode, size, mtime, and ctime. A program cannot set ctime, so equal stamps mean equal content, even if a replaced
file has the old mtime."""

Input = TypeVar("Input", str, Sequence[str])
Value = TypeVar("Value")
Result = TypeVar("Result")


def scheme(path: str) -> str | None:
    """The scheme of a remote path (`gs`); None for a local path."""
    match = _SCHEME.match(path) if "://" in path else None
    return match[1] if match else None


def _store(path: str) -> Store:
    from rlds_beam import remote

    return remote.open_store(path)


def _bucket(path: str) -> Bucket:
    refuse_read_only(path, "file")
    return cast("Bucket", _store(path))


def pin(input: Input) -> Input:
    """An input with the current commit in each of its `hf://` paths, so that all later reads see the same files."""
    paths = [cast("Filesystem", _store(path)).pin(path) if scheme(path) == "hf" else path for path in paths_in(input)]
    return ",".join(paths) if isinstance(input, str) else paths


def refuse_read_only(path: str, flag: str) -> None:
    """Raises UsageError if nothing can be written to the path's store."""
    if scheme(path) not in (None, "s3", "gs", "az"):
        raise UsageError(
            f"{flag}={path}: only local files, s3://, gs://, and az:// can be written to; "
            "'rlds-beam upload' publishes a directory on the Hub"
        )


def open_read(path: str) -> BinaryIO:
    """Opens a file for reading its raw bytes (never decompressed); the result is seekable.

    Raises:
      OSError: it cannot be opened, or it is only a pointer of Git LFS.
    """
    if scheme(path) is not None:
        from rlds_beam.remote import Reader

        return io.BufferedReader(Reader(path), 128 << 10)
    file = open(path, "rb")  # noqa: SIM115 (its caller closes it)
    if os.fstat(file.fileno()).st_size < _MAX_POINTER and file.peek(1).startswith(_POINTER):
        file.close()
        raise OSError(errno.EINVAL, "it is only a pointer of Git LFS; fetch the file with 'git lfs pull'", path)
    return file


def exists(path: str) -> bool:
    """Whether a file or a (local) directory of this name exists."""
    return os.path.exists(path) if scheme(path) is None else _find(path) is not None


def size(path: str) -> int:
    """The size of a file in bytes."""
    return os.path.getsize(path) if scheme(path) is None else _store(path).info(path).size or 0


def stamp(path: str) -> Stamp | None:
    """The stamp of a local file, which changes with its content; None for a missing file or an object."""
    if scheme(path) is not None:
        return None
    try:
        status = os.stat(path)
    except OSError:
        return None
    inode = status.st_ino & (1 << 63) - 1  # network file systems use all 64 bits, and stamps are kept as int64
    return inode, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def checksum(path: str) -> str:
    """What a store says changes with a file's content: its entity tag, or on the Hub its hash. Reads no content."""
    return _store(path).info(path).checksum


def glob(pattern: str, directory: str = "") -> dict[str, int]:
    """The files that match a user's pattern (`*`, `?`, `[...]`), sorted, and their sizes.

    In a bucket, the listing has the sizes, and `**` matches slashes.

    Args:
      pattern: a path, relative to `directory` if given. If a file has exactly this name, it is the only match.
      directory: a literal prefix; its characters are never wildcards.
    """
    if scheme(directory or pattern) is None:
        if directory:
            paths = [os.path.join(directory, name) for name in _glob.glob(pattern, root_dir=directory)]
        else:
            paths = [pattern] if os.path.isfile(pattern) else _glob.glob(pattern)
        return {path: os.path.getsize(path) for path in sorted(paths) if os.path.isfile(path)}
    root = f"{directory.rstrip('/')}/" if directory else ""
    prefix = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    if (prefix == pattern or not directory) and (entry := _find(root + pattern)) is not None:
        return {entry.path: entry.size or 0}
    if prefix == pattern:
        return {}
    from fsspec.utils import glob_translate

    try:
        expression = re.compile(re.escape(root) + glob_translate(pattern))
    except ValueError as error:
        raise UsageError(f"{root}{pattern}: {error}") from None
    parent = (root + prefix).rpartition("/")[0]
    entries = _store(parent).list(parent, "/" in pattern[len(prefix) :] or "**" in pattern)
    return {e.path: e.size for e in sorted(entries) if e.size is not None and expression.fullmatch(e.path)}


def _find(path: str) -> Entry | None:
    """A remote file; None if there is none of this name."""
    with contextlib.suppress(FileNotFoundError):
        return None if path.endswith("/") or path.count("/") < 3 else _store(path).info(path)
    return None


def listdir(path: str) -> list[str]:
    """The names of the files and directories in a directory, sorted; empty if it is missing."""
    if scheme(path) is None:
        return sorted(os.listdir(path)) if os.path.isdir(path) else []
    return [split(entry.path)[1] for entry in sorted(_store(path).list(path, below=False))]


def sizes(directory: str, below: bool = False) -> dict[str, int]:
    """The size of each file in a directory, or `below` it, by its path relative to it, sorted; links are followed."""
    if scheme(directory) is not None:
        start = len(directory.rstrip("/")) + 1
        files = sorted(_store(directory).list(directory, below))
        return {file.path[start:]: file.size for file in files if file.size is not None}
    found = {}
    for parent, folders, names in os.walk(directory):
        prefix = "" if parent == directory else f"{os.path.relpath(parent, directory)}/"
        for name in names:
            with contextlib.suppress(OSError):  # a worker renamed its temporary file, or a link leads nowhere
                found[prefix + name] = os.path.getsize(os.path.join(parent, name))
        if not below:
            folders.clear()
    return dict(sorted(found.items()))


def at_once(function: Callable[[Value], Result], values: Sequence[Value], path: str) -> list[Result]:
    """Maps a function over values, in order; in several threads if `path`, any of those it accesses, is remote."""
    if scheme(path) is None or len(values) < 2:
        return [function(value) for value in values]
    with ThreadPoolExecutor(min(_AT_ONCE, len(values))) as pool:
        return list(pool.map(function, values))


def rename(source: str, destination: str) -> None:
    """Renames a file in the same store, replacing the destination; locally atomic."""
    if scheme(source) is None:
        os.replace(source, destination)
    elif source != destination:
        _bucket(source).rename(source, destination)


def makedirs(path: str) -> None:
    """Creates a local directory and its parents if needed; a remote store has no directories."""
    if scheme(path) is None:
        os.makedirs(path or ".", exist_ok=True)


def remove_files(directory: str, names: Iterable[str]) -> None:
    """Removes the named files in a directory or below it (`name/name`); missing ones are ignored.

    Raises:
      UsageError: a name leads out of the directory (`below`); nothing was removed.
    """

    def remove(path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            if scheme(path) is None:
                os.remove(path)
            else:
                _bucket(path).delete(path)

    at_once(remove, [below(directory, name) for name in names], directory)


def remove_leftovers(directory: str) -> None:
    """Removes the temporary files of killed writers from a directory and those below it."""
    remove_files(directory, [path for path in sizes(directory, below=True) if is_temporary(split(path)[1])])


def remove_empty(directory: str) -> None:
    """Removes a local directory if it is empty; a remote store has no directories."""
    with contextlib.suppress(OSError):
        os.rmdir(directory)


def rmtree(path: str) -> None:
    """Removes a directory and its content, if it exists."""
    if scheme(path) is not None:
        remove_files(path, sizes(path, below=True))
    elif os.path.isdir(path):
        shutil.rmtree(path)


def below(directory: str, *names: str) -> str:
    """The path of a file or directory below `directory`; used for everything written, renamed, or removed there.

    Args:
      directory: the directory; it may be a link and may lead through links.
      names: names or relative paths (`name/name`).

    Raises:
      UsageError: a name is absolute or contains `..`, or a directory on the way is a link that leads out.
    """
    for name in names:
        if not is_file_path(name):
            raise UsageError(f"{name!r} is not the name of a file below {directory}: nothing was written there")
    path = join(directory, *names)
    if scheme(directory) is None:
        root, parent = os.path.realpath(directory), os.path.realpath(os.path.dirname(path) if names else directory)
        if os.path.commonpath([root, parent]) != root:
            raise UsageError(f"{path}: a directory on the way is a link that leads out of {directory}: remove the link")
    return path


join, split = os.path.join, os.path.split  # URLs have the separators of paths


def isdir(path: str) -> bool:
    """Whether `path` is a directory (in a remote store: whether it has files below it)."""
    return os.path.isdir(path) if scheme(path) is None else bool(_store(path).list(path, below=False))


def read_small(path: str) -> bytes:
    """The bytes of a metadata file.

    Raises:
      UsageError: it is larger than `SMALL`.
      OSError: it cannot be opened or read.
    """
    with open_read(path) as file:
        content = file.read(SMALL + 1)
    if len(content) > SMALL:
        raise UsageError(f"{path} is larger than {SMALL >> 20} MB, so it is not metadata")
    return content


def read_text(path: str) -> str:
    """The text of a metadata file, or of one that a user names.

    Raises:
      UsageError: it cannot be read, is too large (`read_small`), or is not UTF-8.
    """
    try:
        return read_small(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: {error.reason} at byte {error.start:,}") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error


def temporary_name(path: str) -> str:
    """A unique name next to a local file, which is written under it and then renamed."""
    directory, name = split(path)
    return join(directory, f".{name}.{uuid.uuid4().hex[:8]}.tmp")


def is_temporary(name: str) -> bool:
    """Whether a file of this name was left by a killed writer."""
    return _TEMPORARY.fullmatch(name) is not None


def write_text(path: str, text: str) -> None:
    """Writes a small text file; locally, atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str, content: bytes) -> None:
    """Writes a small file; locally, atomically."""
    with writing(path) as file:
        file.write(content)


@contextlib.contextmanager
def writing(path: str) -> Iterator[BinaryIO]:
    """Writes a file that appears when the block ends, in a directory made if needed; not if the block raises."""
    if scheme(path) is not None:
        bucket = _bucket(path)
        with tempfile.TemporaryFile() as upload:
            yield upload
            upload.seek(0)
            bucket.write(path, upload)
        return
    temporary = temporary_name(path)
    makedirs(split(path)[0])
    try:
        with naming(path), open(temporary, "xb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Adds the file to an OSError that names none, for example from writing to a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, path) from error


def sync(directory: str) -> None:
    """Flushes a local directory and its files to the disk; a remote store does so when a file is closed."""
    if scheme(directory) is not None:
        return
    for parent, _, names in os.walk(directory):
        files = [path for name in names if stat.S_ISREG(os.lstat(path := os.path.join(parent, name)).st_mode)]
        for path in (*files, parent):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def paths_in(input: str | Sequence[str]) -> list[str]:
    """The paths and patterns of an input: a list, or a text that separates them by commas.

    A text that names something on this machine is one path, whatever commas it has.
    """
    if not isinstance(input, str):
        return list(input)
    return [input] if os.path.exists(input) or _glob.glob(input) else input.split(",")


def is_inside(path: str, directory: str) -> bool:
    """Whether a path is a directory or below it; links of local paths are followed."""
    if scheme(path) != scheme(directory):
        return False
    if scheme(path) is None:
        path, directory = os.path.realpath(path), os.path.realpath(directory)
    return path.rstrip("/") == directory.rstrip("/") or path.startswith(directory.rstrip("/") + "/")
