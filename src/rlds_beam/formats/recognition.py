"""Recognize the format of a dataset from its files, by what the registry says of every format.

Reads names, and the metadata or the first bytes of a file or two. What rlds-beam wrote is known from its plan.json.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from rlds_beam import storage
from rlds_beam.encoding.tfds.dataset_info import FEATURES
from rlds_beam.errors import UsageError
from rlds_beam.formats.directory_listing import holds, listing_once, names_in
from rlds_beam.formats.registry import (
    COLUMNS,
    FORMATS,
    MERGED,
    RLDS,
    SOURCES,
    TRAJECTORIES,
    find_readable,
    other_names,
)
from rlds_beam.output.directory import holding
from rlds_beam.output.files import PLAN
from rlds_beam.text import count, join_texts, printable, shorten
from rlds_beam.user_functions import describe_error, resolve

_LEVELS = 2  # how far below a directory datasets are looked for
_MAX_LOOKS = {True: 24, False: 200}  # files and directories to look at there: in a bucket, and on a disk
_MAX_NAMED = 10  # datasets that an error lists


class Recognized(NamedTuple):
    """The recognized format of an input.

    Attributes:
      format: the name of its format; of a user's output, `module:Class`.
      why: what tells the format, in a few words; empty if there is nothing at the input.
      dataset: the dataset: the input, or the only dataset below it.
      problem: why it cannot be read as episodes, and what reads it instead; None if it can.
    """

    format: str
    why: str
    dataset: str
    problem: str | None = None

    def __str__(self) -> str:
        return f"{self.format} ({self.why})"

    def readable(self) -> tuple[str, str]:
        """The dataset and its format. Raises UsageError if it cannot be read as episodes."""
        if self.problem is not None:
            raise UsageError(self.problem)
        return self.dataset, self.format


@listing_once()
def recognize(input: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Recognized:
    """The format of a dataset.

    If nothing is there, the format is `rlds`, whose source says what is missing.

    Args:
      input: a directory or files, as on the command line. Of several, the first one tells.

    Raises:
      UsageError: the format is unknown or ambiguous, or the input is a directory of several datasets.
    """
    given = as_input(input)
    paths = storage.paths_in(storage.pin(given))
    if (several := len(datasets_in(paths))) > 1:
        return Recognized(MERGED, f"{several} datasets", given)
    first = next(iter(paths), "")
    is_directory = _is_directory(first)
    if not is_directory:
        first = next(iter(storage.glob(first) if first else ()), "")
    elif storage.scheme(first) is None and not names_in(first):  # empty, or it cannot be listed
        try:
            storage.listdir(first)
        except OSError as error:
            raise UsageError(f"{first} cannot be read: {error.strerror or error}") from error
    found = _recognize_one(first) if first else Recognized(RLDS, "", given)
    if found is not None:
        return found._replace(dataset=given)
    if not is_directory:
        raise _unknown(first, 0)
    return Recognized(RLDS, "", given) if len(paths) > 1 else _recognize_below(first)


@listing_once()
def datasets_in(paths: Sequence[str]) -> list[str]:
    """The datasets of paths, in order, each as text.

    Neighboring files of one ending are one dataset, and so are directories of a source that reads several.
    """
    if len(paths) < 2:
        return [*paths]
    datasets: list[list[str]] = []
    before = ""
    for path in paths:
        kind = ""
        if not _is_directory(path):
            kind = path.rpartition(".")[2].partition("-")[0]  # the ending
        else:
            with contextlib.suppress(UsageError):
                found = (_recognize_one(path) or _recognize_below(path)).format
                known = find_readable(found)
                kind = f"directories of {found}" if known is not None and known.reads_several else ""
        if kind and kind == before:
            datasets[-1].append(path)
        else:
            datasets.append([path])
        before = kind
    return [",".join(own) for own in datasets]


def as_input(given: Any) -> str:
    """An input as text; several paths are separated by commas."""
    return ",".join(map(os.fspath, given)) if isinstance(given, (list, tuple)) else str(os.fspath(given))


def _is_directory(path: str) -> bool:
    return os.path.isdir(path) if storage.scheme(path) is None else bool(names_in(path))


def _recognize_one(path: str) -> Recognized | None:
    """The format of one file or directory; None if it is not known.

    Raises:
      UsageError: it could be several formats, or the file that tells cannot be read.
    """
    if (written := _recognize_written(path)) is not None:
        return written
    reasons: dict[str, str] = {}
    trouble: list[UsageError] = []
    for names in (SOURCES, other_names()):
        for name in names if not reasons else ():
            known = find_readable(name)
            why = next((pattern for pattern in known.names if holds(path, pattern)), None) if known else None
            if known is None or why is None:
                continue
            try:
                why = resolve(known.recognize, f"--from={name}")(path) if known.recognize else why
            except UsageError as error:  # for example, h5py is not installed
                trouble.append(error)
            except (Exception, SystemExit) as error:
                said = shorten(error) if name in FORMATS else f"--from={name}: its recognize {describe_error(error)}"
                trouble.append(UsageError(f"{path} cannot be recognized: {said}"))
            else:
                reasons |= {} if why is None else {name: why}
    if len(reasons) > 1:
        both = join_texts([f"{name} ({why})" for name, why in reasons.items()])
        raise UsageError(f"{path} could be {both}: choose one, for example --from={next(iter(reasons))}")
    for name, why in reasons.items():
        return Recognized(name, why, path)
    if trouble:
        raise trouble[0]
    return None


def _recognize_written(path: str) -> Recognized | None:
    """The format in which rlds-beam wrote it; None if it did not, or if its plan cannot be read."""
    try:
        held = holding(path) if PLAN in names_in(path) else None
    except OSError:
        return None
    if held is None:
        return None
    writer = "a pipeline" if held.command == "pipeline" else f"rlds-beam {held.command}"
    found = Recognized(printable(held.to, 200), f"{PLAN} of {writer}", path)
    if (held.items is not None and find_readable(held.to)) or (held.to == RLDS and FEATURES in names_in(path)):
        return found
    written = writer + (f" from {printable(held.dataset, 200)}" if held.command == "convert" else "")
    if held.items is None:
        return found._replace(problem=f"{path} holds the unfinished output of {written}; run it again")
    how = f"Its format is --to={found.format}."
    if held.to in (TRAJECTORIES, COLUMNS):
        how = f"Read it with rlds_beam.open_dataset({json.dumps(path)}) or rlds-beam show {shlex.quote(path)}"
    holds_items = f"{path} holds {held.items:,} {printable(str(held.kind), 80)} written by {written}."
    return found._replace(problem=f"{holds_items} {how}")


def _recognize_below(directory: str) -> Recognized:
    """The only dataset below a directory. Raises UsageError if there are several, or none."""
    most, looked = _MAX_LOOKS[storage.scheme(directory) is not None], 0
    found: list[Recognized] = []
    trouble: list[UsageError] = []
    waiting = [(directory, _LEVELS)]
    for parent, levels in waiting:
        names = [name for name in names_in(parent) if not name.startswith((".", "_"))] if looked < most else []
        for name in names[: most - looked]:
            looked += 1
            path = storage.join(parent, name)
            try:
                match = _recognize_one(path)
            except UsageError as error:
                trouble.append(error)
                continue
            if match is not None:
                found.append(match)
            elif levels > 1 and _is_directory(path):
                waiting.append((path, levels - 1))
    places = [printable(match.dataset.removeprefix(directory).strip("/"), 80) for match in found]
    if len(found) == 1:
        return found[0]._replace(why=f"{found[0].why} in {places[0]}")
    if not found:
        raise trouble[0] if trouble else _unknown(directory, looked)
    listed = [f"  {place}  {match}" for place, match in zip(places, found, strict=True)][:_MAX_NAMED]
    more = [f"  and {len(found) - _MAX_NAMED:,} more"] if found[_MAX_NAMED:] else []
    total = f"{'at least ' if looked == most else ''}{count(len(found), 'dataset')}"
    command = f"rlds-beam inspect {shlex.quote(found[0].dataset)}"
    raise UsageError(f"{directory} contains {total}:", *listed, *more, f"Choose one: {command}")


def _unknown(path: str, looked: int) -> UsageError:
    """The error for a path that no source recognizes: the names that were looked for."""
    known = [
        (name, found.names) for name in (*SOURCES, *other_names()) if (found := find_readable(name)) and found.names
    ]
    width = max(len(name) for name, _ in known)
    below = f" or in the {looked:,} files and directories below" if looked else ""
    return UsageError(
        f"{path} is not a dataset in a known format. These names were looked for in it{below}:",
        *(f"  {name:<{width}}  {', '.join(patterns)}" for name, patterns in known),
        "Name the format with --from=FORMAT. For other HDF5 and .npz files, inspect --from=hdf5 proposes a profile.",
    )
