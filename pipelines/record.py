"""`rlds-beam record`: rolls out behavior policies and writes RLDS with propensities, or another format."""

from __future__ import annotations

import dataclasses
from typing import cast

from rlds_beam.options import option
from rlds_beam.pipelines import convert
from rlds_beam.recording.record_options import RecordOptions
from rlds_beam.runners.base import RunOptions
from rlds_beam.terminal.options import ReportOptions

__all__ = ["RecordConfig", "record"]

USAGE = "OUTPUT"
EXAMPLES = """
    rlds-beam record data/cartpole --env=gymnasium:CartPole-v1 --policy=random --episodes=100
    rlds-beam record data/greedy --env=gymnasium:CartPole-v1 --episodes=1000 \\
        --policy='EpsilonGreedyHead(my_policies:q_function, epsilon=0.3)' --policy=random
    rlds-beam record data/run --env=dm_control:cheetah/run --policy=random --episodes=50 --to=lerobot
"""


@dataclasses.dataclass(frozen=True)
class RecordConfig(RunOptions, ReportOptions, RecordOptions):
    """Roll out behavior policies in environments, and write the episodes with the propensity of each action."""

    command = "record"

    _: dataclasses.KW_ONLY
    dry_run: bool = option(False, "check everything and print the plan, but write nothing")


def record(config: RecordConfig) -> convert.ConvertOutcome:
    """Runs the job, or resumes an earlier run.

    Raises:
      UsageError: the environment, a policy, or the output cannot be used.
      FailedRuleError: a rule of `fail` was broken.
      NotVerifiedError: a propensity does not match its action, or the output differs from the plan.
      RldsBeamError: the pipeline failed.
    """
    return convert.convert(_as_conversion(config))


def main(config: RecordConfig) -> int:
    """Runs the command: prints the summary and returns the exit code."""
    return convert.main(_as_conversion(config))


def _as_conversion(config: RecordConfig) -> convert.ConvertConfig:
    """The config: it has all that a conversion needs, except an input."""
    return cast(convert.ConvertConfig, config)
