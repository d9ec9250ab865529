"""`rlds-beam upload`: publishes a finished output on the Hugging Face Hub."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from rlds_beam.errors import UsageError
from rlds_beam.options import option
from rlds_beam.terminal.options import PrintOptions, print_json
from rlds_beam.text import join_lines

if TYPE_CHECKING:
    from rlds_beam.hub.repository import Repository
    from rlds_beam.hub.upload import Upload, Work

__all__ = ["UploadConfig", "UploadOutcome", "upload"]

USAGE = "OUTPUT DESTINATION"
EXAMPLES = """
    rlds-beam upload pairs hf://datasets/USER/NAME
    rlds-beam upload pairs hf://datasets/USER/NAME --private
    rlds-beam upload pairs hf://datasets/USER/NAME --dry_run
"""


@dataclasses.dataclass(frozen=True)
class UploadOutcome:
    """The result of an `upload` run.

    Attributes:
      destination: the repository: `hf://datasets/USER/NAME`.
      commit: its last commit; None for a dry run of a repository that does not exist.
      url: its page.
      files: the number of files sent.
      bytes: their size.
      unchanged: the number of files that the Hub had already.
      removed: the number of files of an earlier upload that were removed.
      tags: the tags that were set.
    """

    destination: str
    commit: str | None
    url: str
    files: int
    bytes: int
    unchanged: int
    removed: int
    tags: tuple[str, ...]

    def __str__(self) -> str:
        return join_lines(_lines(self, "uploaded"))


@dataclasses.dataclass(frozen=True)
class UploadConfig(PrintOptions):
    """Publish a finished output of convert or record on the Hugging Face Hub, with its card."""

    output: str = option(dataclasses.MISSING, "directory that convert or record wrote", positional=True)
    destination: str = option(dataclasses.MISSING, "hf://datasets/USER/NAME; it is created if needed", positional=True)
    _: dataclasses.KW_ONLY
    revision: str = option("main", "branch to write to; it is created if needed", metavar="NAME")
    private: bool = option(False, "create a private repository; refuse a public one")
    message: str = option("Upload with rlds-beam", "message of the commits", metavar="TEXT")
    tag: str | None = option(None, "a tag for the result, besides the one that LeRobot looks up", metavar="TAG")
    overwrite: bool = option(False, "replace another output that rlds-beam uploaded; files of others stay")
    dry_run: bool = option(False, "show what would be sent, and send nothing")

    def __post_init__(self) -> None:
        super().__post_init__()
        from rlds_beam import storage

        if storage.scheme(self.destination) != "hf":
            raise UsageError(f"{self.destination}: expected hf://datasets/USER/NAME")
        if not self.message.strip():
            raise UsageError("--message is empty")


def prepare(config: UploadConfig) -> tuple[Upload, Repository, Work]:
    """Finds the files to send. Sends nothing.

    Raises:
      UsageError: the output or the repository cannot be used.
      NotVerifiedError: a file of the output differs from its manifest.
    """
    from rlds_beam.hub.repository import Repository, find_branch
    from rlds_beam.hub.upload import open_upload, survey

    destination, branch = find_branch(config.destination, config.revision, config.tag)
    publication = open_upload(config.output, destination)
    repository = Repository(destination, branch)
    return publication, repository, survey(publication, repository, private=config.private, overwrite=config.overwrite)


def upload(config: UploadConfig) -> UploadOutcome:
    """Runs the job.

    Raises:
      UsageError: the output or the repository cannot be used; nothing was sent.
      NotVerifiedError: a file of the output differs from its manifest.
      BucketError: the Hub failed, or refuses this token; the same call resumes.
    """
    from rlds_beam.hub.repository import DEFAULT_BRANCH
    from rlds_beam.hub.upload import publish
    from rlds_beam.terminal.job_progress import Total, in_this_process

    publication, repository, work = prepare(config)
    loaded = publication.tags if repository.branch == DEFAULT_BRANCH else ()  # other branches are loaded by name
    tags = (*loaded, *([config.tag] if config.tag else []))
    commit: str | None = repository.head() if not work.is_new else None
    if not config.dry_run:
        with in_this_process(Total("upload", bytes=work.bytes), config.progress):
            commit = publish(publication, work, repository, config.message, private=config.private)
            for tag in tags:
                repository.tag(tag, commit)
    return UploadOutcome(
        repository.path,
        commit,
        repository.url,
        len(work.missing),
        work.bytes,
        len(publication.files) - len(work.missing),
        len(work.stale),
        tags,
    )


def main(config: UploadConfig) -> int:
    """Runs the command: prints what was sent, and returns the exit code."""
    outcome = upload(config)
    if config.json:
        print_json(dataclasses.asdict(outcome))
    elif config.progress != "none":
        print(join_lines(_lines(outcome, "would send" if config.dry_run else "uploaded")))
    return 0


def _lines(outcome: UploadOutcome, done: str) -> list[str]:
    from rlds_beam.text import count, format_size

    there = f"; {count(outcome.unchanged, 'file')} already there" if outcome.unchanged else ""
    removed = f"; {count(outcome.removed, 'old file')} removed" if outcome.removed else ""
    at = f"{outcome.destination}@{outcome.commit}" if outcome.commit else outcome.destination
    lines = [f"{done:<9} {count(outcome.files, 'file')}, {format_size(outcome.bytes)}{there}{removed}"]
    lines += [f"{'to':<9} {at}"]
    lines += [f"{'tags':<9} {', '.join(outcome.tags)}"] if outcome.tags else []
    return [*lines, f"{'page':<9} {outcome.url}"]
