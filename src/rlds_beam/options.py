"""The options of a job, in groups that jobs mix: each is Python API, flag and JSON at once.

Plain frozen dataclasses and nothing heavy, so that `--help` answers at once. A job's config
inherits the groups it needs (`class ConvertConfig(SourceOptions, CheckOptions, ...)`), and the
core functions take the group they need, so a config can be handed to them as it is.
The text in a field's metadata (`help`) is the flag's help.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

from rlds_beam import lazy

if TYPE_CHECKING:
    from typing_extensions import Self  # of typing from Python 3.11 on


def option(default: Any, help: str, **metadata: Any) -> Any:
    """A dataclass field with a help text."""
    return dataclasses.field(default=default, metadata={"help": help, **metadata})


class Options:
    """The root of all groups: a job's config runs the checks of each group that it mixes."""

    def __post_init__(self) -> None: ...

    @classmethod
    def of(cls, options: Any) -> Self:
        """The options of this group alone, out of a job's that mixes it in."""
        return cls(**{field.name: getattr(options, field.name) for field in dataclasses.fields(cast(Any, cls))})


# Documented under this path.
__getattr__, __dir__ = lazy.exports(
    __name__,
    {
        "CheckOptions": "rlds_beam.checking.options",
        "FrameOptions": "rlds_beam.trajectories.options",
        "ItemOptions": "rlds_beam.trajectories.options",
        "SourceOptions": "rlds_beam.reading.options",
    },
)
