"""Conditions on signals, for `--reject` and the browser's filter.

frozen_camera > 0.2             a signal: the worst of its fields
jump/action >= 8                one field of it
jump                            beyond the signal's own threshold
steps < 10, return < 0          several, separated by commas: any of them
metadata/success == false       a field of the episode
instruction == 'open it'
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam.checking.signals.base import SIGNALS
from rlds_beam.checking.signals.context import Context
from rlds_beam.checking.signals.table import measure
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import UsageError, Violation
from rlds_beam.text import did_you_mean, shorten, some

if TYPE_CHECKING:
    import pyarrow as pa

RULE = "signal_limit"
"""The rule of a violation that a condition found."""

_OPERATORS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_COMPUTE = {"<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal", "==": "equal", "!=": "not_equal"}
_NUMBERS = ("steps", "return", "shard", "position", "part")
_TEXTS = ("key", "split", "instruction", "rule", "detail")
_CONDITION = re.compile(
    r"""\s*(?P<name>[^\s<>=!'",]+)\s*((?P<op><=|>=|==|!=|<|>|=)\s*(?P<value>'[^']*'|"[^"]*"|[^\s<>=!'",]+))?\s*(,|$)"""
)
_MAX_CHARACTERS = 10_000


@dataclasses.dataclass(frozen=True)
class Condition:
    """A comparison of a column with a value.

    Attributes:
      name: the column: `frozen_camera`, `jump/action`, `steps`, `metadata/success`, ...
      operator: `<`, `<=`, `>`, `>=`, `==`, or `!=`.
      value: the number, flag, or text.
    """

    name: str
    operator: str
    value: float | bool | str

    def __str__(self) -> str:
        value = f"{self.value:g}" if isinstance(self.value, float) else repr(self.value)
        return f"{self.name} {self.operator} {value}"

    @property
    def signal(self) -> str | None:
        """The signal that it is about, if any."""
        name = self.name.partition("/")[0]
        return name if name in SIGNALS else None

    @property
    def is_relative(self) -> bool:
        """Whether only the whole dataset can tell."""
        return self.signal is not None and SIGNALS[self.signal].relative

    def holds(self, value: Any) -> bool:
        """Whether a value of the column meets it; one that is missing meets none."""
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return False
        if isinstance(value, str) != isinstance(self.value, str):
            return self.operator == "!="
        return bool(_OPERATORS[self.operator](value, self.value))


def parse_conditions(text: str | Iterable[str]) -> tuple[Condition, ...]:
    """Parses conditions, separated by commas.

    Raises:
      UsageError: a condition is malformed, or names no signal.
    """
    texts = [text] if isinstance(text, str) else list(text)
    return tuple(condition for text in texts for condition in _parse(text))


def parse_reject(text: str) -> tuple[Condition, ...]:
    """Parses the conditions of `--reject`; its errors name the option."""
    try:
        return parse_conditions(text)
    except UsageError as error:
        raise UsageError(f"--reject: {error}") from error


def _parse(text: str) -> list[Condition]:
    found, at = [], 0
    if len(text) > _MAX_CHARACTERS:
        raise UsageError(f"the conditions are too long: {len(text):,} characters; at most {_MAX_CHARACTERS:,}")
    while at < len(text):
        match = _CONDITION.match(text, at)
        if match is None:
            raise UsageError(
                f"{shorten(text[at:], 60)!r} is not a condition; expected for example frozen_camera > 0.2, "
                "jump/action >= 8, or steps < 10; commas separate several, of which any is enough"
            )
        found.append(_condition(match["name"], match["op"], match["value"]))
        at = match.end()
    if not found:
        raise UsageError("there is no condition; expected for example frozen_camera > 0.2")
    return found


def _condition(name: str, op: str | None, text: str | None) -> Condition:
    head = name.partition("/")[0]
    if head not in SIGNALS and name not in (*_NUMBERS, *_TEXTS) and not name.startswith("metadata/"):
        known = [*SIGNALS, *_NUMBERS, *_TEXTS]
        raise UsageError(f"there is no signal {shorten(name, 60)!r}{did_you_mean(head, known)}")
    if text is None or op is None:
        if head not in SIGNALS:
            raise UsageError(f"{shorten(name, 60)} needs a comparison, for example {name[:60]} > 10")
        return Condition(name, ">", float(SIGNALS[head].threshold))
    value = _value(text)
    op = "==" if op == "=" else op
    if isinstance(value, str) and (head in SIGNALS or name in _NUMBERS):
        raise UsageError(f"{shorten(name, 60)} is a number, but {shorten(text, 60)} is not")
    if isinstance(value, str) and op not in ("==", "!="):
        raise UsageError(f"{shorten(name, 60)} {op} {shorten(text, 60)}: texts can only be compared by == and !=")
    return Condition(name, op, str(text.strip("'\"")) if name in _TEXTS else value)


def _value(text: str) -> float | bool | str:
    if text[0] in "'\"":
        return text[1:-1]
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return float(text)
    except ValueError:
        return text


def matches(row: Mapping[str, Any], conditions: Sequence[Condition]) -> Condition | None:
    """The first condition that a row of the table meets; None if it meets none."""
    return next((condition for condition in conditions if condition.holds(row.get(condition.name))), None)


def mask(table: pa.Table, conditions: Sequence[Condition]) -> np.ndarray[Any, Any]:
    """Which rows meet any of the conditions, bool (E,)."""
    found = np.zeros(table.num_rows, bool)
    for condition in conditions:
        found |= _meets(table, condition)
    return found


def _meets(table: pa.Table, condition: Condition) -> np.ndarray[Any, Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    none = np.zeros(table.num_rows, bool)
    if condition.name not in table.column_names or pa.types.is_null(table[condition.name].type):
        return none
    column, is_text = table[condition.name], isinstance(condition.value, str)
    if pa.types.is_string(column.type) != is_text:
        return np.asarray(column.is_valid()) if condition.operator == "!=" else none
    if not is_text:
        column = column.cast(pa.float64(), safe=False)
    met = getattr(pc, _COMPUTE[condition.operator])(column, condition.value if is_text else float(condition.value))
    return np.asarray(met.fill_null(False))


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
        if condition.is_relative:
            quoted = shlex.quote(str(condition))
            raise UsageError(
                f"{option}={quoted}: {condition.signal} compares an episode with the whole dataset, which a "
                f"conversion does not know yet. Run `rlds-beam check INPUT --reject={quoted} "
                "--write_exclude=FILE` first, then convert with --exclude=FILE"
            )


@functools.lru_cache(maxsize=64)
def context_for(conditions: tuple[Condition, ...], context: Context) -> Context:
    """The context with only what the conditions need; nothing is decoded unless they need it."""
    signals = frozenset(condition.signal for condition in conditions if condition.signal is not None)
    groups = {SIGNALS[name].group for name in signals}
    decodes = any(SIGNALS[name].decodes for name in signals)
    return dataclasses.replace(
        context,
        cameras=context.cameras if "Cameras" in groups or "video_length" in signals else (),
        clocks=context.clocks if "Time" in groups else (),
        decoded=(context.decoded or 4) if decodes else 0,
        only=signals,
    )


def broken_conditions(episode: Episode, conditions: Sequence[Condition], context: Context) -> Violation | None:
    """The first condition that an episode meets, as a violation of the rule `signal_limit`; None if it meets none.

    Args:
      conditions: conditions that `check_single` accepts.
      context: the fields; `context_for` makes it cheap.
    """
    row = measure(episode, context).row
    found = matches(row, conditions)
    if found is None:
        return None
    value, field = row[found.name], found.name.partition("/")[2] if found.signal else None
    if found.signal is not None:
        field, step = field or row.get(f"{found.signal}@field"), row.get(f"{found.signal}@step")
        return Violation(RULE, f"{found.name} is {value:.3g} (rejected by {found})", field, step)
    shown = f"{value:g}" if isinstance(value, float) else shorten(value, 60)
    return Violation(RULE, f"{found.name} is {shown} (rejected by {found})")
