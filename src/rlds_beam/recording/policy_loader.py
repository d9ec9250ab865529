"""Loads behavior policies by name: `random`, `Head(base, argument=value)`, or `module:name`."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from rlds_beam.connectors.configuration import load
from rlds_beam.errors import UsageError
from rlds_beam.recording.connected_policy import ModulePolicy
from rlds_beam.recording.heads import HEADS
from rlds_beam.recording.models import fingerprint, is_model
from rlds_beam.recording.policies import BehaviorPolicy, Random
from rlds_beam.text import did_you_mean
from rlds_beam.user_functions import ByValue, call_factory, find_version, resolve

_POLICIES: dict[str, type[Any]] = {**HEADS, "ModulePolicy": ModulePolicy}
_CALL = re.compile(r"(?P<head>\w+)\((?P<arguments>.*)\)", re.DOTALL)


def load_policies(names: Sequence[str]) -> tuple[BehaviorPolicy, ...]:
    """Loads the policies of `--policy`. Raises UsageError if a policy does not exist, or two have the same name."""
    policies = [_load(name) for name in names]
    if not policies:
        raise UsageError("--policy is missing: name a policy, for example --policy=random")
    known = [policy.name for policy in policies]
    for name in known:
        if known.count(name) > 1:
            raise UsageError(f"{known.count(name)} policies are called {name}: give each a name=...")
    return tuple(policies)


def read_version(name: str) -> Any:
    """The version of a policy's code and model as JSON, to detect edits."""
    if isinstance(name, ByValue):
        return "in the name"
    call = _CALL.fullmatch(name)
    arguments = _arguments(name, call["arguments"]) if call else {"base_policy": name}
    base = arguments["base_policy"]
    if base == "random":
        return None
    version = fingerprint(base) if is_model(base) else find_version(base, "--policy")
    named = [arguments[part] for part in ("env_to_module", "module_to_env") if part in arguments]
    return [version, *(load(entry).plan() for entry in named)] if named else version


def _load(name: str) -> BehaviorPolicy:
    if isinstance(name, ByValue):
        return as_policy(name.value, str(name))
    if name == "random":
        return Random()
    call = _CALL.fullmatch(name)
    if call is not None:
        return _head(name, call["head"], _arguments(name, call["arguments"]))
    if is_model(name) or ":" not in name:
        raise UsageError(
            f"--policy={name}: expected random, module:name, or a head around a policy, for example "
            f"EpsilonGreedyHead({name}, epsilon=0.1); the heads are {', '.join(HEADS)}"
        )
    policy_object: Any = resolve(name, "--policy", callable_only=False)
    if callable(policy_object) and not isinstance(policy_object, BehaviorPolicy):
        policy_object = call_factory(policy_object, f"--policy={name}", "put a head around a function of observations")
    return as_policy(policy_object, name)


def as_policy(candidate: Any, name: str) -> BehaviorPolicy:
    """Converts an object to a policy: a head of SCOPE-RL to our head of the same name; a `BehaviorPolicy` is unchanged.

    Raises:
      UsageError: the object is neither.
    """
    if isinstance(candidate, BehaviorPolicy):
        return candidate
    kind = type(candidate).__name__
    if kind in HEADS and hasattr(candidate, "base_policy"):
        names = [field.name for field in dataclasses.fields(HEADS[kind]) if hasattr(candidate, field.name)]
        return HEADS[kind](**{field: getattr(candidate, field) for field in names})
    raise UsageError(f"--policy={name} is a {kind}, not a behavior policy; put a head around it: {', '.join(HEADS)}")


def _head(name: str, head: str, arguments: Mapping[str, Any]) -> BehaviorPolicy:
    if head not in _POLICIES:
        hint = did_you_mean(head, _POLICIES, otherwise=f"the heads are {', '.join(_POLICIES)}")
        raise UsageError(f"--policy={name}: no head {head}{hint}")
    for argument in arguments:
        fields = [field.name for field in dataclasses.fields(_POLICIES[head])]
        if argument not in fields:
            raise UsageError(f"--policy={name}: {head} has no argument {argument}{did_you_mean(argument, fields)}")
    return cast(BehaviorPolicy, _POLICIES[head](**arguments))


def _arguments(name: str, text: str) -> dict[str, Any]:
    """`my:q, epsilon=0.3` as arguments by name; the first one is the base policy."""
    parts = [part.strip() for part in re.split(r",(?![^\[(]*[\])])", text)]
    if not parts[0] or "=" in parts[0]:
        raise UsageError(
            f"--policy={name}: a head needs a policy first: EpsilonGreedyHead(module:function, epsilon=0.1)"
        )
    arguments: dict[str, Any] = {"base_policy": parts[0]}
    for part in parts[1:]:
        argument, equals, value = part.partition("=")
        if not equals:
            raise UsageError(f"--policy={name}: expected argument=value, found {part!r}")
        try:
            arguments[argument.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            arguments[argument.strip()] = value.strip()
    return arguments
