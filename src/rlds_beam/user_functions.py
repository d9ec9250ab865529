"""The user's functions and classes, named `module:function` or given as they are.

The module of a name is an installed one, or it is in the current directory. From there this one module is taken, with
its submodules, and nothing else: a file `google.py` or `numpy.py` beside it never takes the place of a package that
some dependency imports, whether that package is installed or not.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import inspect
import json
import os
import pickle
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from rlds_beam import lazy
from rlds_beam.errors import UsageError

_MODULES = "RLDS_BEAM_USER_MODULES"
"""The environment variable that tells worker processes which modules are in which directory, as JSON."""


_CONFIGURABLE = "__rlds_beam_configurable__"

Configurable = TypeVar("Configurable", bound=Callable[..., Any])


def configurable(function: Configurable) -> Configurable:
    """Marks a function or class as one that a file of connectors or policies may name. For example:

        @rlds_beam.configurable
        def drop_short(batch):
            return batch.replace(episodes=tuple(e for e in batch.episodes if len(e) > 10))

    A name in a file can be that of anything installed, `subprocess:Popen` for example. Nothing but what is marked is
    called; subclasses of the connectors' base classes, and of `BehaviorPolicy`, are marked already.
    """
    setattr(function, _CONFIGURABLE, True)
    return function


def is_configurable(value: Any) -> bool:
    """Whether a file may name it: a marked function or class, or an object of a marked class."""
    return getattr(value if isinstance(value, (type, types.FunctionType)) else type(value), _CONFIGURABLE, None) is True


def nothing_else(value: Any) -> bool:
    """For `check_configurable`: nothing may be named but what is marked."""
    return False


def resolve_configurable(name: str, where: str) -> Any:
    """What a file names as `module:name`; it is not called here.

    Args:
      name: as it is in the file.
      where: what to call the place in messages.

    Raises:
      UsageError: there is nothing of that name, or a file may not name it.
    """
    value: Any = resolve(name, where, callable_only=False)
    check_configurable(value, name, where)
    return value


def check_configurable(value: Any, name: str, where: str, also: Callable[[Any], bool] = nothing_else) -> None:
    """Raises UsageError if a file may not name what it names: it is not marked, nor of a kind that `also` accepts."""
    if is_configurable(value) or also(value):
        return
    raise UsageError(
        f"{where}: {name} was not called: it is neither derived from EpisodeConnector, ColumnConnector or another base "
        "class of rlds-beam, nor marked with @rlds_beam.configurable"
    )


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


class ByValue(str):
    """The name of a function or class that cannot be imported (of a notebook, a lambda), and the object itself.

    Workers get the object by value, as Beam pickles the functions of a pipeline. The name ends in a digest of the
    code and of the values that it refers to, since the name alone says nothing about what it does.
    """

    value: Any

    def __new__(cls, name: str, value: Any) -> ByValue:
        self = super().__new__(cls, name)
        self.value = value
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return ByValue, (str(self), self.value)


def name_of(value: Callable[..., Any]) -> str:
    """`module:function` of a function or class; a `ByValue` where it cannot be imported under that name.

    Raises:
      UsageError: it is neither a function nor a class (but, for example, a functools.partial).
    """
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    try:
        imported: Any = functools.reduce(getattr, name.split("."), cast(Any, sys.modules[module or ""]))
    except (AttributeError, KeyError):
        imported = None
    if imported is value and module != "__main__":
        _add_imported(str(module))
        return f"{module}:{name}"
    if not isinstance(value, (types.FunctionType, type)):
        raise UsageError(f"{value!r} is a {type(value).__name__}; give a function or a class, or module:function")
    return by_value(f"{module}:{name}", value)


def by_value(name: str, value: Any) -> ByValue:
    """An object that an option takes in place of the name of one."""
    digest = hashlib.sha256()
    for part in _parts(value):
        digest.update(part)
    return ByValue(f"{name}#{digest.hexdigest()[:16]}", value)


def _parts(value: Any) -> Iterator[bytes]:
    """What a function or class does, as bytes that are the same in another process: code, defaults, values."""
    if isinstance(value, type):
        for member in vars(value).values():
            yield from _parts(getattr(member, "__func__", member))
    elif isinstance(value, types.FunctionType):
        yield from _parts(value.__code__)
        yield from _parts((value.__defaults__, value.__kwdefaults__))
        yield from _parts([cell.cell_contents for cell in value.__closure__ or ()])
        used = [value.__globals__.get(name) for name in value.__code__.co_names]
        yield from _parts([one for one in used if not (callable(one) or isinstance(one, types.ModuleType))])
    elif isinstance(value, types.CodeType):
        yield value.co_code + repr(value.co_names).encode()
        for constant in value.co_consts:
            yield from _parts(constant)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _parts(one)
    elif type(value).__module__ == "__main__":
        yield from _parts(type(value))
        yield from _parts(sorted(vars(value).items()))
    else:
        try:
            yield pickle.dumps(value)
        except Exception:  # whatever pickle raises of a value that does not pickle; Beam will say so
            yield repr(type(value)).encode()


def resolve(name: str, flag: str = "--policy_info_fn", *, callable_only: bool = True) -> Callable[..., Any]:
    """The function or class `module:function`, installed or in the current directory.

    Args:
      name: as the user gave it, or from `name_of`.
      flag: what `name` is the value of, for messages.
      callable_only: refuse what cannot be called, such as a list.

    Raises:
      UsageError: there is none.
    """
    value: Any = name.value if isinstance(name, ByValue) else _imported(name, flag)
    if callable_only and not callable(value):
        raise UsageError(f"{flag}={name}: it is a {type(value).__name__}, not a function")
    return cast("Callable[..., Any]", value)


def raised(error: BaseException) -> str:
    """What the user's code raised, and where: `raised ValueError: no such key (my_source.py, line 12)`."""
    said = " ".join(str(error).split())
    place = next(iter(traceback.extract_tb(error.__traceback__)[-1:]), None)
    where = f" ({place.filename}, line {place.lineno})" if place else ""
    return f"raised {type(error).__name__}{': ' if said else ''}{said}{where}"


