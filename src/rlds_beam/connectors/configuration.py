"""Loads connectors: `--connectors=FlipChannels`, `module:name`, or a YAML or JSON file; lists all by name."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import hashlib
import importlib
import inspect
import pickle
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from rlds_beam import connectors, plugins, storage
from rlds_beam.connectors import CONNECTORS
from rlds_beam.connectors.base import Connector, ConnectorPipeline, after_connectors
from rlds_beam.connectors.cleaning.presets import find_preset
from rlds_beam.connectors.fields import StepFields
from rlds_beam.encoding.metadata import parse_given, parse_json
from rlds_beam.errors import MissingExtraError, UsageError
from rlds_beam.reading.base import Source
from rlds_beam.text import did_you_mean, shorten
from rlds_beam.user_functions import (
    ByValue,
    check_configurable,
    find_version,
    qualified_name,
    resolve,
    user_code,
)

SECTIONS = {
    "Columns, returns, and advantages": ("learner.columns",),
    "Other observations": ("learner.observations",),
    "Sequences and states": ("learner.sequences",),
    "Off-policy evaluation": ("statistics.importance",),
    "Normalization": ("statistics.normalization",),
    "Other episodes": ("cleaning.edits", "cleaning.resampling"),
    "Cleaning": ("cleaning.selection", "cleaning.episode_lists"),
    "Action spaces, grippers": ("cleaning.rotations", "cleaning.relative_actions", "cleaning.dimensions"),
    "Images, text": ("cleaning.pixels", "cleaning.language", "cleaning.trajectory_functions"),
    "Agents, modules, batches": ("learner.agents",),
    "From a model to environments": ("learner.actions",),
    "Written for RLlib": ("learner.rllib",),
}
"""Section -> the modules whose connectors are in it. A connector of another module is an error."""

Names = Mapping[str, tuple[str, ...]]
"""The names of the values of fields, by path."""

_NAME_FILES = (".txt", ".yaml", ".yml", ".json")


@dataclasses.dataclass(frozen=True)
class Configuration:
    """The connectors that `--connectors` names. Picklable.

    Attributes:
      connectors: the connectors in order, with pipelines flattened.
      fields: which step fields hold the observation, the action, and so on.
      names: the names of the values of fields, by path: of the episodes as read, or as connectors return them.
    """

    connectors: tuple[Connector, ...] = ()
    fields: StepFields = dataclasses.field(default_factory=StepFields)
    names: Names = dataclasses.field(default_factory=dict)

    @classmethod
    def from_options(cls, options: Any) -> Configuration:
        """The connectors of a job's options: its lists of episodes, its tasks, its preset's, then its own."""
        name, preset = getattr(options, "connectors", None), getattr(options, "preset", None)
        given = cls() if name is None else load(name)
        first: list[Connector] = []
        for flag, kind in (("exclude", connectors.DropListedEpisodes), ("only", connectors.KeepListedEpisodes)):
            if (file := getattr(options, flag, None)) is not None:
                first.append(kind(file))
        task, task_file = getattr(options, "task", None), getattr(options, "task_file", None)
        if task is not None or task_file is not None:
            first.append(connectors.FillLanguage(task, task_file))
        if preset is not None:
            first += parse([*find_preset(preset).connectors], f"--preset={preset}").connectors
        names = {**given.names, **parse_names(getattr(options, "names", ()))}
        return dataclasses.replace(given, connectors=(*first, *given.connectors), names=names)

    def for_source(self, source: Source) -> Configuration:
        """A copy whose connectors know the source and its rate; raises UsageError if one cannot use it."""
        own: list[Connector] = []
        for connector in self.connectors:
            if hasattr(connector, "for_source"):
                connector = connector.for_source(after_connectors(own, source))
            own.append(connector)
        return dataclasses.replace(self, connectors=tuple(own))

    def plan(self) -> dict[str, Any]:
        """The configuration that the result depends on, as JSON: names, arguments, and versions of user code."""
        return {
            "connectors": [describe_connector(connector) for connector in self.connectors],
            "fields": dataclasses.asdict(self.fields),
            **({"names": {path: [*names] for path, names in self.names.items()}} if self.names else {}),
        }


def load(name: str) -> Configuration:
    """Loads `--connectors`: `module:name` (a connector, a pipeline, or a list), a list of names, or a file.

        MinimumLength(10),FlipChannels

    A YAML or JSON file holds a list of names, with or without arguments; or a mapping with the list as `connectors`,
    `fields`, and `names`, which are those of `--names`. A file can call only connector classes and what is marked with
    `configurable`. But the modules it names are imported, so treat a file as code.

        fields: {obs: observation/state, extras: [action_logp]}
        names: {action: [x, y, z, gripper]}
        connectors:
          - AddObservationsFromEpisodesToBatch
          - AddTimeDimToBatchAndZeroPad: {max_seq_len: 20}
          - my_project.connectors:ClipReward: {limit: 1.0}

    Raises:
      UsageError: the file, the function, the connector, or an argument does not exist.
    """
    if not isinstance(name, ByValue):
        where = f"--connectors={name}"
        if name.endswith((".yaml", ".yml", ".json")):
            return parse(parse_given(storage.read_text(name), name, where), where)
        if re.match(r"\s*\w+\s*(\(|,|$)", name):
            return Configuration(flat(_parse_calls(name)))
    resolved: Any = resolve(name, "--connectors", callable_only=False)
    if isinstance(resolved, Configuration):
        return resolved
    if isinstance(resolved, type):  # a class whose objects are callable
        check_configurable(resolved, name, "--connectors", lambda cls: any("__call__" in vars(c) for c in cls.__mro__))
        with user_code(f"--connectors={name}:"):
            resolved = resolved()
    return Configuration(flat(resolved))


def parse(content: Any, where: str) -> Configuration:
    """Parses the content of a configuration file.

    Args:
      where: the name used in messages.

    Raises:
      UsageError: the content is not a valid configuration.
    """
    try:
        file = msgspec.convert(content if isinstance(content, Mapping) else {"connectors": content}, _File)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}: expected names of connectors, or {{name: {{argument: value}}}}") from None
    connectors = []
    for entry in file.connectors:
        ((name, given), *more) = [(entry, None)] if isinstance(entry, str) else entry.items()
        if more:
            raise UsageError(f"{where}: {shorten(repr(entry))}: expected one name of a connector, with its arguments")
        if ":" in name:
            make: Any = resolve(name, where, callable_only=False)
            check_configurable(make, name, where)
        else:
            make = connector_class(name, where)
        if given is not None or isinstance(make, type):
            make = _construct(make, (), given or {}, f"{where}: {name}")
        connectors.append(make)  # a bare function is a connector; with arguments, it returns one
    names = {path: check_names(given, f"{where}: names: {path}") for path, given in (file.names or {}).items()}
    fields = _construct(StepFields, (), file.fields or {}, f"{where}: fields")
    return Configuration(flat(connectors), fields, names)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """The content of a configuration file."""

    connectors: list[str | dict[str, dict[str, Any] | None]]
    fields: dict[str, Any] | None = None
    names: dict[str, list[str]] | None = None


def parse_names(entries: Sequence[str]) -> Names:
    """The names of each field, from the values of `--names`: `action=x,y,z`, or `action=names.txt`.

    A file has a name on each line, or is a YAML or JSON list.

    Raises:
      UsageError: an entry is malformed, or its file cannot be read.
    """
    names: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        path, equals, text = entry.partition("=")
        if not (path and equals and text):
            raise UsageError(f"--names={shorten(entry)}: expected FIELD=NAME,NAME,... or FIELD=FILE")
        if path in names:
            raise UsageError(f"--names={path}=...: given twice for this field; give all its names at once")
        names[path] = check_names(_read_names(text, f"--names={path}"), f"--names={path}")
    return names


def _read_names(text: str, where: str) -> Any:
    if text.startswith("["):  # a list from Python
        return parse_json(text, where)
    if not text.endswith(_NAME_FILES):
        return text.split(",")
    content = storage.read_text(text)
    if text.endswith(".txt"):
        return [line.strip() for line in content.splitlines() if line.strip()]
    return parse_given(content, text, f"{where}={text}")


def check_names(names: Any, where: str) -> tuple[str, ...]:
    """The names of a field. Raises UsageError if they are not a list of texts."""
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) and name.strip() for name in names):
        raise UsageError(f"{where}: expected a list of names, none of them empty")
    return tuple(name.strip() for name in names)


def flat(connectors: Any) -> tuple[Connector, ...]:
    """Flattens a connector, a list, or nested pipelines to a tuple of connectors."""
    if isinstance(connectors, (ConnectorPipeline, list, tuple)):
        return tuple(connector for part in connectors for connector in flat(part))
    if not callable(connectors):
        raise UsageError(f"--connectors: {connectors!r} is a {type(connectors).__name__}, not a connector")
    return (cast(Connector, connectors),)


def describe_connector(connector: Connector) -> dict[str, Any]:
    """Describes a connector as JSON, so that a change to it or to its code can be detected."""
    of: Any = connector if isinstance(connector, types.FunctionType) else type(connector)
    if of.__module__.startswith(f"{__package__}."):
        name, version = of.__qualname__, None
    else:
        name = qualified_name(of)
        version = find_version(name, "--connectors")
    arguments = {} if of is connector else {k: _plain(v) for k, v in sorted(vars(connector).items()) if k[0] != "_"}
    return {"name": str(name), **({"version": version} if version else {}), "arguments": arguments}


def _plain(value: Any) -> Any:
    """A value as JSON, or its digest if it has no JSON form."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (types.FunctionType, type)):
        name = qualified_name(value)
        return [str(name), find_version(name, "--connectors")]
    return f"sha256:{hashlib.sha256(pickle.dumps(value, protocol=4)).hexdigest()}"


