"""Functions and classes of the user's, named `module:function`."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, cast

from rlds_beam.errors import UsageError

_PATH = "RLDS_BEAM_USER_PATH"
"""The environment variable that tells worker processes where the user's modules are."""


@functools.lru_cache(maxsize=8)
def resolve(name: str, flag: str = "--policy_info_fn", *, callable_only: bool = True) -> Callable[..., Any]:
    """The function or class `module:function`, installed or in the current directory.

    Args:
      flag: what `name` is the value of, for messages.
      callable_only: refuse anything that cannot be called, such as a list.

    Raises:
      UsageError: there is none.
    """
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise UsageError(f"{flag}={name}: expected module:function, like my_project.policies:log_probability")
    if not name.startswith("rlds_beam."):
        _search(os.getcwd())
    try:
        found = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{flag}={name}: {error}") from error
    if callable_only and not callable(found):
        raise UsageError(f"{flag}={name}: it is a {type(found).__name__}, not a function")
    return cast("Callable[..., Any]", found)


def search_as_the_parent() -> None:
    """In a worker process: finds modules where the process that started it did, before anything is unpickled."""
    if _PATH in os.environ:
        _search(os.environ[_PATH])


def _search(directory: str) -> None:
    if directory not in sys.path:
        sys.path.append(directory)  # the last place to look: nothing there stands in for what is installed
    os.environ[_PATH] = directory
