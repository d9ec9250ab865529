"""A drop-in replacement for `tf_agents.replay_buffers.rlds_to_reverb`: only the import changes.

    from rlds_beam import rlds_to_reverb

The functions have the same signatures, return the same specs and frames, and raise the same exceptions, but convert
steps in blocks inside tf.data. docs/explanation/differences.md lists the differences and their reasons. Imports
TensorFlow.

Frames that are read in batches (`.batch(n)`) or pushed with an observer of `rlds_beam.drop_in.reverb_observers` are
never split into single frames. Any other use reads single frames, at TensorFlow's cost per element.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

from rlds_beam.episodes.schema import REQUIRED_STEP_FIELDS
from rlds_beam.errors import needs

with needs("agents", "rlds_beam.drop_in.rlds_to_reverb needs TensorFlow, TF-Agents and Reverb"):
    import tensorflow as tf
    from tf_agents.replay_buffers import reverb_utils
    from tf_agents.trajectories import policy_step, trajectory
    from tf_agents.trajectories import time_step as ts

from rlds_beam.drop_in.frame_blocks import PolicyInfoFn, frame_blocks

__all__ = [
    "convert_rlds_to_trajectories",
    "create_trajectory_data_spec",
    "get_rlds_step_features",
    "push_rlds_to_reverb",
]

_AGENTS_OBSERVERS = (
    reverb_utils.ReverbAddEpisodeObserver,
    reverb_utils.ReverbAddTrajectoryObserver,
    reverb_utils.ReverbTrajectorySequenceObserver,
)
"""These observers accept numpy values as well as tensors, and are much faster with them."""

_logger = logging.getLogger(__name__)


def get_rlds_step_features() -> list[str]:
    """Returns the fields that a step must have."""
    return list(REQUIRED_STEP_FIELDS)


def create_trajectory_data_spec(
    rlds_data: tf.data.Dataset, policy_info_fn: PolicyInfoFn | None = None
) -> trajectory.Trajectory:
    """Returns the spec of a frame, for the table's signature (after `tensor_spec.add_outer_dim`) and the replay buffer.

    Args:
      rlds_data: a dataset of RLDS episodes, each with a dataset of steps under `steps`.
      policy_info_fn: as for `convert_rlds_to_trajectories`; without it policy_info is empty.

    Returns:
      A Trajectory of tensor specs: step types int32 (), discount float32 () in [0, 1], the rest as in the data.

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
    """Converts all episodes to frames, one per step.

    A frame is made from two adjacent steps; a padding step with is_first follows the last step of all. Observation,
    action, and reward come from the first of the two. So does the discount, which is 0 if that step is terminal.

    Args:
      rlds_data: a dataset of RLDS episodes, each with a dataset of steps under `steps`. At most some thousands of
        steps are read ahead.
      policy_info_fn: computes a frame's policy_info from its two steps.

    Returns:
      A dataset of Trajectory, one per frame, with the spec of `create_trajectory_data_spec`.

    Raises:
      ValueError: the episodes have no `steps`, or the steps lack a field.

    Iterating raises tf.errors.InvalidArgumentError at a terminal step that is not the last of its episode, at a
    step that is neither first nor last before a first step, and at a last step before one that is not first.
    """
    return _FrameDataset(frame_blocks(rlds_data, _step_spec(rlds_data), policy_info_fn))


def push_rlds_to_reverb(
    rlds_data: tf.data.Dataset, reverb_observer: Any, policy_info_fn: PolicyInfoFn | None = None
) -> int:
    """Converts the episodes, passes the frames to the observer, and flushes it.

    Args:
      rlds_data: as for `convert_rlds_to_trajectories`.
      reverb_observer: an observer of `rlds_beam.drop_in.reverb_observers`, which accepts many frames at once, or of
        TF-Agents. Its table's signature must match the data in structure, dtype, and shape. If the signature has no
        policy_info, none is written.
      policy_info_fn: as for `convert_rlds_to_trajectories`.

    Returns:
      The number of frames.

    Raises:
      ValueError: as `create_trajectory_data_spec`; or the signature does not match.
      tf.errors.InvalidArgumentError: as for iterating over the frames. The frames before the error are written, and
        their unfinished episode is dropped from the observer's cache.
      NotVerifiedError: the server failed (rlds-beam's observers only).
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
    """Blocks of frames presented as single frames; `batch` re-cuts the blocks without creating single frames."""

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
        """Same as tf.data.Dataset.batch; one thread is enough."""
        size = tf.get_static_value(batch_size)
        if size is None or not size > 0:  # `rebatch` accepts any size, but then never ends
            return super().batch(batch_size, drop_remainder, num_parallel_calls, deterministic, name)
        return self._blocks.rebatch(batch_size, drop_remainder, name=name)


def _step_spec(rlds_data: tf.data.Dataset) -> Any:
    """The spec of a step; raises ValueError if there are no steps, or not RLDS's."""
    if "steps" not in rlds_data.element_spec:
        raise ValueError("No dataset representing RLDS steps exist in the data.")
    spec = rlds_data.flat_map(lambda episode: episode["steps"]).element_spec
    features = get_rlds_step_features()
    if not all(feature in spec for feature in features):
        raise ValueError(f"Invalid RLDS step spec. Features expected are {features}, but found {list(spec.keys())}")
    return spec


def _fits(signature: Any, frame_spec: Any) -> bool:
    """Whether a table with this signature accepts sequences of such frames, ignoring names and bounds."""
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
    """Passes all frames to the observer, as many at once as it accepts; returns their number."""
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
    """Yields blocks of frames as numpy arrays; if the data raises an error, the observer drops the episode."""
    blocks = frame_blocks(rlds_data, _step_spec(rlds_data), policy_info_fn).prefetch(1).as_numpy_iterator()
    while True:
        try:
            block = next(blocks, None)
        except tf.errors.OpError:
            # Otherwise an item could join these frames with the first ones of the next push.
            observer.reset(write_cached_steps=False)
            raise
        if block is None:
            return
        yield block


def _write_singly(observer: Callable[[Any], None], block: Any) -> None:
    for leaves in zip(*tf.nest.flatten(block), strict=True):
        observer(tf.nest.pack_sequence_as(block, leaves))
