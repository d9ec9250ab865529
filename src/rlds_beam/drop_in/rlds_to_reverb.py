"""A drop-in replacement for `tf_agents.replay_buffers.rlds_to_reverb`: only the import changes.

    from rlds_beam.drop_in import rlds_to_reverb

The functions have the same signatures, return the same specs and frames, and raise the same exceptions, but convert
steps in blocks inside tf.data. docs/explanation/differences.md lists the differences and their reasons. Imports
TensorFlow.

Frames that are read in batches (`.batch(n)`) or pushed with an observer of `rlds_beam.drop_in.reverb_observers` are
never split into single frames. Any other use reads single frames, at TensorFlow's cost per element.

The steps of all episodes form one stream, cut into blocks of up to 1,024 steps regardless of episodes. A block waits
for the next one, because its last frame needs the first step that follows; a padding step with is_first follows the
last block. So, as in TF-Agents, a frame depends on two adjacent steps, but a whole block costs as much as one frame.

An invalid pair of steps (`FAULTS`) raises an error when it is reached: the frames before it are returned first, and a
caller that ignores the error gets the frames after it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

from rlds_beam.episodes.schema import FIRST, FLAGS, LAST, MID, REQUIRED_STEP_FIELDS
from rlds_beam.errors import needs

with needs("agents", "rlds_beam.drop_in.rlds_to_reverb needs TensorFlow, TF-Agents and Reverb"):
    import tensorflow as tf
    from tensorflow.python.data.ops import interleave_op
    from tf_agents.replay_buffers import reverb_utils
    from tf_agents.trajectories import policy_step, trajectory
    from tf_agents.trajectories import time_step as ts

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

PolicyInfoFn = Callable[[dict[str, Any], dict[str, Any]], Any]
"""(current_step, next_step) -> the policy_info of one frame, a nest of tensors."""

FAULTS = (
    "Terminal step must be the last step of an episode.",
    "Mid step should not be followed by a first step.",
    "Last step of an episode must be followed by a first step.",
)
"""TF-Agents' messages, in the order of its checks."""

_SOUND = -1

# Autograph takes most of the time to build the dataset, and only user functions need it.
_as_it_is = tf.autograph.experimental.do_not_convert

_READERS = 4
_BLOCK_LENGTH = 1024
_BLOCK_BYTES = 8 << 20
_BLOCK_LENGTH_OF_UNKNOWN_SIZE = 16


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
    return _FrameDataset(_frame_blocks(rlds_data, _step_spec(rlds_data), policy_info_fn))


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
    blocks = _frame_blocks(rlds_data, _step_spec(rlds_data), policy_info_fn).prefetch(1).as_numpy_iterator()
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


def _frame_blocks(
    episodes: tf.data.Dataset, step_spec: Any, policy_info_fn: PolicyInfoFn | None = None
) -> tf.data.Dataset:
    """Returns blocks of frames.

    Args:
      episodes: a dataset of RLDS episodes.
      step_spec: the spec of their steps; leaves may be nested.
      policy_info_fn: called with the two steps of each frame; it is traced for single steps.

    Returns:
      A dataset of Trajectory with leading axis n >= 0, which differs between blocks.

    Iterating raises tf.errors.InvalidArgumentError at a frame whose two steps cannot be adjacent.
    """
    padding = tf.nest.map_structure(_padding, step_spec)
    padding["is_first"] = tf.ones_like(padding["is_first"])
    blocks = _step_blocks(episodes, _block_length(step_spec))
    blocks = blocks.concatenate(tf.data.Dataset.from_tensors(padding).batch(1))
    nothing = tf.nest.map_structure(lambda leaf: tf.zeros([0, *leaf.shape], leaf.dtype), padding)

    @_as_it_is
    def pair(block: Any, following: Any) -> Any:
        """Completes the previous block, and keeps the next one waiting."""
        seen = following if policy_info_fn else {name: following[name] for name in ("is_first", "is_last")}
        next_steps = {
            name: tf.nest.map_structure(lambda a, b: tf.concat([a, b[:1]], 0)[1:], block[name], seen[name])
            for name in seen
        }
        frames, faults = _to_frames(block, next_steps)
        return following, (faults, frames, *((block, next_steps) if policy_info_fn else ()))

    runs = blocks.scan(nothing, pair).skip(1).flat_map(_runs)
    if policy_info_fn is None:
        return runs

    def with_policy_info(frame: Any, step: Any, next_step: Any) -> Any:
        return frame._replace(policy_info=policy_info_fn(step, next_step))

    return runs.flat_map(
        lambda *run: tf.data.Dataset.from_tensor_slices(run).map(with_policy_info).batch(_BLOCK_LENGTH)
    )


