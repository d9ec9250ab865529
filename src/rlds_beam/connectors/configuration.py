"""Loads connectors: `--connectors=FlipChannels`, `module:name`, or a YAML or JSON file."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import inspect
import pickle
import re
import types
from collections.abc import Callable, Mapping
from typing import Any, cast

from rlds_beam import connectors, storage
from rlds_beam.connectors.base import Connector, ConnectorPipeline, rate_after
from rlds_beam.connectors.catalog import accepts, connector_class, describe_type, number_hint, type_hints
from rlds_beam.connectors.cleaning.presets import find_preset
from rlds_beam.connectors.fields import StepFields
from rlds_beam.connectors.given_meaning import Names, check_names, parse_names, with_attributes
from rlds_beam.encoding.checked_json import parse_given
from rlds_beam.errors import MissingExtraError, UsageError
from rlds_beam.reading.base import Source
from rlds_beam.text import count, did_you_mean, shorten
from rlds_beam.user_functions import (
    ByValue,
    check_configurable,
    find_version,
    qualified_name,
    resolve,
    resolve_configurable,
    user_code,
)


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
    def of(cls, options: Any) -> Configuration:
        """The connectors of a job's options: its lists of episodes, its tasks, its preset's, then its own."""
        name, preset = getattr(options, "connectors", None), getattr(options, "preset", None)
        given = cls() if name is None else load(name)
        kinds = {"exclude": connectors.DropListedEpisodes, "only": connectors.KeepListedEpisodes}
        first = [kind(file) for flag, kind in kinds.items() if (file := getattr(options, flag, None)) is not None]
        task, task_file = getattr(options, "task", None), getattr(options, "task_file", None)
        if task is not None or task_file is not None:
            first.append(connectors.FillLanguage(task, task_file))
        if preset is not None:
            first += parse(
                [dict(connector) for connector in find_preset(preset).connectors], f"--preset={preset}"
            ).connectors
        names = {**given.names, **parse_names(getattr(options, "names", ()))}
        return dataclasses.replace(given, connectors=(*first, *given.connectors), names=names)

    def for_source(self, source: Source) -> Configuration:
        """A copy whose connectors know the source and its rate; raises UsageError if one cannot use it."""
        own: list[Connector] = []
        for connector in self.connectors:
            if hasattr(connector, "for_source"):
                fps = rate_after(own, source.fps)
                connector = connector.for_source(source if fps == source.fps else with_attributes(source, fps=fps))
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
    if not isinstance(name, ByValue) and is_inline(name):
        return parse(entries(name), f"--connectors={shorten(name)}")
    if isinstance(name, ByValue) or not name.endswith((".yaml", ".yml", ".json")):
        if ":" not in name and not isinstance(name, ByValue):
            raise UsageError(
                f"--connectors={name}: expected connectors, for example DropIdleSteps, a YAML or JSON file of them, or "
                "module:name"
            )
        resolved: Any = resolve(name, "--connectors", callable_only=False)
        if isinstance(resolved, Configuration):
            return resolved
        return Configuration(flat(_of_class(resolved, name) if isinstance(resolved, type) else resolved))
    where = f"--connectors={name}"
    return parse(parse_given(storage.read_given(name, where), name, where), where)


def _of_class(connector_class: type, name: str) -> Any:
    """Creates a connector from a class that `--connectors` names, if its objects are callable."""
    check_configurable(
        connector_class, name, "--connectors", lambda cls: any("__call__" in vars(base) for base in cls.__mro__)
    )
    with user_code(f"--connectors={name}:"):
        return connector_class()


def parse(content: Any, where: str) -> Configuration:
    """Parses the content of a configuration file.

    Args:
      where: the name used in messages.

    Raises:
      UsageError: the content is not a valid configuration.
    """
    fields, names = StepFields(), {}
    if isinstance(content, Mapping):
        _check_names(content, ("connectors", "fields", "names"), where, "entry")
        named = content.get("names") or {}
        if not isinstance(named, Mapping):
            raise UsageError(f"{where}: names: expected a mapping of fields to lists of names")
        names = {str(path): check_names(list_, f"{where}: names: {path}") for path, list_ in named.items()}
        fields = _construct(StepFields, content.get("fields") or {}, f"{where}: fields")
        content = content.get("connectors")
    if not isinstance(content, list):
        raise UsageError(f"{where}: expected a list of connectors, or a mapping with the list as `connectors`")
    return Configuration(flat([_connector(entry, where) for entry in content]), fields, names)


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


def _connector(entry: Any, where: str) -> Connector:
    """One entry: `Name`, or `{Name: {argument: value}}`."""
    name, given = entry, None
    if isinstance(entry, Mapping) and len(entry) == 1:
        ((name, given),) = entry.items()
    if not isinstance(name, str) or not isinstance(given, Mapping | None):
        raise UsageError(
            f"{where}: {shorten(repr(entry))}: expected the name of a connector, or its name with a mapping of "
            "arguments"
        )
    make: Any
    if ":" in name:
        make = resolve_configurable(name, where)
    else:
        make = connector_class(name, where)
    if given is None and not isinstance(make, type):
        return cast(Connector, make)  # a bare function is a connector; with arguments, it returns one
    return cast(Connector, _construct(make, given or {}, f"{where}: {name}"))


def _construct(make: Callable[..., Any], given: Mapping[str, Any], where: str) -> Any:
    parameters = inspect.signature(make).parameters
    any_name = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {n: p for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    given = {f"{name}_" if f"{name}_" in named else name: value for name, value in given.items()}  # from -> from_
    _check_names(given, given if any_name else named, where, "argument")
    required = [name for name, p in named.items() if p.default is p.empty and name not in given]
    if required:
        others = f"; it takes {', '.join(named)}" if len(named) > 1 else ""
        raise UsageError(f"{where}: missing argument {required[0]}{others}")
    hints, values = type_hints(make), {}
    for name, value in given.items():
        if not accepts(hints.get(name, Any), value):
            hint = number_hint(value)
            raise UsageError(
                f"{where}: {name}: expected {describe_type(hints[name])}, got {shorten(repr(value))}{hint}"
            )
        values[name] = tuple(value) if isinstance(value, list) else value
    try:
        instance = make(**values)
    except MissingExtraError:
        raise
    except (TypeError, ValueError) as error:
        place, _, name = where.rpartition(": ")
        raise UsageError(f"{place if str(error).startswith(f'{name}:') else where}: {error}") from error
    for name, also in getattr(make, "functions", {}).items():
        if isinstance(given.get(name), str):  # imported above, but not called yet
            check_configurable(getattr(instance, name), given[name], f"{where}: {name}", also)
    return instance


def _check_names(given: Mapping[str, Any], known: Any, where: str, what: str) -> None:
    for name in given:
        if name not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            hint = did_you_mean(str(name), known, otherwise=takes)
            raise UsageError(f"{where}: there is no {what} {shorten(name)}{hint}")


def is_inline(text: str) -> bool:
    """Whether a value of `--connectors` lists connectors; otherwise it is a file or `module:name`."""
    return re.match(r"\s*\w+\s*(\(|,|$)", text) is not None and not text.endswith((".yaml", ".yml", ".json"))


def entries(text: str) -> list[dict[str, dict[str, Any]]]:
    """The entries of a connectors file that says the same: `[{"MinimumLength": {"transitions": 10}}]`.

    Nothing is evaluated: there are names of connectors, and literals.

    Raises:
      UsageError: the text is no such list, a connector does not exist, or it takes fewer arguments.
    """
    where = f"--connectors={shorten(text)}"
    try:
        parsed = ast.parse(f"[{text}]", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        parsed = None
    if not isinstance(parsed, ast.List):
        raise UsageError(f'{where}: expected a list such as "MinimumLength(10),FlipChannels", a file, or module:name')
    return [_entry(node, where) for node in parsed.elts]


def _entry(node: ast.expr, where: str) -> dict[str, dict[str, Any]]:
    call = node if isinstance(node, ast.Call) else None
    function = node if call is None else call.func
    if not isinstance(function, ast.Name):
        raise UsageError(
            f"{where}: {shorten(ast.unparse(node))}: expected the name of a connector; those without an entry point "
            "go into a file of connectors"
        )
    name = function.id
    takes = list(inspect.signature(connector_class(name, where)).parameters)
    given, named = (call.args, call.keywords) if call else ([], [])
    if len(given) > len(takes):
        raise UsageError(
            f"{where}: {name} takes {count(len(takes), 'argument')} ({', '.join(takes)}), not {len(given):,}"
        )
    arguments = dict(zip(takes, given, strict=False))
    for keyword in named:
        if keyword.arg is None or keyword.arg in arguments:
            twice = "**" if keyword.arg is None else f"{keyword.arg} is given twice"
            raise UsageError(f"{where}: {name}: {twice}; it takes {', '.join(takes)}")
        arguments[keyword.arg] = keyword.value
    return {name: {argument: _literal(value, f"{where}: {name}: {argument}") for argument, value in arguments.items()}}


def _literal(node: ast.expr, where: str) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        text = ast.unparse(node)
        quoted = f', for example "{text}"' if isinstance(node, (ast.Name, ast.Attribute)) else ""
        raise UsageError(f"{where}: expected a text in quotes, a number, or a list{quoted}") from None
