"""Functions and classes of the user's, named `module:function`.

The module is an installed one, or it is in the current directory. From there this one module is taken, with its
submodules, and nothing else: a file `google.py` or `numpy.py` beside it never takes the place of a package that some
dependency imports, be that package installed or not.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from rlds_beam.errors import UsageError

_MODULES = "RLDS_BEAM_USER_MODULES"
"""The environment variable that tells worker processes which modules are in which directory, as JSON."""


class _UserModules(importlib.abc.MetaPathFinder):
    """Finds the modules that the user named, each in the directory where it was named; the last finder to be asked."""

    def __init__(self) -> None:
        self.directories: dict[str, str] = {}
        self.inherited = False

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if path is not None or name not in self.directories:
            return None  # a submodule is found by the path of its package
        return importlib.machinery.PathFinder.find_spec(name, [self.directories[name]], target)


_user_modules = _UserModules()


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
    if not (name.startswith("rlds_beam.") or _user_modules.inherited):
        _add({module.partition(".")[0]: os.getcwd()})
    try:
        found = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{flag}={name}: {error}{_hint(error)}") from error
    if not callable(found):
        raise UsageError(f"{flag}={name}: it is a {type(found).__name__}, not a function")
    return cast("Callable[..., Any]", found)


def search_as_the_parent() -> None:
    """In a worker process: finds modules where the process that started it did, before anything is unpickled."""
    _user_modules.inherited = True  # the current directory of this process means nothing
    if _MODULES in os.environ:
        _add(json.loads(os.environ[_MODULES]))


def _add(directories: dict[str, str]) -> None:
    if _user_modules not in sys.meta_path:
        sys.meta_path.append(_user_modules)
    _user_modules.directories.update(directories)
    os.environ[_MODULES] = json.dumps(_user_modules.directories)


def _hint(error: Exception) -> str:
    """What to do where the user's module imports another one of the same directory."""
    name = (getattr(error, "name", None) or "").partition(".")[0]
    directories = set(_user_modules.directories.values())
    if name in _user_modules.directories or not any(
        Path(directory, name + ending).exists() for directory in directories for ending in (".py", "") if name
    ):
        return ""
    return (
        f" ({name} is in the current directory, of which only the named module is imported: make them one package, or "
        "set PYTHONPATH)"
    )
