"""The user's functions and classes, named `module:function` or given directly.

The module is installed or in the current directory, which is searched last: a `google.py` or `numpy.py` there never
shadows an installed package.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
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
from typing import Any, ClassVar, TypeVar, cast

from rlds_beam.errors import RldsBeamError, UsageError

_PATH = "RLDS_BEAM_USER_PATH"
"""The environment variable that tells worker processes where the user's modules are, as JSON."""

_CONFIGURABLE = "__rlds_beam_configurable__"

Configurable = TypeVar("Configurable", bound=Callable[..., Any])


def configurable(function: Configurable) -> Configurable:
    """Marks a function or class that a file of connectors or policies may name. For example:

        @rlds_beam.configurable
        def drop_short(batch):
            return batch.replace(episodes=tuple(e for e in batch.episodes if len(e) > 10))

    A file can name anything installed, for example `subprocess:Popen`, so only marked functions and classes are
    called. Subclasses of the connectors' base classes and of `BehaviorPolicy` are already marked.
    """
    setattr(function, _CONFIGURABLE, True)
    return function


def check_configurable(value: Any, name: str, where: str, also: Callable[[Any], bool] | None = None) -> None:
    """Raises UsageError if a file may not name `value`: it is not marked, and `also` does not accept it."""
    owner = value if isinstance(value, (type, types.FunctionType)) else type(value)  # or an instance of a marked class
    if getattr(owner, _CONFIGURABLE, None) is True or (also is not None and also(value)):
        return
    raise UsageError(
        f"{where}: {name} was not called: it neither subclasses EpisodeConnector, ColumnConnector, or another base "
        "class of rlds-beam, nor is it marked with @rlds_beam.configurable"
    )


class _UserModules:
    """Finds modules in the user's directories; the last finder, so namespace packages (google) are found before."""

    directories: ClassVar[list[str]] = []

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if path is not None:  # a submodule is found through its package's path
            return None
        return importlib.machinery.PathFinder.find_spec(name, cls.directories, target)


class ByValue(str):
    """A function or class that cannot be imported (from a notebook, or a lambda), and its name.

    Workers get the object by value, as Beam pickles a pipeline's functions. The name ends in a digest of the code and
    the values it refers to, because the name alone does not identify what it does.
    """

    value: Any

    def __new__(cls, name: str, value: Any = None) -> ByValue:  # pickle gives the name, and then sets the value
        self = super().__new__(cls, name)
        self.value = value
        return self


def qualified_name(value: Callable[..., Any]) -> str:
    """`module:function` of a function or class; a `ByValue` if it cannot be imported under that name.

    Raises:
      UsageError: it is neither a function nor a class, for example a functools.partial.
    """
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    try:
        imported: Any = functools.reduce(getattr, name.split("."), cast(Any, sys.modules[module or ""]))
    except (AttributeError, KeyError):
        imported = None
    if imported is value and module != "__main__":
        top = str(module).partition(".")[0]
        package = sys.modules[top]
        file = getattr(package, "__file__", None) or next(iter(getattr(package, "__path__", ())), None)
        if file is not None and top != "rlds_beam":  # so that workers find what was imported from anywhere
            path = Path(file).resolve()
            _search(str(path.parent.parent if path.name == "__init__.py" else path.parent))
        return f"{module}:{name}"
    if not isinstance(value, (types.FunctionType, type)):
        raise UsageError(f"{value!r} is a {type(value).__name__}; give a function or a class, or module:function")
    return by_value(f"{module}:{name}", value)


def by_value(name: str, value: Any) -> ByValue:
    """An object given for an option that otherwise takes a name."""
    digest = hashlib.sha256()
    for part in _parts(value):
        digest.update(part)
    return ByValue(f"{name}#{digest.hexdigest()[:16]}", value)


def _parts(value: Any) -> Iterator[bytes]:
    """A function's or class's code, defaults, and values as bytes that are the same in every process."""
    if isinstance(value, type):
        for member in vars(value).values():
            yield from _parts(getattr(member, "__func__", member))
    elif isinstance(value, types.FunctionType):
        yield from _parts(value.__code__)
        yield from _parts((value.__defaults__, value.__kwdefaults__))
        yield from _parts([cell.cell_contents for cell in value.__closure__ or ()])
        used = [value.__globals__.get(name) for name in value.__code__.co_names]
        yield from _parts([value for value in used if not (callable(value) or isinstance(value, types.ModuleType))])
    elif isinstance(value, types.CodeType):
        yield value.co_code + repr(value.co_names).encode()
        for constant in value.co_consts:
            yield from _parts(constant)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _parts(item)
    elif type(value).__module__ == "__main__":
        yield from _parts(type(value))
        yield from _parts(sorted(vars(value).items()))
    else:
        try:
            yield pickle.dumps(value)
        except Exception:  # pickle may raise anything; Beam will report it
            yield repr(type(value)).encode()


