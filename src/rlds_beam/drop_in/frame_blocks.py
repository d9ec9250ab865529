"""Builds blocks of frames inside tf.data from whole episodes, for `rlds_to_reverb`. Imports TensorFlow.

The steps of all episodes form one stream, cut into blocks of up to 1,024 steps regardless of episodes. A block waits
for the next one, because its last frame needs the first step that follows; a padding step with is_first follows the
last block. So, as in TF-Agents, a frame depends on two adjacent steps, but a whole block costs as much as one frame.

An invalid pair of steps (`FAULTS`) raises an error when it is reached: the frames before it are returned first, and a
caller that ignores the error gets the frames after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import interleave_op
from tf_agents.trajectories import trajectory

from rlds_beam.episodes.schema import FIRST, FLAGS, LAST, MID

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


def frame_blocks(
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
