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

_LEVELS = 2
"""How far below a directory datasets are looked for."""
_MAX_LOOKS = {True: 24, False: 200}
"""Maximum number of files and directories to look at there: in a bucket, and on a disk."""
_WHOLE = (FEATURES, "metadata.yaml", PLAN)
"""Files that tell that their directory is one dataset."""
_MAX_FILES = 24
"""Maximum number of files to look at in such a directory, and in each of its subdirectories."""
_MAX_NAMED = 10
"""Maximum number of datasets that an error lists."""


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


_NOTHING = Recognized("", "", "", "")


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
            told_by_files = can_read(found.format) and source_class(found.format).told_by_files
            if told_by_files and not found.why.startswith(_WHOLE):
                _check_subdirectories(first, found)
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
    """The paths of each dataset: the shards of a format, or the files and directories that a source reads together."""
    if len(paths) < 2:
        return [[*paths]]
    groups: list[list[str]] = []
    formats: dict[str, str | None] = {}
    before: tuple[str | None, bool] | None = None
    for path in paths:
        directory = _is_directory(path)
        kind = path if directory else path.rpartition(".")[2].partition("-")[0]
        if kind not in formats:
            formats[kind] = _find_format(path)
        now = (formats[kind], directory)
        together = now == before and (not directory or _reads_several(now[0]))
        if together:
            groups[-1].append(path)
        else:
            groups.append([path])
        before = now
    return groups


def _find_format(path: str) -> str | None:
    """The format of a file, or of a directory or the only dataset below it; None if that is unknown."""
    files = [path] if _is_directory(path) else storage.glob(path)
    if not files:
        return None
    try:
        found = _recognize_one(files[0])
        return (_recognize_below(path) if found is None and _is_directory(path) else found or _NOTHING).format
    except UsageError:
        return None


def _reads_several(name: str | None) -> bool:
    """Whether the source of a format reads several directories as one dataset."""
    return name is not None and can_read(name) and source_class(name).reads_several


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
        readable = _is_readable(held) or (held.to == RLDS and FEATURES in names_in(path))
        writer = f"{PLAN} of {_writer(held)}"
        return Recognized(path, held.to, writer, path, None if readable else _how_to_read(path, held))
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


def _writer(held: Holding) -> str:
    return "a pipeline" if held.command == "pipeline" else f"rlds-beam {held.command}"


def _is_readable(held: Holding) -> bool:
    """Whether a finished output can be read as episodes."""
    return held.items is not None and can_read(held.to)


def written_by_convert(input: str | Sequence[str], from_: str) -> str | None:
    """The way to read a directory that rlds-beam wrote; None if it did not, or if it is RLDS or `from_`."""
    if not isinstance(input, str) or not storage.isdir(input):
        return None
    held = holding(input)
    return None if held is None or held.to in (RLDS, from_) else _how_to_read(input, held)


def _how_to_read(path: str, held: Holding) -> str:
    """The content of a directory that rlds-beam wrote, and the way to read it."""
    written = _writer(held) + (f" from {held.dataset}" if held.command == "convert" else "")
    if held.items is None:
        return f"{path} holds the unfinished output of {written}; run it again"
    ways = []
    if held.to in (TRAJECTORIES, COLUMNS):
        ways = [f"rlds_beam.open_dataset({json.dumps(path)})", f"rlds-beam show {shlex.quote(path)}"]
    if _is_readable(held):
        ways.append(f"--from={held.to}")
    how = f"Read it with {', '.join(ways[:-1])}{' or ' if ways[1:] else ''}{ways[-1]}" if ways else ""
    return f"{path} holds {held.items:,} {held.kind} written by {written}. {how or f'Its format is --to={held.to}.'}"


def _recognize_below(directory: str) -> Recognized:
    """The only dataset below a directory. Raises UsageError if there are several, or none."""
    most = _MAX_LOOKS[storage.scheme(directory) is not None]
    found: list[Recognized] = []
    trouble: UsageError | None = None
    looked = 0
    for child in _below(directory, _LEVELS, {_identity(directory)}):
        looked += 1
        if isinstance(child, UsageError):
            trouble = trouble or child
        elif child is not None:
            found.append(child)
        if looked == most:
            break
    if len(found) == 1:
        (only,) = found
        inside = only.dataset.removeprefix(directory).strip("/")
        return only._replace(why=f"{only.why} in {printable(inside, 80)}")
    if found:
        raise _several(directory, found, looked == most)
    raise trouble or _unknown(directory, looked)


