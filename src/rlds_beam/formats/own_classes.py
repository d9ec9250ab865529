"""Check users' sources and outputs, and report errors of their code in one line."""

from __future__ import annotations

import collections
import functools
import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

from rlds_beam.encoding.base import Damage, Record
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.output.base import Description, Output
from rlds_beam.reading.base import LastAction, Source, Split
from rlds_beam.reading.plan import WorkRange
from rlds_beam.text import join_texts
from rlds_beam.user_functions import describe_error


def create_own_output(kind: type[Output], to: str, *arguments: Any) -> Output:
    """Creates the output of a user's class.

    Raises:
      UsageError: the class lacks a method of the contract (`output.base.Output`), or its `create` fails.
    """
    if inspect.isabstract(kind):
        missing = join_texts(sorted(kind.__abstractmethods__))
        raise UsageError(f"--to={to}: it lacks {missing}; see rlds_beam.output.Output")
    output: Output = _check_return(f"--to={to}: its create", Output, lambda: kind.create(*arguments))
    return output


def check_own_output(output: Output, ranges: Sequence[WorkRange], to: str) -> None:
    """Raises UsageError if the plan, the description or the file names of a user's output cannot be used."""
    plan = _check_return(f"--to={to}: its plan", dict, output.plan)
    try:
        json.dumps(plan)
    except (TypeError, ValueError) as error:
        raise UsageError(f"--to={to}: its plan is not JSON: {error}") from error
    _check_return(f"--to={to}: its describe", Description, output.describe)
    names = _check_return(f"--to={to}: its file names", list, lambda: output.all_files(ranges))
    for name, times in collections.Counter(names).items():
        if not isinstance(name, str):
            raise UsageError(f"--to={to}: a file name is {name!r}, not text")
        if times > 1:
            raise UsageError(f"--to={to}: {times} files have the name {name!r}: `file` must return a name per range")


def _check_return(what: str, expected: type[Any], call: Callable[[], Any]) -> Any:
    """What a user's method returns. Raises UsageError if it raises, or returns another type."""
    try:
        value = call()
    except RldsBeamError:
        raise
    except Exception as error:
        raise UsageError(f"{what} {describe_error(error)}") from error
    if not isinstance(value, expected):
        raise UsageError(f"{what} returned {value!r:.60}, expected {expected.__name__}")
    return value


_ATTRIBUTES: dict[str, Any] = {"dataset": str, "schema": Schema, "splits": (tuple, list), "violations": (tuple, list)}
_FILES = ("name", "unit", "read", "scan", "is_splittable", "end", "positions")


def checked_source(source: Any, from_: str) -> Source:
    """Checks a user's source, and makes errors of its record format name it.

    Raises:
      UsageError: it does not implement `reading.base.Source`.
    """
    where = f"--from={from_}"
    if not isinstance(source, Source):
        raise UsageError(f"{where}: its open returned {_a(source)}, not a Source")
    for name, kind in _ATTRIBUTES.items():
        value = _attribute(source, name, where)
        if not isinstance(value, kind):
            raise UsageError(f"{where}: its {name} is {_a(value)}, not {_a_kind(kind)}")
    for split in source.splits:
        if not isinstance(split, Split):
            raise UsageError(f"{where}: its splits hold {_a(split)}, not a Split")
    if source.last_action not in get_args(LastAction):
        raise UsageError(f"{where}: its last_action is {source.last_action!r}, not {', '.join(get_args(LastAction))}")
    files, decoder = _attribute(source, "files", where), _attribute(source, "decoder", where)
    for name in _FILES:
        _attribute(files, name, f"{where}: its files")
    _attribute(decoder, "decode", f"{where}: its decoder")
    try:
        json.dumps(source.plan())
        source.most_steps()
    except (RldsBeamError, MemoryError):
        raise
    except Exception as error:
        raise UsageError(f"{where}: its plan {describe_error(error)}") from error
    if not type(files).__module__.startswith("rlds_beam."):
        object.__setattr__(source, "files", NamedFiles(files, where))
    return source


def _attribute(of: Any, name: str, where: str) -> Any:
    try:
        return getattr(of, name)
    except AttributeError as error:
        raise UsageError(
            f"{where}: {type(of).__qualname__} has no {name} ({error}); see rlds_beam.reading.base.Source for what a "
            "source has"
        ) from error
    except (RldsBeamError, MemoryError):
        raise
    except Exception as error:  # raised by a property
        raise UsageError(f"{where}: its {name} {describe_error(error)}") from error


def _a(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _a_kind(kind: Any) -> str:
    return f"a {kind[0].__name__}" if isinstance(kind, tuple) else f"a {kind.__name__}"


class NamedFiles:
    """A user's record format (`encoding.base.RecordFormat`), with errors that name the source. Pickles.

    Args:
      files: the user's record format.
      where: the source, for messages.
    """

    def __init__(self, files: Any, where: str):
        self._files, self._where = files, where

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also called while unpickling
            raise AttributeError(name)
        value = getattr(self._files, name)
        return functools.partial(self._call, name) if callable(value) else value

    def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        try:
            return getattr(self._files, name)(*arguments, **named)
        except (RldsBeamError, MemoryError):
            raise
        except Exception as error:
            raise RldsBeamError(f"{self._where}: files.{name} {describe_error(error)}") from error

    def read(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[Record | Damage]:
        records = self._call("read", path, start, stop)
        while True:
            try:
                record = next(records, None)
            except (RldsBeamError, MemoryError):
                raise
            except Exception as error:
                raise RldsBeamError(f"{self._where}: files.read {describe_error(error)}, reading {path}") from error
            if record is None:
                return
            if not isinstance(record, (Record, Damage)) or not isinstance(record.payload, bytes):
                what = _a(getattr(record, "payload", record))
                raise RldsBeamError(f"{self._where}: files.read gave {what}, not a Record or Damage of bytes ({path})")
            yield record