def _step_blocks(episodes: tf.data.Dataset, length: int) -> tf.data.Dataset:
    """All steps in order, in blocks of `length`."""
    return interleave_op._ParallelInterleaveDataset(
        episodes,
        lambda episode: episode["steps"].batch(length),
        cycle_length=_READERS,
        block_length=1 << 40,  # so, one episode after the other
        num_parallel_calls=_READERS,
        buffer_output_elements=2,  # `Dataset.interleave` cannot set this and would buffer whole episodes
        prefetch_input_elements=0,
        deterministic=True,
    ).rebatch(length)


def _padding(spec: Any) -> Any:
    return tf.zeros([1 if size is None else size for size in spec.shape] if spec.shape.rank else [], spec.dtype)


def _block_length(step_spec: Any) -> int:
    """The number of steps per block: enough to be fast, few enough to hold several blocks in memory."""
    sizes = [spec.shape.num_elements() for spec in tf.nest.flatten(step_spec)]
    if None in sizes:
        return _BLOCK_LENGTH_OF_UNKNOWN_SIZE
    step_bytes = sum(size * spec.dtype.size for size, spec in zip(sizes, tf.nest.flatten(step_spec), strict=True))
    return int(max(1, min(_BLOCK_LENGTH, _BLOCK_BYTES // max(1, step_bytes))))


@_as_it_is
def _runs(faults: Any, *block: Any) -> tf.data.Dataset:
    """Cuts the block into pieces, so that each bad frame is a piece that raises its error."""
    bad = tf.reshape(tf.where(faults != _SOUND), [-1])
    cuts = tf.reshape(tf.stack([bad, bad + 1], 1), [-1])
    bounds = tf.stack([tf.concat([[0], cuts], 0), tf.concat([cuts, [tf.size(faults, tf.int64)]], 0)], 1)

    @_as_it_is
    def run(bounds: Any) -> Any:
        for fault, text in enumerate(FAULTS):
            tf.Assert(tf.reduce_all(faults[bounds[0] : bounds[1]] != fault), [text])
        piece = tf.nest.map_structure(lambda leaf: leaf[bounds[0] : bounds[1]], block)
        return piece if len(piece) > 1 else piece[0]

    return tf.data.Dataset.from_tensor_slices(bounds).map(run)


def _to_frames(current: Any, following: Any) -> tuple[Any, Any]:
    """Returns a Trajectory of n frames, and the fault of each: int32 [n], an index of FAULTS or _SOUND."""
    first, last, terminal = (_flags(current, name) for name in FLAGS)
    next_first, next_last = _flags(following, "is_first"), _flags(following, "is_last")
    single = first & next_first
    frames = trajectory.Trajectory(
        step_type=_step_types(first, last, single),
        observation=current["observation"],
        action=current["action"],
        policy_info=(),
        next_step_type=_step_types(next_first, next_last, single),
        reward=current["reward"],
        discount=tf.where(last & terminal, 0.0, _scalars(current, "discount", tf.float32)),
    )
    faults = tf.fill(tf.shape(first), _SOUND)
    for fault, where in reversed(list(enumerate((terminal & ~last, ~last & ~first & next_first, last & ~next_first)))):
        faults = tf.where(where, fault, faults)
    return frames, faults


def _step_types(first: Any, last: Any, single: Any) -> Any:
    """The step types, int32 [n]; an episode of one step is LAST -> LAST."""
    return tf.where(single, LAST, tf.where(first, FIRST, tf.where(last, LAST, MID)))


def _flags(steps: Any, name: str) -> Any:
    return _scalars(steps, name, tf.bool)


def _scalars(steps: Any, name: str, dtype: tf.DType) -> Any:
    """The field as [n], for any numeric type and also for shape [n, 1]."""
    return tf.cast(tf.reshape(steps[name], [-1]), dtype)
