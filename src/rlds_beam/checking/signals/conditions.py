"""Conditions on signals, for `--reject` and the browser's filter: `NAME OPERATOR NUMBER`.

frozen_camera > 0.2             a signal: the worst of its fields
jump/action >= 8                one field of it
steps < 10, return < 0          several, separated by commas: any of them
metadata/success == false       a number or flag of the episode
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam.checking.signals.base import SIGNALS
from rlds_beam.checking.signals.episodes import Context
from rlds_beam.checking.signals.table import measure
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import UsageError, Violation
from rlds_beam.text import did_you_mean, shorten, some

if TYPE_CHECKING:
    import pyarrow as pa

RULE = "signal_limit"
"""The rule of a violation that a condition found."""

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}

_NUMBERS = ("steps", "return", "shard", "position", "part")
_CONDITION = re.compile(r"\s*([^\s<>=!,]+)\s*(<=|>=|==|!=|<|>)\s*([^\s<>=!,]+)\s*")
_MAX_CHARACTERS = 10_000


@dataclasses.dataclass(frozen=True)
class Condition:
    """A comparison of a column with a number.

    Attributes:
      name: the column: `frozen_camera`, `jump/action`, `steps`, `metadata/success`, ...
      operator: `<`, `<=`, `>`, `>=`, `==`, or `!=`.
      value: the number; 0 or 1 for a flag.
    """

    name: str
    operator: str
    value: float

    def __str__(self) -> str:
        return f"{self.name} {self.operator} {self.value:g}"

    @property
    def signal(self) -> str | None:
        """The signal that it is about, if any."""
        name = self.name.partition("/")[0]
        return name if name in SIGNALS else None

    def holds(self, value: Any) -> bool:
        """Whether a value of the column meets it; one that is missing, or a text, meets none."""
        if not isinstance(value, (bool, int, float)) or math.isnan(value):
            return False
        return bool(_OPERATORS[self.operator](value, self.value))

    def find(self, table: pa.Table) -> np.ndarray[Any, Any]:
        """Which rows of a table meet it, bool (E,)."""
        import pyarrow as pa

        kind = table.schema.field(self.name).type if self.name in table.column_names else pa.null()
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
            return np.zeros(table.num_rows, bool)
        values = table[self.name].cast(pa.float64(), safe=False).to_numpy()  # NaN for null
        return np.asarray(~np.isnan(values) & _OPERATORS[self.operator](values, self.value))


def parse_conditions(text: str) -> tuple[Condition, ...]:
    """Parses conditions, separated by commas.

    Raises:
      UsageError: a condition is malformed, or names no signal.
    """
    if len(text) > _MAX_CHARACTERS:
        raise UsageError(f"the conditions are too long: {len(text):,} characters; at most {_MAX_CHARACTERS:,}")
    return tuple(_parse(part) for part in text.split(","))


def parse_reject(text: str) -> tuple[Condition, ...]:
    """Parses the conditions of `--reject`; its errors name the option."""
    try:
        return parse_conditions(text)
    except UsageError as error:
        raise UsageError(f"--reject: {error}") from error


def _parse(text: str) -> Condition:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{shorten(text, 60)!r} is not a condition; expected NAME OPERATOR NUMBER, for example "
            "frozen_camera > 0.2, jump/action >= 8, or steps < 10; commas separate several, of which any is enough"
        )
    name, op, value = match.groups()
    head = name.partition("/")[0]
    if head not in SIGNALS and name not in _NUMBERS and not name.startswith("metadata/"):
        hint = did_you_mean(head, [*SIGNALS, *_NUMBERS])
        raise UsageError(f"there is no signal {shorten(name, 60)!r}{hint}")
    try:
        number = float({"true": "1", "false": "0"}.get(value.lower(), value))
    except ValueError:
        raise UsageError(f"{shorten(name, 60)} is compared with numbers, not with {shorten(value, 60)}") from None
    return Condition(name, op, number)


def matches(row: Mapping[str, Any], conditions: Sequence[Condition]) -> Condition | None:
    """The first condition that a row of the table meets; None if it meets none."""
    return next((condition for condition in conditions if condition.holds(row.get(condition.name))), None)


def mask(table: pa.Table, conditions: Sequence[Condition]) -> np.ndarray[Any, Any]:
    """Which rows meet any of the conditions, bool (E,)."""
    return np.asarray(np.logical_or.reduce([condition.find(table) for condition in conditions]))


def check_known(conditions: Sequence[Condition], columns: Collection[str]) -> None:
    """Checks that a table has the columns of all conditions.

    Raises:
      UsageError: it lacks one.
    """
    for condition in conditions:
        if condition.name not in columns:
            hint = did_you_mean(condition.name, columns)
            raise UsageError(f"{condition}: the dataset has no {shorten(condition.name, 60)}{hint}")


def check_fields(conditions: Sequence[Condition], schema: Schema, option: str = "--reject") -> None:
    """Checks before the pass that the dataset has the fields that conditions name.

    A field may still lack a signal, for example `jump` of an image: `check_known` finds that in the table.

    Raises:
      UsageError: it lacks one.
    """
    for condition in conditions:
        head, _, field = condition.name.partition("/")
        known = schema.metadata if head == "metadata" else schema.steps
        if field and field not in known:
            hint = did_you_mean(field, known, otherwise=f"it has {some([*known])}" if known else "it has none")
            what = "episode-level field" if head == "metadata" else "field"
            raise UsageError(f"{option}: {condition}: the dataset has no {what} {shorten(field, 60)}{hint}")


def check_single(conditions: Sequence[Condition], option: str = "--reject") -> None:
    """Checks that each condition can be decided from one episode alone, as a conversion must.

    Raises:
      UsageError: a condition compares episodes; the message names the two steps that work.
    """
    for condition in conditions:
        if condition.signal is not None and SIGNALS[condition.signal].relative:
            quoted = shlex.quote(str(condition))
            raise UsageError(
                f"{option}={quoted}: {condition.signal} compares an episode with the whole dataset, which a "
                f"conversion does not know yet. Run `rlds-beam check INPUT --reject={quoted} "
                "--write_exclude=FILE` first, then convert with --exclude=FILE"
            )


@functools.lru_cache(maxsize=64)
def context_for(conditions: tuple[Condition, ...], context: Context) -> Context:
    """The context with only what the conditions need; nothing is decoded unless they need it."""
    names = frozenset(condition.signal for condition in conditions if condition.signal is not None)
    groups = {SIGNALS[name].group for name in names}
    decodes = any(SIGNALS[name].decodes for name in names)
    return dataclasses.replace(
        context,
        cameras=context.cameras if "Cameras" in groups else (),
        clocks=context.clocks if "Time" in groups else (),
        decoded=(context.decoded or 4) if decodes else 0,
        only=names,
    )


def broken_conditions(episode: Episode, conditions: Sequence[Condition], context: Context) -> Violation | None:
    """The first condition that an episode meets, as a violation of the rule `signal_limit`; None if it meets none.

    Args:
      conditions: conditions that `check_single` accepts.
      context: the fields; `context_for` makes it cheap.
    """
    row = measure(episode, context)
    found = matches(row, conditions)
    if found is None:
        return None
    detail = f"{found.name} is {row[found.name]:.3g} (rejected by {found})"
    if found.signal is None:
        return Violation(RULE, detail)
    field = found.name.partition("/")[2] or row.get(f"{found.signal}@field")
    return Violation(RULE, detail, field, row.get(f"{found.signal}@step"))
