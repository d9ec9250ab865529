"""Functions of the user's, named `module:function`."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, cast

from rlds_beam.errors import UsageError


@functools.lru_cache(maxsize=8)
def resolve(name: str, flag: str = "--policy_info_fn") -> Callable[..., Any]:
    """The function `module:function`, installed or in the current directory; UsageError where there is none.

    Args:
      flag: what `name` is the value of, for messages.
    """
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise UsageError(f"{flag}={name}: expected module:function, like my_project.policies:log_probability")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # the last place to look: nothing there stands in for what is installed
    try:
        found = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{flag}={name}: {error}") from error
    if not callable(found):
        raise UsageError(f"{flag}={name}: it is a {type(found).__name__}, not a function")
    return cast("Callable[..., Any]", found)
