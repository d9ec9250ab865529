"""Recognizes the format of a dataset by the names of its files (`Format.names`).

What rlds-beam wrote is known from its plan.json. No other file is opened.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from rlds_beam import storage
from rlds_beam.errors import UsageError
from rlds_beam.formats.directory_listing import DirectoryListing
from rlds_beam.formats.registry import MERGED, RLDS, SOURCES, find_readable, other_names
from rlds_beam.output.directory import holding
from rlds_beam.output.files import PLAN
from rlds_beam.text import join_texts, printable


class Recognized(NamedTuple):
    """The recognized format of an input.

    Attributes:
      format: the name of its format; of a user's output, `module:Class`.
      why: what tells the format, in a few words; empty if there is nothing at the input.
    """

    format: str
    why: str

    def __str__(self) -> str:
        return f"{self.format} ({self.why})"


def recognize(input: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Recognized:
    """The format of a dataset.

    If nothing is there, the format is `rlds`, whose source says what is missing.

    Args:
      input: a directory or files, as on the command line. Of several, the first one tells.

    Raises:
      UsageError: the format is unknown or ambiguous, or the input cannot be read as episodes.
    """
    listing = DirectoryListing()
    paths = storage.paths_in(storage.pin(as_input(input)))
    if (several := len(datasets_in(paths))) > 1:
        return Recognized(MERGED, f"{several} datasets")
    first = paths[0]
    if not _is_directory(first, listing):
        first = next(iter(storage.glob(first) if first else ()), "")
    if not first:
        return Recognized(RLDS, "")
    if recognized := _recognize_one(first, listing):
        return recognized
    storage.listdir(first)  # an OSError if it cannot be listed
    known = {name: find_readable(name) for name in (*SOURCES, *other_names())}
    raise UsageError(
        f"{first} is not a dataset in a known format. These names were looked for in it:",
        *(f"  {name:<10}  {', '.join(form.names)}" for name, form in known.items() if form and form.names),
        "Name the format with --from=FORMAT.",
    )


def datasets_in(paths: Sequence[str]) -> list[str]:
    """The datasets of paths, in order, each as text.

    Neighboring files of one ending are one dataset, and so are directories of a format that reads several.
    """
    if len(paths) < 2:
        return [*paths]
    datasets: list[str] = []
    before, listing = "", DirectoryListing()
    for path in paths:
        kind = ""
        if not _is_directory(path, listing):
            kind = path.rpartition(".")[2].partition("-")[0]  # the ending
        elif recognized := _recognize_one(path, listing):
            form = find_readable(recognized.format)
            kind = f"directories of {recognized.format}" if form is not None and form.reads_several else ""
        if kind and kind == before:
            datasets[-1] += f",{path}"
        else:
            datasets.append(path)
        before = kind
    return datasets


def as_input(given: Any) -> str:
    """An input as text; several paths are separated by commas."""
    return ",".join(map(os.fspath, given)) if isinstance(given, (list, tuple)) else str(os.fspath(given))


def _is_directory(path: str, listing: DirectoryListing) -> bool:
    return os.path.isdir(path) if storage.scheme(path) is None else bool(listing.names(path))


def _recognize_one(path: str, listing: DirectoryListing) -> Recognized | None:
    """The format of one file or directory; None if it is not known.

    Raises:
      UsageError: it could be several formats, or rlds-beam wrote something else there than episodes.
    """
    if PLAN in listing.names(path) and (written := holding(path)) is not None:
        writer = "a pipeline" if written.command == "pipeline" else f"rlds-beam {written.command}"
        to = printable(written.to, 200)
        if written.items is None:
            raise UsageError(f"{path} holds the unfinished output of {writer}; run it again")
        if find_readable(written.to) is None:
            raise UsageError(
                f"{path} holds {written.items:,} items ({to}) written by {writer}, not episodes: "
                "'rlds-beam show' and rlds_beam.open_dataset read trajectories and columns"
            )
        return Recognized(to, f"{PLAN} of {writer}")
    for names in (SOURCES, other_names()):  # other packages are imported only if it is not one of our formats
        matches: list[Recognized] = []
        for name in names:
            form = find_readable(name)
            for pattern in () if form is None else form.names:
                if match := listing.find(path, pattern):
                    matches.append(Recognized(name, match.removeprefix(path).strip("/") or storage.split(path)[1]))
                    break
        if len(matches) > 1:
            both = join_texts([str(match) for match in matches])
            raise UsageError(f"{path} could be {both}: choose one, for example --from={matches[0].format}")
        if matches:
            return matches[0]
    return None
