"""The outputs by name, and the options that each reads."""

from __future__ import annotations

import dataclasses
import unicodedata
from typing import Any, NamedTuple, cast

from rlds_beam.connectors.configuration import Configuration
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.errors import UsageError
from rlds_beam.formats.columns.options import ColumnsOptions
from rlds_beam.formats.keep_ranges.options import KeepRangesOptions
from rlds_beam.formats.lerobot.options import LerobotOptions
from rlds_beam.formats.rlds.options import RldsOptions
from rlds_beam.formats.scope_rl.options import ScopeRlOptions
from rlds_beam.options import Options, options_given
from rlds_beam.output.base import Output
from rlds_beam.output.capabilities import LearnerColumns, SeveralSplits, StoredNames
from rlds_beam.output.options import OutputOptions
from rlds_beam.reading.base import Source
from rlds_beam.text import did_you_mean, shortened
from rlds_beam.trajectories.options import FrameOptions, ItemOptions
from rlds_beam.user_functions import resolve

_MOST_BYTES = 230
"""File systems take 255 for the name of a file; it has an ending, and more of it while it is written."""
"""Characters of a name in an error."""

TRAJECTORIES, COLUMNS, RLDS, LEROBOT = "trajectories", "columns", "rlds", "lerobot"


class KnownOutput(NamedTuple):
    """An output that has a name.

    Attributes:
      kind: its class, as `module:Class`.
      groups: the groups of options that are for this output.
      reads: the names of options in `OutputOptions` that it reads.
    """

    kind: str
    groups: tuple[type[Options], ...] = ()
    reads: frozenset[str] = frozenset()

    @property
    def options(self) -> frozenset[str]:
        """The names of all options that it reads."""
        return self.reads.union(field.name for group in self.groups for field in dataclasses.fields(cast(Any, group)))


OUTPUTS = {
    TRAJECTORIES: KnownOutput(
        "rlds_beam.formats.trajectories.output:TrajectoryOutput",
        (FrameOptions, ItemOptions),
        frozenset({"keep", "images"}),
    ),
    COLUMNS: KnownOutput("rlds_beam.formats.columns.output:ColumnsOutput", (ColumnsOptions,)),
    RLDS: KnownOutput("rlds_beam.formats.rlds.output:RldsOutput", (ColumnsOptions, RldsOptions)),
    "keep_ranges": KnownOutput("rlds_beam.formats.keep_ranges.output:KeepRangesOutput", (KeepRangesOptions,)),
    "numpy": KnownOutput("rlds_beam.formats.numpy.output:NumpyOutput", reads=frozenset({"images"})),
    "rllib": KnownOutput("rlds_beam.formats.rllib.output:RllibOutput"),
    "d3rlpy": KnownOutput("rlds_beam.formats.d3rlpy.output:D3rlpyOutput"),
    "scope_rl": KnownOutput("rlds_beam.formats.scope_rl.output:ScopeRlOutput", (ScopeRlOptions,)),
    "minari": KnownOutput("rlds_beam.formats.minari.output:MinariOutput", reads=frozenset({"images"})),
    LEROBOT: KnownOutput("rlds_beam.formats.lerobot.output:LerobotOutput", (LerobotOptions,), frozenset({"images"})),
}
"""The outputs by the name that `--to` gives them."""

_OF_A_USER = KnownOutput("", reads=frozenset({"images"}))
"""What an output that is named as `module:Class` reads of the options."""


def create_output(source: Source, connecting: ConnectorRunner, directory: str, options: Any) -> Output:
    """The output that `options.to` names, for a dataset; touches nothing.

    Raises:
      UsageError: there is no such output; it cannot hold such episodes; or an option is for another output.
    """
    output_class = _output_class(options.to)
    _refuse_options_of_others(options)
    if connecting.splits and not issubclass(output_class, SeveralSplits):
        raise UsageError(f"--connectors: SplitEpisodes is for --to=rlds, not --to={options.to}: divide RLDS first")
    if not issubclass(output_class, LearnerColumns):
        connecting.refuse_columns("--to=columns")
    output = output_class.create(source, connecting, directory, options)
    if isinstance(output, StoredNames):
        _check_stored_names(output, options.to)
    return output


def _check_stored_names(output: StoredNames, to: str) -> None:
    """Raises UsageError for a field whose name cannot be that of a file, or of an object in one."""
    taken: dict[str, str] = {}
    for path, name in output.stored_names():
        why = next((why for part in name.split("/") if (why := _unusable(part)) is not None), None)
        if name in taken:
            why = f"it would be stored as {name}, and so would {taken[name]}"
        if why is not None:
            raise UsageError(
                f"--to={to}: the field {shortened(path, 60)!r} cannot be stored: {why}. Rename it with --connectors"
            )
        taken[name] = path


def _unusable(name: str) -> str | None:
    """Why a file or an object of a file cannot have the name; None if it can."""
    if name in ("", ".", ".."):
        return f"{name!r} is no name of a file or an object"
    if any(unicodedata.category(character).startswith("C") for character in name):
        return "its name has a control character"
    size = len(name.encode())
    return f"its name takes {size} bytes, {_MOST_BYTES} at most" if size > _MOST_BYTES else None


def configuration_for(options: Any) -> Configuration:
    """The connectors that `--connectors` names; where it names none, those that the output has by default.

    Raises:
      UsageError: there is no such output, or no such connectors.
    """
    configuration = Configuration.of(options)
    if options.connectors is not None:
        return configuration
    output_class = _output_class(options.to)
    defaults = output_class.default_connectors if issubclass(output_class, LearnerColumns) else ()
    return dataclasses.replace(configuration, connectors=(*configuration.connectors, *defaults))


def _output_class(to: str) -> type[Output]:
    kind = OUTPUTS[to].kind if to in OUTPUTS else to
    if ":" not in kind:
        raise UsageError(
            f"--to={to}: there is no such output{did_you_mean(to, OUTPUTS)}; there are {', '.join(OUTPUTS)}, and "
            "module:Class for one of your own"
        )
    output_class = resolve(kind, "--to")
    if not (isinstance(output_class, type) and issubclass(output_class, Output)):
        raise UsageError(f"--to={to}: it is not a class that inherits from rlds_beam.output.base.Output")
    return output_class


def _refuse_options_of_others(options: Any) -> None:
    """Raises UsageError for an option of an output that is not asked for."""
    read = OUTPUTS.get(options.to, _OF_A_USER).options
    groups: list[type[Options]] = [
        OutputOptions,
        *(group for known in OUTPUTS.values() for group in known.groups if isinstance(options, group)),
    ]
    for name in dict.fromkeys(options_given(options, *groups)):
        names = [to for to, known in OUTPUTS.items() if name in known.options]
        if names and name not in read:
            raise UsageError(f"--{name} is for {' and '.join(f'--to={to}' for to in names)}, not --to={options.to}")
