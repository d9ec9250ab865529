"""Recognizes the format of a dataset by the names of its files (`Format.names`).

What rlds-beam wrote is known from its plan.json. No other file is opened.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from rlds_beam import storage
from rlds_beam.errors import UsageError
from rlds_beam.formats.directory_listing import DirectoryListing
from rlds_beam.formats.registry import COLUMNS, MERGED, RLDS, SOURCES, TRAJECTORIES, find_readable, other_names
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
    first = next(iter(paths), "")
    if not _is_directory(first, listing):
        first = next(iter(storage.glob(first) if first else ()), "")
    if not first:
        return Recognized(RLDS, "")
    found = _recognize_one(first, listing)
    if found is None:
        raise _unknown(first)
    return found


def datasets_in(paths: Sequence[str]) -> list[str]:
    """The datasets of paths, in order, each as text.

    Neighboring files of one ending are one dataset, and so are directories of a format that reads several.
    """
    if len(paths) < 2:
        return [*paths]
    datasets: list[list[str]] = []
    before, listing = "", DirectoryListing()
    for path in paths:
        kind = ""
        if not _is_directory(path, listing):
            kind = path.rpartition(".")[2].partition("-")[0]  # the ending
        elif found := _recognize_one(path, listing):
            known = find_readable(found.format)
            kind = f"directories of {found.format}" if known is not None and known.reads_several else ""
        if kind and kind == before:
            datasets[-1].append(path)
        else:
            datasets.append([path])
        before = kind
    return [",".join(own) for own in datasets]


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
    if PLAN in listing.names(path) and (written := _recognize_written(path)) is not None:
        return written
    for names in (SOURCES, other_names()):  # other packages are imported only if it is not one of our formats
        found: list[Recognized] = []
        for name in names:
            known = find_readable(name)
            for pattern in () if known is None else known.names:
                if match := listing.find(path, pattern):
                    found.append(Recognized(name, match.removeprefix(path).strip("/") or storage.split(path)[1]))
                    break
        if len(found) > 1:
            both = join_texts([str(match) for match in found])
            raise UsageError(f"{path} could be {both}: choose one, for example --from={found[0].format}")
        if found:
            return found[0]
    return None


def _recognize_written(path: str) -> Recognized | None:
    """The format in which rlds-beam wrote a directory; None if its plan cannot be read.

    Raises:
      UsageError: it does not hold all episodes; says what reads it, if anything.
    """
    try:
        held = holding(path)
    except OSError:
        return None
    if held is None:
        return None
    writer = "a pipeline" if held.command == "pipeline" else f"rlds-beam {held.command}"
    found = Recognized(printable(held.to, 200), f"{PLAN} of {writer}")
    if held.items is None:
        raise UsageError(f"{path} holds the unfinished output of {writer}; run it again")
    if find_readable(held.to):
        return found
    how = f"Its format is --to={found.format}."
    if held.to in (TRAJECTORIES, COLUMNS):
        how = f"Read it with rlds_beam.open_dataset({json.dumps(path)}) or rlds-beam show {shlex.quote(path)}"
    holds_items = f"{path} holds {held.items:,} {printable(str(held.kind), 80)} written by {writer}."
    raise UsageError(f"{holds_items} {how}")


def _unknown(path: str) -> UsageError:
    """The error for a path that no format recognizes: the names that were looked for."""
    storage.listdir(path)  # an OSError if it cannot be listed
    known = {name: find_readable(name) for name in (*SOURCES, *other_names())}
    lines = [f"  {name:<10}  {', '.join(form.names)}" for name, form in known.items() if form and form.names]
    return UsageError(
        f"{path} is not a dataset in a known format. These names were looked for in it:",
        *lines,
        "Name the format with --from=FORMAT.",
    )