def _check_subdirectories(directory: str, found: Recognized) -> None:
    """Checks that the format that some files tell is that of all datasets in the directory.

    Raises:
      UsageError: a subdirectory holds a dataset that the source of these files does not read.
    """
    most = _MAX_LOOKS[storage.scheme(directory) is not None]
    paths = [storage.join(directory, name) for name in names_in(directory) if not name.startswith((".", "_"))]
    is_directory = {path: _is_directory(path) for path in paths[:most]}
    below = [recognized for path in paths[:most] if is_directory[path] for recognized in _first_in(path)]
    if all(_is_read_with(found, child) for child in below):
        return
    files = [path for path in paths[:most] if not is_directory[path]]
    if any(recognized.format == found.format for path in files[:_MAX_FILES] for recognized in _first_in(path)):
        below.insert(0, found)
    raise _several(directory, below, len(paths) > most)


def _is_read_with(found: Recognized, other: Recognized) -> bool:
    """Whether the source of a directory's files also reads a dataset below."""
    if other.format != found.format or not can_read(other.format):  # what only `open_dataset` reads
        return False
    return source_class(found.format).reads_together(found.why, other.why)


def _first_in(directory: str) -> list[Recognized]:
    """The format of a directory or a file, or of the first dataset below it; nothing if it is unknown."""
    try:
        if (found := _recognize_one(directory)) is not None:
            return [found]
    except UsageError:
        return []
    looks = itertools.islice(_below(directory, _LEVELS, {_identity(directory)}), _MAX_FILES)
    return [look for look in looks if isinstance(look, Recognized)][:1]


def _below(directory: str, levels: int, seen: set[object]) -> Iterator[Recognized | UsageError | None]:
    """The datasets below a directory, with their formats; looks into directories that are no datasets.

    Args:
      seen: the identities of what was looked at: links may lead to the same place, or in circles.
    """
    paths = [storage.join(directory, name) for name in names_in(directory) if not name.startswith((".", "_"))]
    unknown = []
    for path in paths:
        if (identity := _identity(path)) in seen:
            continue
        seen.add(identity)
        found: Recognized | UsageError | None
        try:
            found = _recognize_one(path)
        except UsageError as error:
            found = error
        if found is None and levels > 1:
            unknown.append(path)
        yield found
    for path in unknown:
        if _is_directory(path):
            yield from _below(path, levels - 1, seen)


def _identity(path: str) -> object:
    """The same for a directory and for links to it."""
    return os.path.realpath(path) if storage.scheme(path) is None else path.rstrip("/")


def _several(directory: str, found: Sequence[Recognized], incomplete: bool) -> UsageError:
    """The error for a directory of datasets: what they are, and the command for the first one."""
    inside = {match: printable(match.dataset.removeprefix(directory).strip("/"), 80) or "." for match in found}
    listed = [f"  {inside[match]}  {match}" for match in found[:_MAX_NAMED]]
    more = [f"  and {len(found) - _MAX_NAMED:,} more"] if found[_MAX_NAMED:] else []
    total = f"{'at least ' if incomplete else ''}{count(len(found), 'dataset')}"
    itself = next((match for match in found if match.dataset == directory), None)
    command = f"rlds-beam inspect {shlex.quote(next(match.dataset for match in found if match is not itself))}"
    formats = {match.format for match in found}
    is_one = len(formats) == 1 and all(_is_read_with(found[0], match) for match in found)
    together = f", or --from={found[0].format} for all of them" if is_one else ""
    if itself is not None:
        together = f", or --from={itself.format} for the files in {directory}"
    return UsageError(f"{directory} contains {total}:", *listed, *more, f"Choose one: {command}{together}")


def _unknown(path: str, looked: int) -> UsageError:
    """The error for a path that no source recognizes: what was looked for."""
    told = {name: known.known_by for name, known in formats().items() if known.source and known.known_by}
    width = max(map(len, told))
    known = [f"  {name:<{width}}  {known_by}" for name, known_by in told.items()]
    files = "file or directory" if looked == 1 else "files and directories"
    below = f" or in the {looked:,} {files} below" if looked else ""
    first = f"{path} is not a dataset in a known format. None of these is in it{below}:"
    return UsageError(first, *known, "Name the format with --from=FORMAT.")
