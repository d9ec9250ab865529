"""The contract of a job: one module of this package, and one command."""

from __future__ import annotations

from typing import Any, Protocol


class Job(Protocol):
    """A module of `rlds_beam.pipelines` (or an object like one).

    Besides what is named below it has

    - a config: a frozen dataclass of option groups, which is the job's Python API, its flags and its JSON at once;
    - a function of the job's own name, `convert(config)`, which runs the job to its end and returns an outcome;
    - where the job is a Beam pipeline, `define_pipeline(root, config)`, which builds it under any root.

    Nothing heavy is imported by the module itself, so that `--help` answers at once.

    Attributes:
      USAGE: the positional arguments, for the help: `INPUT OUTPUT`.
      EXAMPLES: commands, for the start of the help, a line each.
    """

    USAGE: str
    EXAMPLES: str

    def main(self, config: Any) -> int:
        """The command: runs the job, prints what it found, and returns the exit code.

        Raises:
          RldsBeamError: with an exit code of its own.
        """
