"""The registry of dataset formats: the names that `--from` and `--to` accept.

The help, errors, the table of formats in the documentation, and the tests of all formats are generated from `FORMATS`,
and from the entry points `rlds_beam.formats` of other packages (`plugins`).
"""

from __future__ import annotations

import contextlib
import typing
from typing import Any, NamedTuple

from rlds_beam import plugins
from rlds_beam.errors import UsageError
from rlds_beam.formats import format_options
from rlds_beam.options import Options
from rlds_beam.user_functions import resolve

if typing.TYPE_CHECKING:
    from rlds_beam.output.base import Output
    from rlds_beam.reading.base import Source

RLDS, TRAJECTORIES, COLUMNS, LEROBOT, MERGED = "rlds", "trajectories", "columns", "lerobot", "merged"


class Format(NamedTuple):
    """A dataset format.

        ROBOT_LOG = Format(source="my_robot.logs:LogSource", names=("*.robotlog",))

    Attributes:
      source, output: the classes that read and write it, as `module:Class`; empty if it cannot be read or written.
      source_options, output_options: the `options_class` of our formats, so that the help need not import the format.
      names: the names of files that it is recognized by (`DirectoryListing.find`); empty if only `--from` names it.
      reads_several: whether the source reads several directories as one dataset.
    """

    source: str = ""
    output: str = ""
    source_options: type[Options] = Options
    output_options: type[Options] = Options
    names: tuple[str, ...] = ()
    reads_several: bool = False


FORMATS = {
    RLDS: Format(
        source="rlds_beam.formats.rlds.source:RldsSource",
        output="rlds_beam.formats.rlds.output:RldsOutput",
        output_options=format_options.RldsOptions,
        names=("features.json", "*.tfrecord*", "*.array_record*", "[0-9]*/features.json"),
    ),
    MERGED: Format(
        source="rlds_beam.formats.merged.source:MergedSource",
        source_options=format_options.MergeOptions,
    ),
    TRAJECTORIES: Format(
        output="rlds_beam.formats.trajectories.output:TrajectoryOutput",
        output_options=format_options.TrajectoryOptions,
    ),
    COLUMNS: Format(
        output="rlds_beam.formats.columns.output:ColumnsOutput",
        output_options=format_options.ColumnsOptions,
    ),
    LEROBOT: Format(
        source="rlds_beam.formats.lerobot.source:LerobotSource",
        output="rlds_beam.formats.lerobot.output:LerobotOutput",
        output_options=format_options.LerobotOptions,
        names=("meta/info.json",),
    ),
    "numpy": Format(output="rlds_beam.formats.numpy.output:NumpyOutput"),
    "npz": Format(
        source="rlds_beam.formats.profiles.source:NpzSource",
        source_options=format_options.ProfileOptions,
        names=("*.npz",),
        reads_several=True,
    ),
    "zarr": Format(
        source="rlds_beam.formats.profiles.source:ZarrSource",
        source_options=format_options.ProfileOptions,
        output="rlds_beam.formats.zarr.output:ZarrOutput",
        output_options=format_options.ZarrOptions,
        names=("meta/episode_ends", "*.zarr.zip", "*.zarr/meta/episode_ends"),
        reads_several=True,
    ),
    "hdf5": Format(
        source="rlds_beam.formats.profiles.source:Hdf5Source",
        source_options=format_options.ProfileOptions,
        names=("**/*.hdf5", "**/*.h5"),
        reads_several=True,
    ),
    "envlogger": Format(
        source="rlds_beam.formats.envlogger.source:EnvLoggerSource",
        names=("metadata.riegeli", "*/steps.riegeli"),
        reads_several=True,
    ),
    "ros2": Format(
        source="rlds_beam.formats.ros2.source:Ros2Source",
        source_options=format_options.Ros2Options,
        names=("*.mcap*", "*.db3*", "*/*.mcap*", "*/*.db3*"),
        reads_several=True,
    ),
    "scope_rl": Format(
        output="rlds_beam.formats.scope_rl.output:ScopeRlOutput",
        output_options=format_options.ScopeRlOptions,
    ),
}
"""Our formats by name, in the order of the help."""

SOURCES = tuple(name for name, known in FORMATS.items() if known.source)
"""Our formats that can be read."""
OUTPUTS = tuple(name for name, known in FORMATS.items() if known.output)
"""Our formats that can be written."""


def find_format(name: str) -> Format | None:
    """The format of that name, ours or another package's; None if there is none.

    Raises:
      UsageError: it is another package's, and cannot be used.
    """
    found = FORMATS.get(name) or (None if ":" in name else plugins.find("formats", name))
    if not isinstance(found, Format | None):
        raise UsageError(f"{name}: its entry point is a {type(found).__name__}, not a rlds_beam.formats.Format")
    return found


def other_names() -> list[str]:
    """The formats that other packages declare, which cannot replace a built-in name. Imports nothing."""
    return [name for name in plugins.names("formats") if name not in FORMATS]


def find_readable(name: str) -> Format | None:
    """The format that `--from` takes by this name; None also if it is another package's, and cannot be used."""
    with contextlib.suppress(UsageError):
        known = find_format(name)
        return known if known is not None and known.source else None
    return None


def source_class(from_: str) -> type[Source]:
    """The source that `--from` names. Raises UsageError if there is none of that name."""
    from rlds_beam.reading.base import Source

    return typing.cast("type[Source]", _find_class("from", from_, Source))


def output_class(to: str) -> type[Output]:
    """The output that `--to` names. Raises UsageError if there is none of that name."""
    from rlds_beam.output.base import Output

    return typing.cast("type[Output]", _find_class("to", to, Output))


def _find_class(flag: str, name: str, base: type[Any]) -> type[Any]:
    known = find_format(name)
    path = name if known is None else known.source if flag == "from" else known.output
    if ":" not in path:
        names = ", ".join([*(SOURCES if flag == "from" else OUTPUTS), *other_names()])
        kind = base.__name__.lower()
        raise UsageError(f"--{flag}={name}: there is no such {kind}; choose {names}, or module:Class for your own")
    named = resolve(path, f"--{flag}")
    if not (isinstance(named, type) and issubclass(named, base)):
        contract = f"{base.__module__.removesuffix('.base')}.{base.__name__}"
        raise UsageError(f"--{flag}={name}: not a subclass of {contract}")
    if lacks := getattr(named, "__abstractmethods__", ()):
        raise UsageError(f"--{flag}={name}: it lacks {', '.join(sorted(lacks))}")
    return named


def source_options(from_: str) -> type[Options]:
    """The options of the source that `--from` names. Raises UsageError if there is no such source."""
    return FORMATS[from_].source_options if from_ in SOURCES else source_class(from_).options_class


def output_options(to: str) -> type[Options]:
    """The options of the output that `--to` names. Raises UsageError if there is no such output."""
    return FORMATS[to].output_options if to in OUTPUTS else output_class(to).options_class
