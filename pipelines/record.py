"""`rlds-beam record`: behaviour policies rolled out in environments, into RLDS with propensities or another format."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from rlds_beam.jobs.options import RecordOptions
from rlds_beam.options import option
from rlds_beam.pipelines import convert
from rlds_beam.pipelines.options import ReportOptions
from rlds_beam.runners.options import RunOptions

if TYPE_CHECKING:
    from rlds_beam.jobs.convert import ConvertJob

__all__ = ["RecordConfig", "define_pipeline", "record"]

USAGE = "OUTPUT"
EXAMPLES = """
    rlds-beam record data/cartpole --env=gymnasium:CartPole-v1 --policy=random --episodes=100
    rlds-beam record data/greedy --env=gymnasium:CartPole-v1 --episodes=1000 \\
        --policy='EpsilonGreedyHead(my_policies:q_function, epsilon=0.3)' --policy=random
    rlds-beam record data/run --env=dm_control:cheetah/run --policy=random --episodes=50 --to=lerobot --fps=20
"""


@dataclasses.dataclass(frozen=True)
class RecordConfig(RunOptions, ReportOptions, RecordOptions):
    """Rolls out behaviour policies in environments, and writes what they did, with the propensity of each action."""

    command = "record"

    _: dataclasses.KW_ONLY
    dry_run: bool = option(False, "check everything, print the plan, write nothing")


def define_pipeline(root: Any, config: RecordConfig, job: ConvertJob | None = None) -> convert.ConvertResult:
    """Records a dataset under `root`.

    Args:
      root: a Beam pipeline.
      config: the job.
      job: the job, if it is prepared already.

    Raises:
      UsageError: the environment, a policy or the output cannot be used as it is. Nothing was written yet.
    """
    return convert.define_pipeline(root, config, job)


def record(config: RecordConfig) -> convert.ConvertOutcome:
    """Runs the job to its end; what an earlier run of it finished is not done again.

    Raises:
      UsageError: the environment, a policy or the output cannot be used as it is.
      FailedRuleError: a rule whose policy is `fail` was broken.
      NotVerifiedError: a propensity is not that of the action, or what was written is not what was planned.
      RldsBeamError: the pipeline failed.
    """
    return convert.convert(config)


def main(config: RecordConfig) -> int:
    """The command: runs the job, prints its summary, returns the exit code."""
    return convert.main(config)
