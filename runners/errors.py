"""Errors for the user, from what failed in a worker of any runner."""

from __future__ import annotations

import re

import rlds_beam.errors
from rlds_beam.errors import DiskError, OutOfMemoryError, RldsBeamError
from rlds_beam.user_functions import describe_error, is_users

_OURS = re.compile(r"rlds_beam\.errors\.(?P<name>\w+): (?P<message>[^\n]*?)(?: \[while running|\\n|\n|$)")
_ERRNO = re.compile(r"Error: \[Errno (?P<number>\d+)\] [^\n']*: '(?P<path>[^']+)'")
"""An OSError that names a file, in a worker's traceback."""
_MEMORY = re.compile(r"\b_?\w*MemoryError(: )?(?P<said>.*?)(?: \[while running|\\n|$)")
"""A MemoryError in the last line of a worker's traceback."""
_STEP = re.compile(r" \[while running '[^']*'\]")
"""What Beam adds to an error message in a step."""


class WorkerTraceback(Exception):
    """The traceback of an error in a worker process; the cause of the error that the user sees."""


def plain(error: BaseException) -> RldsBeamError:
    """The error for the user: our own errors by their class, others by their last line."""
    text = str(error)
    if isinstance(error, RldsBeamError):
        return error if not _STEP.search(text) else type(error)(_STEP.sub("", text))
    if (match := _OURS.search(text)) is not None:  # in the text of an error of Beam
        kind: type[RldsBeamError] = getattr(rlds_beam.errors, match["name"], RldsBeamError)
        return kind(match["message"])
    if (
        isinstance(error, OSError)
        and error.filename
        and (disk := DiskError.from_errno(error.errno or 0, str(error.filename)))
    ):
        return disk
    match = _ERRNO.search(text)
    if match is not None and (disk := DiskError.from_errno(int(match["number"]), match["path"])) is not None:
        return disk
    lines = [line for line in text.strip().splitlines() if line.strip()]
    memory = _MEMORY.search(lines[-1] if lines else "")
    if isinstance(error, MemoryError) or memory is not None:
        return OutOfMemoryError.from_detail(memory["said"] if memory else _STEP.sub("", text))
    if is_users(error):
        return RldsBeamError(_STEP.sub("", f"your code {describe_error(error)}"))
    return RldsBeamError(f"{type(error).__name__}: {lines[-1] if lines else error}")