def resolve(name: str, flag: str = "--policy_info_fn", *, callable_only: bool = True) -> Callable[..., Any]:
    """Imports the function or class `module:function`, installed or in the current directory.

    Args:
      name: the user's text, or the result of `qualified_name`.
      flag: the option that has this value, for messages.
      callable_only: reject values that cannot be called, for example a list.

    Raises:
      UsageError: it does not exist.
    """
    value: Any = name.value if isinstance(name, ByValue) else _import(name, flag)
    if callable_only and not callable(value):
        raise UsageError(f"{flag}={name}: it is a {type(value).__name__}, not a function")
    return cast("Callable[..., Any]", value)


def describe_error(error: BaseException) -> str:
    """Describes an error of the user's code: `raised ValueError: no such key (my_source.py, line 12)`."""
    said = " ".join(str(error).split())
    place = next(iter(traceback.extract_tb(error.__traceback__)[-1:]), None)
    where = f" ({place.filename}, line {place.lineno})" if place else ""
    return f"raised {type(error).__name__}{': ' if said else ''}{said}{where}"


_named: set[str] = set()


def expect_user_code(module: str) -> None:
    """Call before a module that the user or an entry point names is imported: its errors are not ours."""
    package = module.partition(".")[0]
    if package != "rlds_beam":  # ours, although a user named it
        _named.add(package)


def is_users(error: BaseException) -> bool:
    """Whether an error came through a module that the user or an entry point names."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(str(frame.f_globals.get("__name__")).partition(".")[0] in _named for frame, _ in frames)


@contextlib.contextmanager
def user_code(what: str, ending: str = "") -> Iterator[None]:
    """Turns any error of the user's code in the block into a UsageError of one line, which names its place.

    Args:
      what: the start of the line: the option, and what was called.
      ending: the end of the line.
    """
    try:
        yield
    except (RldsBeamError, MemoryError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # also of sys.exit
        raise UsageError(f"{what} {describe_error(error)}{ending}") from error


def call_factory(factory: Callable[..., Any], flag: str, hint: str, **arguments: Any) -> Any:
    """Calls the user's factory; raises UsageError if it does not accept these arguments."""
    try:
        inspect.signature(factory).bind(**arguments)
    except TypeError as error:
        raise UsageError(
            f"{flag}: it is called with {', '.join(arguments) or 'no arguments'}: {error}; {hint}"
        ) from None
    return factory(**arguments)


def _import(name: str, flag: str) -> Callable[..., Any]:
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise UsageError(f"{flag}={name}: expected module:function, for example my_module:my_function")
    top = module.partition(".")[0]
    expect_user_code(top)
    if top not in sys.modules:
        _search(os.getcwd())
    try:
        value = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        where = ""
        if isinstance(error, ModuleNotFoundError) and error.name in (top, module):
            where = f". It is neither installed nor in the current directory, {os.getcwd()}, nor on PYTHONPATH"
        raise UsageError(f"{flag}={name}: {error}{where}") from error
    except SystemExit as error:
        raise UsageError(f"{flag}={name}: {describe_error(error)}") from error
    return cast("Callable[..., Any]", value)


def find_version(name: str, flag: str = "--policy_info_fn") -> str:
    """The version of `module:function`: its `__version__`, or a hash of its module's source.

    The whole module counts, because a function may call others in it. A function whose behavior depends on anything
    else (other modules, a file it reads) should have a `__version__`.

    Raises:
      UsageError: the function does not exist.
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
    """Makes a worker process find modules where its parent does; call it before anything is unpickled."""
    for directory in json.loads(os.environ.get(_PATH, "[]")):
        _search(directory)


def _search(directory: str) -> None:
    """Searches a directory for modules that are found nowhere else, also in worker processes that start later."""
    finders: list[Any] = sys.meta_path
    if _UserModules not in finders:
        finders.append(_UserModules)
    if directory not in _UserModules.directories:
        _UserModules.directories.append(directory)
        os.environ[_PATH] = json.dumps(_UserModules.directories)
