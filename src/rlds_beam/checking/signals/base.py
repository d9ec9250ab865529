"""What a quality signal is: `@signal` on a function of episodes adds one, and the function's docstring explains it.

    @signal("Motion", "share of steps", 0.2, remedy="drop such steps")
    def fast_share(episodes):
        \"\"\"Steps in which an action is larger than 1.\"\"\"
        return {path: episodes.share((abs(episodes.motions[path].values) > 1).any(axis=0)) for path in ("action",)}

A signal describes; it rejects nothing unless the user says so (`--reject`). Other packages add signals by entry points
(`rlds_beam.plugins`). Sources of the definitions: lerobot-doctor (github.com/jashshah999/lerobot-doctor),
score_lerobot_episodes (github.com/RoboticsData/score_lerobot_episodes), forge (github.com/arpitg1304/forge), openpi's
filter for DROID, and the papers named at the code of each signal.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from rlds_beam import plugins
from rlds_beam.errors import UsageError
from rlds_beam.typing import Array

GROUPS = ("Cameras", "Time", "Motion", "Episodes", "Text and metadata", "Dataset")
"""The groups of signals, in the order of reports."""

MIN_EPISODES = 10
"""Episodes below which nothing is usual: the signals that compare are then not measured."""


class Measured(NamedTuple):
    """The values of a signal for E episodes, and where they are.

    Attributes:
      values: (E,), NaN where there is none.
      step, stop: the steps [step, stop) of the worst (E,), NaN where they are unknown.
      other: for signals that count episodes, the place of the first of the others (E,), NaN where there is none.
    """

    values: Array
    step: Array | None = None
    stop: Array | None = None
    other: Array | None = None


Result: TypeAlias = Array | Measured | Mapping[str, Array] | Mapping[str, Measured]
"""The values of E episodes, or those of each field by its path."""


@dataclasses.dataclass(frozen=True)
class Signal:
    """A quality signal.

    Attributes:
      name: its name, which is its column in `signals.parquet`.
      group: one of `GROUPS`.
      summary: its meaning, in one line.
      unit: the unit of its values, for example `share of steps`.
      threshold: the default threshold.
      measure: computes it, from `Episodes`, or from the `Rows` of the whole dataset if it is relative.
      remedy: what to do about such episodes.
      misses: the defects of its kind that it cannot find; empty if there are none.
      needs: what must be true of the fields of its group.
      relative: whether it compares the episode with the rest of the dataset; then it is known only at the end.
      decodes: whether it needs decoded images (`Context.decoded`).
    """

    name: str
    group: str
    summary: str
    unit: str
    threshold: float
    measure: Callable[[Any], Result] = dataclasses.field(repr=False)
    remedy: str = ""
    misses: str = ""
    needs: str = ""
    relative: bool = False
    decodes: bool = False

    def breaks(self, value: float, threshold: float | None = None) -> bool:
        """Whether a value is beyond the threshold; a NaN (not measurable) never is."""
        return value > (self.threshold if threshold is None else threshold)

    def columns(self, episodes: Any) -> dict[str, Array]:
        """`jump/action`, `jump/action@step`, ... (E,) each; `jump` if it is about no field."""
        found = self.measure(episodes)
        columns: dict[str, Array] = {}
        for field, one in (found if isinstance(found, Mapping) else {"": found}).items():
            name = f"{self.name}/{field}" if field else self.name
            ends = zip(("", "@step", "@stop", "@other"), one if isinstance(one, Measured) else (one,), strict=False)
            columns |= {f"{name}{end}": values for end, values in ends if values is not None}
        return columns


SIGNALS: dict[str, Signal] = {}
"""All signals by name, in the order of reports."""

BROKEN: list[UsageError] = []
"""Why signals of installed packages cannot be used; measuring raises the first."""

STATISTICS: list[Callable[[Any], dict[str, Array]]] = []
"""What signals that compare episodes need of each one: functions of `Episodes`; see `statistics`."""

Function = TypeVar("Function", bound=Callable[[Any], Any])


def signal(
    group: str,
    unit: str,
    threshold: float,
    *,
    remedy: str = "",
    misses: str = "",
    needs: str = "",
    relative: bool = False,
    decodes: bool = False,
) -> Callable[[Function], Function]:
    """Adds a signal: a function of E episodes that returns its values (`Result`). The arguments are those of `Signal`.

    The name of the function is that of the signal; the first line of its docstring says what it measures.
    """

    def add(function: Function) -> Function:
        name = function.__name__
        condition = f"--reject='{name} > {threshold:g}'"
        leave_out = f"leave them out: `convert {condition}`"
        if relative:
            leave_out = f"leave them out: `check {condition} --write_exclude=FILE`, then `convert --exclude=FILE`"
        line = (function.__doc__ or name).partition("\n")[0].removesuffix(".")
        summary, advice = line[:1].lower() + line[1:], f"{remedy}; or {leave_out}" if remedy else leave_out
        add_signal(Signal(name, group, summary, unit, threshold, function, advice, misses, needs, relative, decodes))
        return function

    return add


def add_signal(signal: Signal) -> None:
    """Adds a signal, or replaces the one of its name."""
    SIGNALS[signal.name] = signal
    ordered = sorted(SIGNALS.items(), key=lambda item: GROUPS.index(item[1].group))
    SIGNALS.clear()
    SIGNALS.update(ordered)


def statistics(function: Function) -> Function:
    """Adds a function of E episodes that returns numbers by column: `#name/field` -> (E,), or (E, D) by dimension."""
    STATISTICS.append(function)
    return function


def once(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Computes a function of episodes that several signals need only once for them."""

    @functools.wraps(function)
    def cached(episodes: Any) -> Any:
        if function not in episodes.cache:
            episodes.cache[function] = function(episodes)
        return episodes.cache[function]

    return cached


def add_installed() -> None:
    """Adds the signals that installed packages declare: each entry point names a function with `@signal`.

    A module that is being imported, because it imports `signal`, adds its own when it comes to them.
    """
    for name in plugins.names("signals"):
        try:
            if not plugins.is_imported("signals", name):
                plugins.find("signals", name)
        except UsageError as error:
            BROKEN.append(error)
