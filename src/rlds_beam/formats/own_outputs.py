"""Check users' outputs before any work, and report errors in one line."""

from __future__ import annotations

import collections
import inspect
import json
from collections.abc import Callable, Sequence
from typing import Any

from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.output.base import Description, Output
from rlds_beam.reading.plan import WorkRange
from rlds_beam.text import joined
from rlds_beam.user_functions import raised


def create_own_output(kind: type[Output], to: str, *arguments: Any) -> Output:
    """Creates the output of a user's class.

    Raises:
      UsageError: the class lacks a method of the contract (`output.base.Output`), or its `create` fails.
    """
    if inspect.isabstract(kind):
        missing = joined(sorted(kind.__abstractmethods__))
        raise UsageError(f"--to={to}: it lacks {missing}; see rlds_beam.output.Output")
    output: Output = _returned(f"--to={to}: its create", Output, lambda: kind.create(*arguments))
    return output


def check_own_output(output: Output, ranges: Sequence[WorkRange], to: str) -> None:
    """Raises UsageError if the plan, the description or the file names of a user's output cannot be used."""
    plan = _returned(f"--to={to}: its plan", dict, output.plan)
    try:
        json.dumps(plan)
    except (TypeError, ValueError) as error:
        raise UsageError(f"--to={to}: its plan is not JSON: {error}") from error
    _returned(f"--to={to}: its describe", Description, output.describe)
    names = _returned(f"--to={to}: its file names", list, lambda: output.all_files(ranges))
    for name, times in collections.Counter(names).items():
        if not isinstance(name, str):
            raise UsageError(f"--to={to}: a file name is {name!r}, not text")
        if times > 1:
            raise UsageError(f"--to={to}: {times} files have the name {name!r}: `file` must return a name per range")


def _returned(what: str, expected: type[Any], call: Callable[[], Any]) -> Any:
    """What a user's method returns. Raises UsageError if it raises, or returns another type."""
    try:
        value = call()
    except RldsBeamError:
        raise
    except Exception as error:
        raise UsageError(f"{what} {raised(error)}") from error
    if not isinstance(value, expected):
        raise UsageError(f"{what} returned {value!r:.60}, expected {expected.__name__}")
    return value
