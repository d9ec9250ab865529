"""Untrusted names that become parts of paths."""

from __future__ import annotations

import re

from rlds_beam.errors import UsageError
from rlds_beam.text import shorten

_NAME = re.compile(r"[\w+-][\w.+-]*")
_NAME_BYTES = 100
"""The longest name of a dataset or split; file names contain both."""
_FILE_NAME_BYTES = 255
"""The longest file name that file systems allow."""


def format_shard_number(index: int, of: int) -> str:
    """`00003-of-00010`."""
    return f"{index:05d}-of-{of:05d}"


def shard_name(name: str, split: str, file_format: str, number: str) -> str:
    """A shard's name, as TFDS writes it: `name-train.tfrecord-00003-of-00010`."""
    return f"{name}-{split}.{file_format}-{number}"


def is_file_name(name: object) -> bool:
    """Whether `name` is a plain file name: no separator, `..`, or control character."""
    if not isinstance(name, str) or name in ("", ".", "..") or re.search(r"[/\\\x00-\x1f\x7f\ud800-\udfff]", name):
        return False
    return len(name.encode()) <= _FILE_NAME_BYTES


def is_file_path(name: object) -> bool:
    """Whether `name` is a plain relative path: `name`, `name/name`, ..."""
    return isinstance(name, str) and all(map(is_file_name, name.split("/")))


def check_name(name: object, what: str) -> str:
    """Returns `name` if it may become part of file names: a dataset or split that others named.

    Args:
      name: letters and digits of any script, `_`, `-`, `+`, and `.`; at most 100 bytes, with no leading `.`.
      what: what it names and where it was found, for the error.

    Raises:
      UsageError: the name is not allowed.
    """
    if isinstance(name, str) and _NAME.fullmatch(name) and len(name.encode()) <= _NAME_BYTES:
        return name
    raise UsageError(
        f"{what} is {shorten(repr(name), 80)}; it becomes part of file names, so it may only contain "
        f"letters, digits, _, -, +, and . (not first), at most {_NAME_BYTES} bytes"
    )


def to_name(text: str, default: str = "files") -> str:
    """Turns the name of a user's file or directory into a valid name (`check_name`), without the commit of `hf://`."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", re.sub(r"@[0-9a-f]{40}$", "", text)).lstrip(".")[:_NAME_BYTES] or default
