"""A dataset repository on the Hub, for writing: the API of `huggingface_hub`, with our retries and errors."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from rlds_beam import storage
from rlds_beam.buckets.hub import Hub, NoSuchRepository, NoSuchRevision, limit_answers
from rlds_beam.buckets.hub_paths import hub_path
from rlds_beam.errors import BucketAccessError, UsageError, needs
from rlds_beam.text import without_secrets

DEFAULT_BRANCH = "main"
_BLOCK = 1 << 20


class RemoteFile(NamedTuple):
    """A file on the Hub: its size, and its SHA-256 (a large file) or the id of its git blob."""

    size: int
    checksum: str


class FileToSend(NamedTuple):
    """A file to send.

    Attributes:
      name: its path in the repository.
      content: its path on this machine, or its bytes.
      size: its size in bytes.
      checksum: its checksum in the manifest; empty if that has none.
    """

    name: str
    content: str | bytes
    size: int
    checksum: str = ""

    def equals(self, remote: RemoteFile | None) -> bool:
        """Whether the Hub has this content; reads the file only if the sizes are equal."""
        if remote is None or remote.size != self.size:
            return False
        is_large = len(remote.checksum) == 64
        digest = hashlib.sha256() if is_large else hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)
        if isinstance(self.content, bytes):
            digest.update(self.content)
        else:
            with storage.open_read(self.content) as file:
                while block := file.read(_BLOCK):
                    digest.update(block)
        return digest.hexdigest() == remote.checksum


def find_branch(destination: str, revision: str, tag: str | None) -> tuple[str, str]:
    """The repository and the branch of a destination.

    Raises:
      UsageError: it names a path in the repository, or another branch than `revision`; or a name is not allowed.
    """
    place = hub_path(destination)
    if place.name:
        raise UsageError(f"{destination}: an output fills a whole repository: leave out /{place.name}")
    if place.revision is not None and revision not in (DEFAULT_BRANCH, place.revision):
        raise UsageError(f"{destination} and --revision={revision} name two branches")
    path = f"hf://datasets/{place.repo}"
    for name in (place.revision or revision, *([] if tag is None else [tag])):
        hub_path(f"{path}@{quote(name, safe='')}")
    return path, place.revision or revision


class Repository:
    """A repository and the branch to write to.

    Attributes:
      path: the repository: `hf://datasets/USER/NAME`.
      branch: the branch.

    Raises:
      MissingExtraError: `huggingface_hub` is not installed.
      BucketAccessError: there is no token.
    """

    def __init__(self, path: str, branch: str):
        with needs("hub", "publishing on the Hugging Face Hub needs huggingface_hub"):
            import huggingface_hub
            from huggingface_hub.utils import disable_progress_bars, logging
        self.path, self.branch, self._repo = path, branch, hub_path(path).repo
        self._hub = Hub()
        if not self._hub.signed_in:
            raise BucketAccessError(f"{path}: publishing needs a token: run 'hf auth login', or set HF_TOKEN")
        logging.set_verbosity_error()
        disable_progress_bars()
        limit_answers(huggingface_hub.utils.get_session())
        self._api = huggingface_hub.HfApi(endpoint=self._hub.endpoint, library_name="rlds-beam")
        self._here: dict[str, Any] = {"repo_id": self._repo, "repo_type": "dataset"}

    @property
    def url(self) -> str:
        """Its page."""
        return without_secrets(f"{self._hub.endpoint}/datasets/{self._repo}")

    def about(self) -> Mapping[str, Any] | None:
        """The Hub's description of the repository; None if this token can see none."""
        try:
            return self._hub.describe(self.path)
        except NoSuchRepository:
            return None

    def head(self) -> str | None:
        """The commit of the branch; None if there is no such branch."""
        try:
            return hub_path(self._hub.pin(f"{self.path}@{quote(self.branch, safe='')}")).revision
        except NoSuchRevision:
            return None

    def at(self, commit: str) -> str:
        """The path of a commit, for reading."""
        return hub_path(self.path).at(commit)

    def files(self, commit: str) -> dict[str, RemoteFile]:
        """The files of a commit."""
        found = self._hub.entries(f"{self.at(commit)}/", below=True)
        return {hub_path(match.path).name: RemoteFile(match.size or 0, match.checksum) for match in found}

    def create(self, private: bool) -> None:
        """Creates the repository."""
        self._hub.calling(self.path, lambda: self._api.create_repo(**self._here, private=private, exist_ok=True))

    def create_branch(self) -> None:
        """Creates the branch from the default branch."""
        self._hub.calling(self.path, lambda: self._api.create_branch(**self._here, branch=self.branch, exist_ok=True))

    def commit(self, message: str, files: Sequence[FileToSend], deleted: Sequence[str]) -> str:
        """Sends files and makes one commit; returns it. Large files that the Hub has are not sent again."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        added, tried = [CommitOperationAdd(file.name, file.content) for file in files], False

        def send() -> Any:
            nonlocal tried
            left, tried = self._list_remaining(deleted) if tried else deleted, True
            operations: list[Any] = [*(CommitOperationDelete(name, is_folder=False) for name in left), *added]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about cards without metadata
                return self._api.create_commit(
                    **self._here, operations=operations, commit_message=message, revision=self.branch
                )

        size = sum(file.size for file in files)
        return self._hub.checked_commit(self.path, {"sha": self._hub.calling(self.path, send, size).oid})

    def _list_remaining(self, names: Sequence[str]) -> list[str]:
        """The files that still exist; the answer to an earlier attempt may have been lost."""
        head = self.head() if names else None
        return [] if head is None else sorted(self.files(head).keys() & {*names})

    def tag(self, name: str, commit: str) -> None:
        """Puts a tag on a commit; moves it if it exists."""
        call, here = self._hub.calling, self._here
        refs = call(self.path, lambda: self._api.list_repo_refs(**here))
        there = {tag.name: tag.target_commit for tag in refs.tags}
        if there.get(name) == commit:
            return
        if name in there:
            call(self.path, lambda: self._api.delete_tag(**here, tag=name))
        call(self.path, lambda: self._api.create_tag(**here, tag=name, revision=commit, exist_ok=True))
