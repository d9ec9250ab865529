"""Recognize the format of a dataset from its files, by asking every source of the registry.

Reads names, and the metadata or the first bytes of a file or two. What rlds-beam wrote is known from its plan.json.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rlds_beam import storage
from rlds_beam.encoding.tfds.dataset_info import FEATURES
from rlds_beam.errors import MissingExtraError, UsageError
from rlds_beam.formats.registry import (
    COLUMNS,
    FORMATS,
    MERGED,
    RLDS,
    TRAJECTORIES,
    Format,
    can_read,
    formats,
    other_names,
    source_class,
)
from rlds_beam.output.directory import Holding, holding
from rlds_beam.output.files import PLAN
from rlds_beam.reading.directory_listing import holds, listing_once, names_in
from rlds_beam.text import count, join_texts, printable, shorten
from rlds_beam.user_functions import describe_error

_LEVELS = 2  # how far below a directory datasets are looked for
_MAX_LOOKS = {True: 24, False: 200}  # files and directories to look at there: in a bucket, and on a disk
_MAX_NAMED = 10  # datasets that an error lists


class Recognized(NamedTuple):
    """The recognized format of an input.

    Attributes:
      input: the input as given; several paths are separated by commas.
      format: the name of its format; of a user's output, `module:Class`.
      why: what tells the format, in a few words; empty if there is nothing at the input.
      dataset: the dataset: the input, or the only dataset below it.
      problem: why it cannot be read as episodes, and what reads it instead; None if it can.
    """

    input: str
    format: str
    why: str
    dataset: str
    problem: str | None = None

    def __str__(self) -> str:
        return f"{self.format} ({self.why})"


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
    first = next(iter(paths), "")
    with listing_once():
        if len(groups := _groups(paths)) > 1:
            return Recognized(given, MERGED, f"{len(groups)} datasets", given)
        if _is_directory(first):
            _check_readable(first)
            found = _recognize_one(first)
            if found is None and storage.paths_in(given)[1:]:
                return Recognized(given, RLDS, "", given)
            if found is None:
                return _recognize_below(first)._replace(input=given)
        else:
            files = storage.glob(first) if first else []
            if not files:
                return Recognized(given, RLDS, "", given)
            found = _recognize_one(files[0])
            if found is None:
                raise _unknown(files[0], 0)
    return found._replace(input=given, dataset=given)


def datasets_in(input: str | Sequence[str]) -> list[str]:
    """The datasets of an input: its directories, and its files, of which neighbors of one format are one dataset."""
    paths = storage.paths_in(input)
    with listing_once():
        groups = _groups(paths)
    return [",".join(group) for group in groups] if len(groups) > 1 else paths


def _groups(paths: Sequence[str]) -> list[list[str]]:
    """The paths of each dataset: neighboring files of one ending, or directories that a source reads together."""
    groups: list[list[str]] = []
    before: tuple[bool, str] | None = None
    for path in paths:
        is_directory = _is_directory(path)
        together, kind = True, path.rpartition(".")[2].partition("-")[0]  # its ending
        if is_directory and len(paths) > 1:
            kind = _find_format(path)
            together = can_read(kind) and source_class(kind).reads_several
        if groups and (is_directory, kind) == before and together:
            groups[-1].append(path)
        else:
            groups.append([path])
        before = is_directory, kind
    return groups


def _find_format(path: str) -> str:
    """The format of a directory, or of the only dataset below it; empty if that is unknown."""
    try:
        return (_recognize_one(path) or _recognize_below(path)).format
    except UsageError:
        return ""


def as_input(given: Any) -> str:
    """An input as text; several paths are separated by commas."""
    return ",".join(map(os.fspath, given)) if isinstance(given, (list, tuple)) else str(os.fspath(given))


def _is_directory(path: str) -> bool:
    return os.path.isdir(path) if storage.scheme(path) is None else bool(names_in(path))


def _check_readable(directory: str) -> None:
    """Raises UsageError if a local directory cannot be listed; those that `names_in` cannot list seem empty."""
    if storage.scheme(directory) is None and not names_in(directory):
        try:
            storage.listdir(directory)
        except OSError as error:
            raise UsageError(f"{directory} cannot be read: {error.strerror or error}") from error


def _recognize_one(path: str) -> Recognized | None:
    """The format of one file or directory; None if it is not known.

    Raises:
      UsageError: it could be several formats, or the file that tells cannot be read.
    """
    held = _recognize_written(path)
    if held is not None:
        writer = "a pipeline" if held.command == "pipeline" else f"rlds-beam {held.command}"
        return Recognized(path, held.to, f"{PLAN} of {writer}", path, _how_to_read(path, held, writer))
    reasons, trouble = _claims(path, FORMATS)
    if not reasons:  # those of other packages
        reasons, others = _claims(path, {name: known for name, known in formats().items() if name not in FORMATS})
        trouble += others
    if len(reasons) > 1:
        both = join_texts([f"{name} ({why})" for name, why in reasons.items()])
        raise UsageError(f"{path} could be {both}: choose one, for example --from={next(iter(reasons))}")
    for name, reason in reasons.items():
        return Recognized(path, name, reason, path)
    for problem in trouble:
        raise (
            problem
            if isinstance(problem, MissingExtraError)
            else UsageError(f"{path} cannot be recognized: {shorten(problem)}")
        ) from problem
    return None


def _claims(path: str, known: Mapping[str, Format]) -> tuple[dict[str, str], list[Exception]]:
    """Why each format recognizes a file or directory, and what failed while it was asked."""
    reasons: dict[str, str] = {}
    trouble: list[Exception] = []
    for name, entry in known.items():
        if not any(holds(path, pattern) for pattern in entry.names if entry.source):
            continue
        try:
            why = source_class(name).recognize(path)
        except (OSError, UsageError, ArithmeticError, LookupError, ValueError) as error:  # for example h5py is missing
            trouble.append(error)
        except (Exception, SystemExit) as error:
            if name in FORMATS:
                raise
            trouble.append(UsageError(f"--from={name}: its recognize {describe_error(error)}"))
        else:
            if why is not None:
                reasons[name] = why
    return reasons, trouble


def _recognize_written(path: str) -> Holding | None:
    """The format in which rlds-beam wrote it; None if it did not, or if its plan cannot be read."""
    try:
        held = holding(path) if PLAN in names_in(path) else None
    except OSError:
        return None
    if held is None or not (held.to in FORMATS or ":" in held.to or held.to in other_names()):
        return None
    kind, dataset = printable(str(held.kind), 80), printable(held.dataset, 200)
    return dataclasses.replace(held, to=printable(held.to, 200), kind=kind, dataset=dataset)


def _how_to_read(path: str, held: Holding, writer: str) -> str | None:
    """What reads a directory that rlds-beam wrote, if it cannot be read as episodes; None if it can."""
    if (held.items is not None and can_read(held.to)) or (held.to == RLDS and FEATURES in names_in(path)):
        return None
    written = writer + (f" from {held.dataset}" if held.command == "convert" else "")
    if held.items is None:
        return f"{path} holds the unfinished output of {written}; run it again"
    how = f"Its format is --to={held.to}."
    if held.to in (TRAJECTORIES, COLUMNS):
        how = f"Read it with rlds_beam.open_dataset({json.dumps(path)}) or rlds-beam show {shlex.quote(path)}"
    return f"{path} holds {held.items:,} {held.kind} written by {written}. {how}"


def _recognize_below(directory: str) -> Recognized:
    """The only dataset below a directory. Raises UsageError if there are several, or none."""
    most = _MAX_LOOKS[storage.scheme(directory) is not None]
    found: list[Recognized] = []
    trouble: UsageError | None = None
    looked = 0
    for child in itertools.islice(_below(directory, _LEVELS), most):
        looked += 1
        if isinstance(child, UsageError):
            trouble = trouble or child
        elif child is not None:
            found.append(child)
    if len(found) == 1:
        inside = found[0].dataset.removeprefix(directory).strip("/")
        return found[0]._replace(why=f"{found[0].why} in {printable(inside, 80)}")
    if not found:
        raise trouble or _unknown(directory, looked)
    places = [printable(match.dataset.removeprefix(directory).strip("/"), 80) for match in found]
    listed = [f"  {place}  {match}" for place, match in zip(places, found, strict=True)][:_MAX_NAMED]
    more = [f"  and {len(found) - _MAX_NAMED:,} more"] if found[_MAX_NAMED:] else []
    total = f"{'at least ' if looked == most else ''}{count(len(found), 'dataset')}"
    command = f"rlds-beam inspect {shlex.quote(found[0].dataset)}"
    raise UsageError(f"{directory} contains {total}:", *listed, *more, f"Choose one: {command}")


def _below(directory: str, levels: int) -> Iterator[Recognized | UsageError | None]:
    """The datasets below a directory, with their formats; looks into directories that are no datasets."""
    unknown = []
    for name in names_in(directory):
        path = storage.join(directory, name)
        if name.startswith((".", "_")):
            continue
        found: Recognized | UsageError | None
        try:
            found = _recognize_one(path)
        except UsageError as error:
            found = error
        if found is None and levels > 1 and _is_directory(path):
            unknown.append(path)
        yield found
    for path in unknown:
        yield from _below(path, levels - 1)


def _unknown(path: str, looked: int) -> UsageError:
    """The error for a path that no source recognizes: what was looked for."""
    told = {name: known.known_by for name, known in formats().items() if known.source and known.known_by}
    width = max(map(len, told))
    known = [f"  {name:<{width}}  {known_by}" for name, known_by in told.items()]
    files = "file or directory" if looked == 1 else "files and directories"
    below = f" or in the {looked:,} {files} below" if looked else ""
    first = f"{path} is not a dataset in a known format. None of these is in it{below}:"
    return UsageError(first, *known, "Name the format with --from=FORMAT.")
