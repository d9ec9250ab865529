"""`rlds-beam upload`: publishes a finished output on the Hugging Face Hub, with `huggingface_hub`."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any

from rlds_beam import storage
from rlds_beam._version import __version__
from rlds_beam.errors import BucketAccessError, BucketError, NotVerifiedError, UsageError, needs
from rlds_beam.options import option
from rlds_beam.remote import shorten_error
from rlds_beam.terminal.options import PrintOptions, print_json
from rlds_beam.text import without_secrets

__all__ = ["UploadConfig", "UploadOutcome", "upload"]

USAGE = "OUTPUT DESTINATION"
EXAMPLES = """
    rlds-beam upload pairs hf://datasets/USER/NAME --private
"""

_REPOSITORY = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)/?")


@dataclasses.dataclass(frozen=True)
class UploadOutcome:
    """The repository (`hf://datasets/USER/NAME`), its last commit, its page, and the tag that LeRobot looks up."""

    destination: str
    commit: str
    url: str
    tag: str | None

    def __str__(self) -> str:
        tag = [] if self.tag is None else [f"tag       {self.tag}"]
        return "\n".join([f"uploaded  {self.destination}@{self.commit}", *tag, f"page      {self.url}"])


@dataclasses.dataclass(frozen=True)
class UploadConfig(PrintOptions):
    """Publish a finished output of convert or record on the Hugging Face Hub."""

    output: str = option(dataclasses.MISSING, "directory that convert or record wrote", positional=True)
    destination: str = option(dataclasses.MISSING, "hf://datasets/USER/NAME; it is created if needed", positional=True)
    _: dataclasses.KW_ONLY
    private: bool = option(False, "create a private repository")
    overwrite: bool = option(False, "replace what the repository holds")


def upload(config: UploadConfig) -> UploadOutcome:
    """Runs the job.

    Raises:
      UsageError: the output or the repository cannot be used; nothing was sent.
      NotVerifiedError: a file of the output differs from its manifest.
      BucketError: the Hub failed, or refuses this token; the same call resumes.
    """
    with needs("hub", "publishing on the Hugging Face Hub needs huggingface_hub"):
        from huggingface_hub import HfApi
        from huggingface_hub.utils import disable_progress_bars
    from rlds_beam.encoding.metadata import load_json
    from rlds_beam.output.commits import read_manifest
    from rlds_beam.output.files import APPEND, COMMITS, LOCK, MANIFEST, PARTS, PLAN, REJECTED, compute_checksum
    from rlds_beam.output.plans import read_plan

    output, place = config.output, _REPOSITORY.fullmatch(config.destination)
    if place is None:
        raise UsageError(f"{config.destination}: an output fills a repository: expected hf://datasets/USER/NAME")
    repo, root = place[1], f"hf://datasets/{place[1]}"
    plan = read_plan(output) if storage.scheme(output) is None and storage.isdir(output) else None
    if plan is None:
        raise UsageError(
            f"{output} is not an output of rlds-beam on this machine (it has no {PLAN}): convert the dataset first"
        )
    manifest = read_manifest(output)
    for entry in manifest["shards"]:
        path = storage.below(output, entry["file"])
        if entry["records"] and (not storage.exists(path) or compute_checksum(path) != entry["checksum"]):
            raise NotVerifiedError(f"{path} is missing, or differs from its checksum in {MANIFEST}: convert again")
    if config.json or config.progress == "none":
        disable_progress_bars()
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="rlds-beam", library_version=__version__)

    def call(method: str, **arguments: Any) -> Any:
        try:
            return getattr(api, method)(repo_id=repo, repo_type="dataset", **arguments)
        except Exception as error:  # of huggingface_hub, and of its HTTP client, which depends on the version
            status = getattr(getattr(error, "response", None), "status_code", 0)
            kind = BucketAccessError if status in (401, 403, 404) else BucketError
            raise kind(f"{root}: {shorten_error(error)}") from error

    call("create_repo", private=config.private, exist_ok=True)
    before = call("repo_info")
    if config.private and not before.private:
        raise UsageError(f"{root} is public: make it private in its settings, or drop --private")
    there = set(call("list_repo_files"))
    if not config.overwrite and not there <= {".gitattributes", "README.md"}:
        earlier = read_plan(f"{root}@{before.sha}") if PLAN in there else None
        if earlier is None or earlier.content != plan.content:
            raise UsageError(f"{root} holds something else: use another repository, or --overwrite")
    # The manifest comes last, so that a part of a dataset never looks finished.
    last = storage.join(output, MANIFEST)
    is_old = False
    if MANIFEST in there:
        is_old = storage.read_small(f"{root}@{before.sha}/{MANIFEST}") != storage.read_small(last)
    stale = "*" if config.overwrite else MANIFEST if is_old else None
    local = [LOCK, *(f"{directory}/*" for directory in (COMMITS, REJECTED, PARTS, APPEND)), "*.tmp"]
    call("upload_folder", folder_path=output, ignore_patterns=[*local, MANIFEST], delete_patterns=stale)
    commit = call("upload_file", path_or_fileobj=last, path_in_repo=MANIFEST).oid
    info = load_json(storage.join(output, "meta/info.json")) if plan.content.get("to") == "lerobot" else None
    tag = str(info["codebase_version"]) if isinstance(info, dict) else None  # LeRobot loads the tag of its version
    if tag is not None:
        if tag in {ref.name for ref in call("list_repo_refs").tags}:
            call("delete_tag", tag=tag)
        call("create_tag", tag=tag, revision=commit)
    return UploadOutcome(root, commit, without_secrets(f"{api.endpoint}/datasets/{repo}"), tag)


def main(config: UploadConfig) -> int:
    """Runs the command: prints what was sent, and returns the exit code."""
    outcome = upload(config)
    if config.json:
        print_json(dataclasses.asdict(outcome))
    elif config.progress != "none":
        print(outcome)
    return 0
