"""Imports that are put off: of a package's names until they are used, of clients of Beam's until they are needed.

Beam imports the clients of Google Cloud Storage, S3, Dataflow and MongoDB where they are installed. They are half of
the second that `import apache_beam` takes, and Beam does without each of them that is not installed. So a command on
this machine hides them from Beam, until something asks for a bucket, or for code of the user's, which may need them.
"""

from __future__ import annotations

import importlib
import importlib.abc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_CLIENTS = ("boto3", "bson", "google.api_core", "google.auth", "google.cloud", "pymongo")
_HIDDEN = "RLDS_BEAM_HIDDEN_CLIENTS"
"""The environment variable that tells worker processes to hide them, too."""


def exports(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package.

        __getattr__, __dir__ = lazy.exports(__name__, {"Episode": "rlds_beam.episodes.episode"})

    Args:
      package: its `__name__`.
      homes: from each exported name to the module that defines it.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:  # noqa: N807
        return sorted(homes)

    return __getattr__, __dir__


class _HiddenClients(importlib.abc.MetaPathFinder):
    """Refuses the clients to modules of Beam, as if they were not installed; other modules import them as ever."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> None:
        if any(name == client or name.startswith(f"{client}.") for client in _CLIENTS) and _is_for_beam():
            raise ModuleNotFoundError(f"{name} is hidden from Beam", name=name)


_hidden = _HiddenClients()
_asked_for = False


def hide_clients() -> None:
    """Hides the clients in this process and in those that it starts, unless they were asked for or Beam is imported."""
    if not _asked_for and "apache_beam" not in sys.modules and _hidden not in sys.meta_path:
        sys.meta_path.insert(0, _hidden)
        os.environ[_HIDDEN] = "1"


def hide_clients_as_the_parent() -> None:
    """In a worker process: hides them if the process that started it does."""
    if _HIDDEN in os.environ:
        hide_clients()


def show_clients() -> None:
    """Ends the hiding: what Beam imports from then on finds them."""
    global _asked_for
    _asked_for = True
    if _hidden in sys.meta_path:
        sys.meta_path.remove(_hidden)
        os.environ.pop(_HIDDEN, None)


def _is_for_beam() -> bool:
    """Whether the import at hand is one of a module of Beam's."""
    frame = sys._getframe(2)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("importlib."):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).startswith("apache_beam.")
