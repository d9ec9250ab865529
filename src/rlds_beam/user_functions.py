"""Functions and classes of the user's, named `module:function`."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any, cast

from rlds_beam.errors import UsageError

_PATH = "RLDS_BEAM_USER_PATH"
"""The environment variable that tells worker processes where the user's modules are."""


@functools.lru_cache(maxsize=8)
def resolve(name: str, flag: str = "--policy_info_fn") -> Callable[..., Any]:
    """The function or class `module:function`, installed or in the current directory.

    Args:
      flag: what `name` is the value of, for messages.

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
    if not callable(found):
        raise UsageError(f"{flag}={name}: it is a {type(found).__name__}, not a function")
    return cast("Callable[..., Any]", found)


def version_of(name: str, flag: str = "--policy_info_fn") -> str:
    """What tells one edit of `module:function` from another: its `__version__`, or a hash of its module's source.

    The whole module counts, because a function may call others of it. A function whose behaviour depends on anything
    else (other modules, a file that it reads) should have a `__version__`.

    Raises:
      UsageError: there is no such function.
    """
    found = resolve(name, flag)
    version = getattr(found, "__version__", None)
    if version is not None:
        return f"version {version}"
    try:
        source = inspect.getsource(sys.modules[found.__module__])
    except (OSError, TypeError, KeyError, AttributeError):
        return "no source"
    return f"sha256:{hashlib.sha256(source.encode()).hexdigest()}"


def search_as_the_parent() -> None:
    """In a worker process: finds modules where the process that started it did, before anything is unpickled."""
    if _PATH in os.environ:
        _search(os.environ[_PATH])


def _search(directory: str) -> None:
    if directory not in sys.path:
        sys.path.append(directory)  # the last place to look: nothing there stands in for what is installed
    os.environ[_PATH] = directory
