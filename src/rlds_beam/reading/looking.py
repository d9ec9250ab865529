"""Look at the names in directories while a path is recognized: each directory is listed once."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from rlds_beam import storage

_listed: contextvars.ContextVar[dict[str, tuple[str, ...]] | None] = contextvars.ContextVar("listed", default=None)


@contextlib.contextmanager
def listing_once() -> Iterator[None]:
    """Within the block, `names_in` lists each directory once: in a bucket, a listing is a request."""
    before = _listed.set({} if _listed.get() is None else _listed.get())
    try:
        yield
    finally:
        _listed.reset(before)


def names_in(path: str) -> tuple[str, ...]:
    """The names in a directory, sorted; none if it is missing, unreadable, or not a directory."""
    known = _listed.get()
    if known is not None and path in known:
        return known[path]
    try:
        names = tuple(storage.listdir(path))
    except OSError:
        names = ()
    if known is not None:
        known[path] = names
    return names


def names_below(path: str, *names: str) -> tuple[str, ...]:
    """The names in the directory `path/name/name`; lists it only if its parents have it."""
    for name in names:
        if name not in names_in(path):
            return ()
        path = storage.join(path, name)
    return names_in(path)
