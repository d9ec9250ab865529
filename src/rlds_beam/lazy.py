"""Deferred imports: a package's names until their first use, and the HTML of objects until a notebook shows one."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlds_beam.plugins import Kind

    lockless_property = functools.cached_property
else:

    class lockless_property(functools.cached_property):  # noqa: N801
        """`functools.cached_property` without its lock, which all objects of a class share before Python 3.12.

        With it, threads would decode images one after the other, and a value that other threads help to compute would
        wait for them forever.
        """

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            if instance is None:
                return self
            if self.attrname not in instance.__dict__:
                instance.__dict__[self.attrname] = self.func(instance)
            return instance.__dict__[self.attrname]


_EXPORT = re.compile(r"^    from (\S+) import (\w+) as \2$", re.MULTILINE)


def exports(
    package: str, homes: Mapping[str, str] | None = None, others: Kind | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The `__getattr__`, `__dir__`, and `__all__` of a package whose names are imported when they are first used.

        if TYPE_CHECKING:
            from rlds_beam.episodes.episode import Episode as Episode

        __getattr__, __dir__, __all__ = lazy.exports(__name__)

    Args:
      package: the package's `__name__`.
      homes: exported name -> the module that defines it; by default, what the package's source imports as above, so
        that programs and type checkers read the same list.
      others: what other packages declare under a name that is not among them.
    """

    if homes is None:
        spec = sys.modules[package].__spec__
        source = spec.loader.get_source(package)  # type: ignore[union-attr]
        homes = {name: module for module, name in _EXPORT.findall(source)}

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name not in homes:
            # `from package import module` also asks for a module's name
            if others is not None and name[:1] != "_" and importlib.util.find_spec(f"{package}.{name}") is None:
                from rlds_beam import plugins

                if (value := plugins.find(others, name)) is not None:
                    return value
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:  # noqa: N807
        return sorted(homes)

    return __getattr__, __dir__, list(homes)


class Viewable:
    """A class whose objects a notebook shows with pictures, which `viewing`, above it, makes; as text without it."""

    def _repr_html_(self) -> str | None:
        import rlds_beam

        try:
            show = rlds_beam.show
        except ModuleNotFoundError:
            return None
        return show(self)._repr_html_()
