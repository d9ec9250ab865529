"""`rlds-beam record`: rolls out behavior policies and writes RLDS with propensities, or another format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlds_beam.pipelines import convert
from rlds_beam.pipelines.convert import RecordConfig

if TYPE_CHECKING:
    from rlds_beam.jobs.convert import ConvertJob

__all__ = ["RecordConfig", "define_pipeline", "record"]

USAGE = "OUTPUT"
EXAMPLES = """
    rlds-beam record data/cartpole --env=gymnasium:CartPole-v1 --policy=random --episodes=100
    rlds-beam record data/greedy --env=gymnasium:CartPole-v1 --episodes=1000 \\
        --policy='EpsilonGreedyHead(my_policies:q_function, epsilon=0.3)' --policy=random
    rlds-beam record data/run --env=dm_control:cheetah/run --policy=random --episodes=50 --to=lerobot
"""


def define_pipeline(root: Any, config: RecordConfig, job: ConvertJob | None = None) -> convert.ConvertResult:
    """Records a dataset under `root`.

    Args:
      root: a Beam pipeline.
      config: the job's config.
      job: the job, if already prepared.

    Raises:
      UsageError: the environment, a policy, or the output cannot be used; nothing was written.
    """
    return convert.define_pipeline(root, config, job)


def record(config: RecordConfig) -> convert.ConvertOutcome:
    """Runs the job, or resumes an earlier run.

    Raises:
      UsageError: the environment, a policy, or the output cannot be used.
      FailedRuleError: a rule of `fail` was broken.
      NotVerifiedError: a propensity does not match its action, or the output differs from the plan.
      RldsBeamError: the pipeline failed.
    """
    return convert.convert(config)


def main(config: RecordConfig) -> int:
    """Runs the command: prints the summary and returns the exit code."""
    return convert.main(config)
