"""The contract of a job: one module of this package is one command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Job(Protocol):
    """A module of `rlds_beam.pipelines` (or an object like one).

    It also has

    - a config: a frozen dataclass of option groups, which defines the Python API, the flags, and the JSON;
    - a function with the job's name, `convert(config)`, which runs the job and returns an outcome;
    - if the job is a Beam pipeline, `define_pipeline(root, config)`, which builds it under any root.

    The module itself imports nothing heavy, so `--help` stays fast.

    Attributes:
      USAGE: the positional arguments shown in the help: `INPUT OUTPUT`.
      EXAMPLES: example commands shown at the start of the help, one per line.
    """

    USAGE: str
    EXAMPLES: str

    def main(self, config: Any) -> int:
        """Runs the job, prints the result, and returns the exit code.

        Raises:
          RldsBeamError: with its own exit code.
        """


def as_html(*parts: Callable[[Any], str]) -> str | None:
    """What a notebook shows: each part is made with `viewing.tables`; None, so the text, without that package."""
    try:
        from rlds_beam.viewing import tables
    except ModuleNotFoundError:
        return None
    return "".join(part(tables) for part in parts)