def called(factory: Callable[..., Any], flag: str, hint: str, **arguments: Any) -> Any:
    """What a factory of the user's makes of its arguments; a UsageError where it does not take them."""
    try:
        inspect.signature(factory).bind(**arguments)
    except TypeError as error:
        raise UsageError(
            f"{flag}: it is called with {', '.join(arguments) or 'no arguments'}: {error}; {hint}"
        ) from None
    return factory(**arguments)


@functools.lru_cache(maxsize=8)
def _imported(name: str, flag: str) -> Callable[..., Any]:
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise UsageError(f"{flag}={name}: expected module:function, like my_project.policies:log_probability")
    top = module.partition(".")[0]
    if top != "rlds_beam":
        lazy.show_clients()
    if not (top in sys.modules or _user_modules.inherited):
        _add({top: os.getcwd()})
    try:
        value = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{flag}={name}: {error}{_hint(error)}") from error
    return cast("Callable[..., Any]", value)


def version_of(name: str, flag: str = "--policy_info_fn") -> str:
    """What tells one edit of `module:function` from another: its `__version__`, or a hash of its module's source.

    The whole module counts, because a function may call others of it. A function whose behaviour depends on anything
    else (other modules, a file that it reads) should have a `__version__`.

    Raises:
      UsageError: there is no such function.
    """
    if isinstance(name, ByValue):
        return "in the name"
    function = resolve(name, flag)
    version = getattr(function, "__version__", None)
    if version is not None:
        return f"version {version}"
    try:
        source = inspect.getsource(sys.modules[function.__module__])
    except (OSError, TypeError, KeyError, AttributeError):
        return "no source"
    return f"sha256:{hashlib.sha256(source.encode()).hexdigest()}"


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


def _add_imported(module: str) -> None:
    """Lets worker processes find a module that this process has imported, from wherever it was."""
    top = module.partition(".")[0]
    package = sys.modules.get(top)
    file = getattr(package, "__file__", None) or next(iter(getattr(package, "__path__", ())), None)
    if file is not None and top != "rlds_beam":
        path = Path(file).resolve()
        _add({top: str(path.parent.parent if path.name == "__init__.py" else path.parent)})


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
