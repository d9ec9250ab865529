"""TF-Agents' `tf_agents.replay_buffers.rlds_to_reverb`, as a drop-in: only the import changes.

    from rlds_beam import rlds_to_reverb

The same functions with the same signatures give the same specs and frames, and refuse the same data with the
same exceptions; but the steps are converted a block at a time, inside tf.data. docs/explanation/differences.md
lists what is not the same, each with its reason. Imports TensorFlow.

What is read out of it batch by batch (`.batch(n)`) or pushed with an observer of `rlds_beam.reverb_observers` is
never split into single frames; everything else is, and then takes what TensorFlow takes for a single element.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

from rlds_beam.episodes.schema import REQUIRED_STEP_FIELDS
from rlds_beam.errors import needs

with needs("agents", "rlds_beam.rlds_to_reverb needs TensorFlow, TF-Agents and Reverb"):
    import tensorflow as tf
    from tf_agents.replay_buffers import reverb_utils
    from tf_agents.trajectories import policy_step, trajectory
    from tf_agents.trajectories import time_step as ts

from rlds_beam.drop_in.frame_blocks import PolicyInfoFn, frame_blocks

_AGENTS_OBSERVERS = (
    reverb_utils.ReverbAddEpisodeObserver,
    reverb_utils.ReverbAddTrajectoryObserver,
    reverb_utils.ReverbTrajectorySequenceObserver,
)
"""They take numpy values as they take tensors, and much faster."""

_logger = logging.getLogger(__name__)


def get_rlds_step_features() -> list[str]:
    """The fields that a step must have."""
    return list(REQUIRED_STEP_FIELDS)


def create_trajectory_data_spec(
    rlds_data: tf.data.Dataset, policy_info_fn: PolicyInfoFn | None = None
) -> trajectory.Trajectory:
    """The spec of one frame: for the table's signature (after `tensor_spec.add_outer_dim`) and the replay buffer.

    Args:
      rlds_data: a dataset of RLDS episodes, each with a dataset of steps under `steps`.
      policy_info_fn: as for `convert_rlds_to_trajectories`; without it the policy_info is empty.

    Returns:
      A Trajectory of tensor specs, with step types int32 (), discount float32 () in [0, 1], the rest as in the data.

    Raises:
      ValueError: the episodes have no `steps`, or the steps lack a field.
    """
    step_spec = _step_spec(rlds_data)
    time_step_spec = ts.time_step_spec(step_spec["observation"], step_spec["reward"])
    info_spec = ()
    if policy_info_fn is not None:
        info_spec = convert_rlds_to_trajectories(rlds_data, policy_info_fn).element_spec.policy_info
    action_spec = policy_step.PolicyStep(step_spec["action"], info=info_spec)
    return trajectory.from_transition(time_step_spec, action_spec, time_step_spec)


def convert_rlds_to_trajectories(
    rlds_data: tf.data.Dataset, policy_info_fn: PolicyInfoFn | None = None
) -> tf.data.Dataset:
    """Frames of all episodes, one for each step.

    A frame is made of two adjacent steps; a padding step that is first follows the last step of all. Observation,
    action and reward are those of the first of the two; discount is too, or 0 where that step is terminal.

    Args:
      rlds_data: a dataset of RLDS episodes, each with a dataset of steps under `steps`. Steps are read ahead,
        some thousands of them at most.
      policy_info_fn: makes the policy_info of a frame out of the two steps.

    Returns:
      A dataset of Trajectory, a frame each, as `create_trajectory_data_spec` says.

    Raises:
      ValueError: the episodes have no `steps`, or the steps lack a field.

    Iterating raises tf.errors.InvalidArgumentError at a terminal step that is not the last of its episode, at a
    step that is neither first nor last before a first step, and at a last step before one that is not first.
    """
    return _FrameDataset(frame_blocks(rlds_data, _step_spec(rlds_data), policy_info_fn))


def push_rlds_to_reverb(
    rlds_data: tf.data.Dataset, reverb_observer: Any, policy_info_fn: PolicyInfoFn | None = None
) -> int:
    """Converts the episodes, gives the frames to the observer, and flushes it.

    Args:
      rlds_data: as for `convert_rlds_to_trajectories`.
      reverb_observer: one of `rlds_beam.reverb_observers`, which take many frames at once, or of TF-Agents'. Its
        table's signature must fit the data by structure, dtype and shape. A signature without policy_info is
        fitted by leaving the policy_info out.
      policy_info_fn: as for `convert_rlds_to_trajectories`.

    Returns:
      The number of frames.

    Raises:
      ValueError: as `create_trajectory_data_spec` does, or the signature does not fit.
      tf.errors.InvalidArgumentError: as iterating over the frames does. The frames before are written, and the
        episode that they began is dropped from the observer's cache.
      NotVerifiedError: an observer of ours, and the server failed.
    """
    signature = reverb_observer.get_table_signature()
    if policy_info_fn is not None and _fits(signature, create_trajectory_data_spec(rlds_data)):
        _logger.warning("The table's signature has no policy_info, so none is written.")
        policy_info_fn = None
    if not _fits(signature, create_trajectory_data_spec(rlds_data, policy_info_fn)):
        raise ValueError("Replay buffer table signature spec should match RLDS data spec.")
    frames = _push(rlds_data, reverb_observer, policy_info_fn)
    if hasattr(reverb_observer, "flush"):
        reverb_observer.flush()
    _logger.info("Successfully wrote %d steps to Reverb.", frames)
    return frames


class _FrameDataset(tf.data.Dataset):
    """Blocks of frames as single frames; `batch` cuts the blocks anew and never makes single ones."""

    def __init__(self, blocks: tf.data.Dataset):
        self._blocks, self._single = blocks, blocks.unbatch()
        super().__init__(tf.data.experimental.to_variant(self._single))

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._single]

    @property
    def element_spec(self) -> Any:
        return self._single.element_spec

    def batch(
        self,
        batch_size: Any,
        drop_remainder: Any = False,
        num_parallel_calls: Any = None,
        deterministic: Any = None,
        name: str | None = None,
    ) -> tf.data.Dataset:
        """As tf.data.Dataset.batch; one thread is enough for it."""
        size = tf.get_static_value(batch_size)
        if size is None or not size > 0:  # `rebatch` takes any size, and never ends then
            return super().batch(batch_size, drop_remainder, num_parallel_calls, deterministic, name)
        return self._blocks.rebatch(batch_size, drop_remainder, name=name)


def _step_spec(rlds_data: tf.data.Dataset) -> Any:
    """The spec of a step; ValueError where there are none, or none of RLDS."""
    if "steps" not in rlds_data.element_spec:
        raise ValueError("No dataset representing RLDS steps exist in the data.")
    spec = rlds_data.flat_map(lambda episode: episode["steps"]).element_spec
    features = get_rlds_step_features()
    if not all(feature in spec for feature in features):
        raise ValueError(f"Invalid RLDS step spec. Features expected are {features}, but found {list(spec.keys())}")
    return spec


def _fits(signature: Any, frame_spec: Any) -> bool:
    """Whether a table of this signature takes sequences of such frames, whatever their names and bounds."""
    try:
        tf.nest.assert_same_structure(signature, frame_spec)
    except (TypeError, ValueError):
        return False
    leaves = zip(tf.nest.flatten(signature), tf.nest.flatten(frame_spec), strict=True)
    return all(
        table.dtype == frame.dtype and table.shape.as_list() == [None, *frame.shape.as_list()]
        for table, frame in leaves
    )


def _push(rlds_data: tf.data.Dataset, observer: Any, policy_info_fn: PolicyInfoFn | None) -> int:
    """Gives the observer all frames, as many at once as it takes; returns how many there were."""
    count = 0
    if hasattr(observer, "add_episode"):
        write = observer.add_episode
    elif type(observer) in _AGENTS_OBSERVERS:
        write = functools.partial(_write_singly, observer)
    else:  # A user's observer may expect tensors.
        for frame in convert_rlds_to_trajectories(rlds_data, policy_info_fn):
            observer(frame)
            count += 1
        return count
    for block in _blocks(rlds_data, policy_info_fn, observer):
        write(block)
        count += len(block.step_type)
    return count


def _blocks(rlds_data: tf.data.Dataset, policy_info_fn: PolicyInfoFn | None, observer: Any) -> Iterator[Any]:
    """Blocks of frames, of numpy arrays; where the data ends with an error, the observer forgets the episode."""
    blocks = frame_blocks(rlds_data, _step_spec(rlds_data), policy_info_fn).prefetch(1).as_numpy_iterator()
    while True:
        try:
            block = next(blocks, None)
        except tf.errors.OpError:
            # Else the first frames of the next push would be joined to these in one item.
            observer.reset(write_cached_steps=False)
            raise
        if block is None:
            return
        yield block


def _write_singly(observer: Callable[[Any], None], block: Any) -> None:
    for leaves in zip(*tf.nest.flatten(block), strict=True):
        observer(tf.nest.pack_sequence_as(block, leaves))
