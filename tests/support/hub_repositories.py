"""The repositories of `hub_server`: files, commits, branches, and tags in memory; and the responses about them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from typing import Any

from bucket_faults import Answer

REGULAR = 1 << 16
"""The most bytes of a file that is not a large file (LFS)."""


@dataclasses.dataclass(frozen=True)
class Blob:
    """A file."""

    content: bytes
    large: bool

    @property
    def size(self) -> int:
        return len(self.content)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def oid(self) -> str:
        """The id of the git object: of the pointer file for a large file."""
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {self.size}\n"
        content = pointer.encode() if self.large else self.content
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclasses.dataclass
class Repo:
    """A dataset repository."""

    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, Blob]] = dataclasses.field(default_factory=dict)
    messages: list[str] = dataclasses.field(default_factory=list)
    branches: dict[str, str] = dataclasses.field(default_factory=dict)
    tags: dict[str, str] = dataclasses.field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, Blob], message: str) -> str:
        content = f"{self.branches.get(branch)} {message} {sorted((n, b.oid) for n, b in files.items())}"
        oid = hashlib.sha1(content.encode()).hexdigest()
        self.commits[oid], self.branches[branch] = files, oid
        self.messages.append(message)
        return oid

    def resolve(self, revision: str) -> str | None:
        oid = self.branches.get(revision) or self.tags.get(revision) or revision
        return oid if oid in self.commits else None

    @property
    def files(self) -> dict[str, Blob]:
        return self.commits[self.branches["main"]]


class Refused(Exception):
    """A response that is not a success."""

    def __init__(self, status: int, message: str, code: str = ""):
        self.answer = json_answer({"error": message}, status, ("X-Error-Message", message), ("X-Error-Code", code))


def is_large(sample: bytes, size: int | None = None) -> bool:
    return b"\0" in sample[:512] or (len(sample) if size is None else size) > REGULAR


def json_answer(content: Any, status: int = 200, *headers: tuple[str, str]) -> Answer:
    return Answer(status, json.dumps(content).encode(), (("Content-Type", "application/json"), *headers))


def ranged(blob: Blob, headers: dict[str, str], *more: tuple[str, str]) -> Answer:
    """The response for a Range header, or the whole file."""
    wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range", ""))
    if wanted is None:
        return Answer(200, blob.content, more)
    start, stop = int(wanted[1]), min(blob.size, int(wanted[2] or blob.size) + 1)
    if start >= blob.size:
        return Answer(416, b"", (*more, ("Content-Range", f"bytes */{blob.size}")))
    return Answer(206, blob.content[start:stop], (*more, ("Content-Range", f"bytes {start}-{stop - 1}/{blob.size}")))
