"""Paths of the Hugging Face Hub: `hf://datasets/USER/NAME[@REVISION][/PATH]`."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from rlds_beam.errors import UsageError
from rlds_beam.naming import is_file_name
from rlds_beam.text import printable

FORM = "hf://datasets/USER/NAME[@REVISION][/PATH]"
_PREFIX = "hf://datasets/"
_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?")
"""A user's or dataset's name; the Hub allows 96 characters."""
_REVISION = re.compile(r"[A-Za-z0-9_][\w.+/-]{0,199}", re.ASCII)
_REFERENCE = re.compile(r"(refs/(?:convert/\w+|pr/\d+))(?:/(.*))?", re.ASCII | re.DOTALL)
"""The revisions with slashes that need no `%2F`, and the rest of the path."""
_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubPath(NamedTuple):
    """A path on the Hub.

    Attributes:
      repo: `USER/NAME`.
      revision: a branch, tag, or commit; None for the default branch.
      name: the path in the repository; empty for its root.
      root: the path of the repository as it was written: `hf://datasets/USER/NAME@REVISION`.
    """

    repo: str
    revision: str | None
    name: str
    root: str

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, so that the files never change."""
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None

    def at(self, commit: str) -> str:
        """The same path at a commit."""
        return f"{_PREFIX}{self.repo}@{commit}" + (f"/{self.name}" if self.name else "")


def hub_path(path: str) -> HubPath:
    """Parses a path.

    Raises:
      UsageError: it has another form, or contains `..` or control characters.
    """
    user, _, rest = path.removeprefix(_PREFIX).partition("/")
    repo, at, rest = rest.partition("@") if "@" in rest.partition("/")[0] else (rest, "", "")
    if at:
        special = _REFERENCE.fullmatch(rest)
        written, name = (special[1], special[2] or "") if special else rest.partition("/")[::2]
    else:
        repo, _, name = repo.partition("/")
        written = ""
    revision = unquote(written) if at else None
    parts = name.rstrip("/").split("/") if name.strip("/") else []
    if not (path.startswith(_PREFIX) and all(_is_part(part) for part in (user, repo))):
        raise UsageError(f"{printable(path)}: expected {FORM}")
    if revision is not None and (_REVISION.fullmatch(revision) is None or ".." in revision or revision.endswith("/")):
        raise UsageError(
            f"{printable(path)}: {printable(revision)!r} is not the name of a branch, a tag, or a commit: "
            f"expected {FORM}"
        )
    if not all(is_file_name(part) for part in parts):
        raise UsageError(f"{printable(path)}: a path on the Hub may not contain '..', '.', '//', or control characters")
    return HubPath(f"{user}/{repo}", revision, name, f"{_PREFIX}{user}/{repo}{at}{written}")


def _is_part(name: str) -> bool:
    return _PART.fullmatch(name) is not None and ".." not in name and "--" not in name and not name.endswith(".git")