def _parse_calls(text: str) -> list[Connector]:
    """The connectors of `MinimumLength(10),FlipChannels`. Nothing is evaluated but literals."""
    where = f"--connectors={shorten(text)}"
    found = []
    try:
        for node in ast.parse(f"[{text}]", mode="eval").body.elts:  # type: ignore[attr-defined]
            call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
            arguments = [ast.literal_eval(value) for value in call.args]
            named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
            found.append((ast.unparse(call.func), arguments, named))
    except (SyntaxError, ValueError, TypeError, AttributeError, RecursionError, MemoryError):
        raise UsageError(
            f"{where}: expected a list such as \"MinimumLength(10),DropFields('info')\", a YAML or JSON file, or "
            "module:name"
        ) from None
    return [
        _construct(connector_class(name, where), arguments, named, f"{where}: {name}")
        for name, arguments, named in found
    ]


def _construct(make: Callable[..., Any], positional: Sequence[Any], given: Mapping[str, Any], where: str) -> Any:
    """Calls a class or function with arguments of YAML or JSON, whose types are those of its annotations."""
    signature = inspect.signature(make)
    given = {f"{name}_" if f"{name}_" in signature.parameters else str(name): v for name, v in given.items()}  # from_
    try:
        bound = signature.bind(*positional, **given)
    except TypeError as error:
        raise UsageError(f"{where}: {error}; it takes {', '.join(signature.parameters) or 'none'}") from None
    called = getattr(make, "__init__", None) if isinstance(make, type) else make
    names = vars(sys.modules[make.__module__]) if getattr(make, "__module__", None) in sys.modules else {}
    hints: dict[str, Any] = {}
    for name, annotation in getattr(called, "__annotations__", {}).items():
        with contextlib.suppress(NameError, TypeError, SyntaxError):  # the name is imported for type checkers only
            hints |= typing.get_type_hints(types.SimpleNamespace(__annotations__={name: annotation}), names)
    for name, value in bound.arguments.items():
        hint = hints.get(name, Any)
        texts = hint | str if hint in (Sequence[str], Sequence[str] | None, tuple[str, ...]) else hint  # one is enough
        try:
            msgspec.convert(value, texts)
        except msgspec.ValidationError as error:
            number = isinstance(value, str) and re.fullmatch(r"[-+]?\d+[eE][-+]?\d+", value)
            hint = " (YAML reads it as text: write a dot, 1.0e-4)" if number else ""
            raise UsageError(f"{where}: {name}: {error}, {shorten(repr(value))}{hint}") from None
        except TypeError:  # a type that is not of YAML, such as a function
            pass
        bound.arguments[name] = tuple(value) if isinstance(value, list) else value
    try:
        instance = make(*bound.args, **bound.kwargs)
    except MissingExtraError:
        raise
    except (TypeError, ValueError) as error:
        place, _, name = where.rpartition(": ")
        raise UsageError(f"{place if str(error).startswith(f'{name}:') else where}: {error}") from error
    for name, also in getattr(make, "functions", {}).items():
        if isinstance(bound.arguments.get(name), str):  # imported above, but not called yet
            check_configurable(getattr(instance, name), bound.arguments[name], f"{where}: {name}", also)
    return instance


def names(modules: tuple[str, ...]) -> list[str]:
    """The connectors of modules, in the order in which they are defined."""
    loaded = [(module, importlib.import_module(f"rlds_beam.connectors.{module}")) for module in modules]
    return [name for module, loaded_module in loaded for name in vars(loaded_module) if CONNECTORS.get(name) == module]


def connector_names() -> list[str]:
    """All connectors, with those of other packages at the end."""
    return [*CONNECTORS, *(name for name in plugins.names("connectors") if name not in CONNECTORS)]


def connector_class(name: str, where: str) -> Any:
    """The class (or function) of a connector.

    Args:
      where: the place of the name, for messages.

    Raises:
      UsageError: there is none of that name, or another package's cannot be used.
    """
    if name in CONNECTORS:
        return getattr(importlib.import_module(f"rlds_beam.connectors.{CONNECTORS[name]}"), name)
    found = plugins.find("connectors", name)
    if found is None:
        raise UsageError(f"{where}: there is no connector {shorten(name)}{did_you_mean(name, connector_names())}")
    check_configurable(found, name, where)
    return found
