"""Records episodes in this process and reads them back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlds_beam import open_dataset
from rlds_beam.jobs.convert import ConvertJob, prepare
from rlds_beam.recording.record_options import RecordOptions

Q = "recorded_environments:q_function"
WALK = "recorded_environments:walk"
GREEDY = f"EpsilonGreedyHead({Q}, epsilon=0.3, name=greedy)"


def recorded(output: Path, *policies: Any, **options: Any) -> ConvertJob:
    """Records episodes (of `Walk` by default) without Beam."""
    options = {"env": WALK, "policy": policies or (GREEDY,), **options}
    if "steps" not in options:
        options.setdefault("episodes", 20)
    job = prepare(RecordOptions.create(output, **options))
    job.convert_here()
    return job


def get_episodes(output: Path, split: str | None = None) -> list[dict[str, Any]]:
    """Reads the episodes of a recording with our reader."""
    rows = open_dataset(output, split)
    return [{path.removeprefix("episode_metadata/"): value for path, value in row.items()} for row in rows]


def save_q_policy(directory: Path, network_class: Any, **layers: Any) -> Any:
    """Saves a greedy policy of TF-Agents for `Walk`, as its `PolicySaver` does; returns its network."""
    import tensorflow as tf
    from tf_agents.policies import policy_saver, q_policy
    from tf_agents.policies.greedy_policy import GreedyPolicy
    from tf_agents.specs import tensor_spec
    from tf_agents.trajectories import time_step

    observation = tensor_spec.TensorSpec((2,), tf.float64, "observation")
    action = tensor_spec.BoundedTensorSpec((), tf.int64, 0, 2, "action")
    network = network_class(tensor_spec.TensorSpec((2,), tf.float64), action, **layers)
    policy = GreedyPolicy(q_policy.QPolicy(time_step.time_step_spec(observation), action, network))
    policy_saver.PolicySaver(policy, batch_size=None).save(str(directory))
    return network
