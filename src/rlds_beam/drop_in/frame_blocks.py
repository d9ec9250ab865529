"""Builds blocks of frames inside tf.data from whole episodes, for `rlds_to_reverb`. Imports TensorFlow.

The steps of all episodes form one stream, cut into blocks of up to 1,024 steps regardless of episodes. A block waits
for the next one, because its last frame needs the first step that follows; a padding step with is_first follows the
last block. So, as in TF-Agents, a frame depends on two adjacent steps, but a whole block costs as much as one frame.

An invalid pair of steps (`FAULTS`) raises an error when it is reached: the frames before it are returned first, and a
caller that ignores the error gets the frames after it.

An RLDS episode holds its steps as a dataset, and reading single elements from it takes most of the time. But TFDS
creates that dataset from whole tensors (`from_tensor_slices`), in the function of a map over the records.
`whole_episodes` rebuilds that map with a copy of the function that returns the tensors instead of the dataset, and then
the datasets after the map (`take`, `prefetch`...).

It depends on internals of tf.data in TensorFlow 2.15: attributes of dataset classes, and the graph of a map's function.
If anything differs, `whole_episodes` returns None, and steps are read one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import (
    cache_op,
    dataset_ops,
    interleave_op,
    map_op,
    prefetch_op,
    repeat_op,
    shard_op,
    shuffle_op,
    skip_op,
    take_op,
)
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
    """All steps in order, in blocks of `length`. Reading them from datasets one by one would take most of the time."""
    whole = whole_episodes(episodes)
    if whole is not None:
        return whole.rebatch(length)
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


class _UnknownError(Exception):
    """A dataset that this module cannot rebuild."""


def whole_episodes(episodes: tf.data.Dataset) -> tf.data.Dataset | None:
    """Returns the steps of each episode at once, or None if that is not possible.

    Args:
      episodes: a dataset of RLDS episodes.

    Returns:
      A dataset of steps with leading axis T >= 0, one element per episode, in the order of `episodes`. They are the
      tensors behind the episode's own dataset of steps, not copies.
    """
    try:
        spec = episodes.element_spec
        steps = _leaf(spec, spec["steps"])
        step_spec = spec["steps"].element_spec
        if not all(isinstance(leaf, tf.TensorSpec) and leaf.dtype != tf.variant for leaf in tf.nest.flatten(step_spec)):
            raise _UnknownError("steps that are not all tensors")
        flat = _rebuild(episodes, steps)
    except (_UnknownError, AttributeError):  # AttributeError if internals differ
        return None
    whole_spec = tf.nest.map_structure(lambda leaf: tf.TensorSpec([None, *leaf.shape], leaf.dtype), step_spec)
    return flat.flat_map(lambda *episode: tf.data.experimental.from_variant(episode[steps], whole_spec))


def _leaf(spec: Any, wanted: Any) -> int:
    """The index of the wanted leaf among the tensors of an element."""
    positions = [i for i, leaf in enumerate(tf.nest.flatten(spec)) if leaf is wanted]
    if len(positions) != 1 or not isinstance(wanted, tf.data.DatasetSpec):
        raise _UnknownError("no dataset of steps")
    return positions[0]


def _rebuild(data: tf.data.Dataset, steps: int) -> tf.data.Dataset:
    """Rebuilds the dataset with flat elements and whole episodes in the datasets of steps."""
    if type(data) in (map_op._MapDataset, map_op._ParallelMapDataset):
        return _rebuild_map(data, steps)
    if type(data) not in _REBUILDERS:
        raise _UnknownError(type(data).__name__)
    return _REBUILDERS[type(data)](data, _rebuild(data._input_dataset, steps))


def _rebuild_shuffle(data: Any, before: tf.data.Dataset) -> tf.data.Dataset:
    """Rebuilds an unseeded shuffle; with a seed, the order depends on how often `data` was iterated."""
    if tf.get_static_value(data._seed) or tf.get_static_value(data._seed2) or not data._reshuffle_each_iteration:
        raise _UnknownError("shuffle with a seed")
    return before.shuffle(data._buffer_size)


def _rebuild_cache(data: Any, before: tf.data.Dataset) -> tf.data.Dataset:
    """Rebuilds a cache in memory of unchanging data, which TFDS adds after small datasets."""
    if tf.get_static_value(data._filename) != b"":
        raise _UnknownError("cache in a file")
    inner = data._input_dataset
    while hasattr(inner, "_input_dataset"):
        if type(inner) is shuffle_op._ShuffleDataset:  # its order would differ
            raise _UnknownError("cache of what is shuffled")
        inner = inner._input_dataset
    source = tf.data.experimental.to_variant(data._input_dataset)
    try:
        tf.raw_ops.DatasetToGraphV2(input_dataset=source, external_state_policy=2)  # 2: fails if there is any
    except tf.errors.OpError as error:
        raise _UnknownError("cache of what may change") from error
    return before.cache()


_REBUILDERS: dict[type, Callable[[Any, tf.data.Dataset], tf.data.Dataset]] = {
    cache_op.CacheDataset: _rebuild_cache,
    dataset_ops._OptionsDataset: lambda data, before: before.with_options(data.options()),
    prefetch_op._PrefetchDataset: lambda data, before: before.prefetch(data._buffer_size),
    repeat_op._RepeatDataset: lambda data, before: before.repeat(data._count),
    shard_op._ShardDataset: lambda data, before: before.shard(data._num_shards, data._index),
    shuffle_op._ShuffleDataset: _rebuild_shuffle,
    skip_op._SkipDataset: lambda data, before: before.skip(data._count),
    take_op._TakeDataset: lambda data, before: before.take(data._count),
}
"""Dataset class that passes elements on unchanged -> how to rebuild it."""


# A map's function


def _rebuild_map(data: Any, steps: int) -> tf.data.Dataset:
    function = data._map_func.function
    graph = function.graph
    if any(op.op_def.is_stateful and op.type not in _HARMLESS for op in graph.get_operations()):
        raise _UnknownError("a function with a state")
    if any(capture.dtype == tf.resource for capture in function.captured_inputs):
        raise _UnknownError("a function of a resource")
    definition = graph.as_graph_def()
    slices, order = _slices(graph.outputs[steps], {f.signature.name: f for f in definition.library.function})
    inputs = graph.inputs[: len(graph.inputs) - len(function.captured_inputs)]
    names = [tensor.name for tensor in (*graph.outputs, *(slices.inputs[i] for i in order))]
    shapes = [tensor.shape for tensor in graph.outputs]

    @tf.autograph.experimental.do_not_convert
    def with_whole_episode(*element: Any) -> tuple[Any, ...]:
        given = zip(graph.inputs, (*element, *function.captured_inputs), strict=True)
        copied = tf.graph_util.import_graph_def(
            definition,
            input_map={tensor.name: value for tensor, value in given},
            return_elements=[*names, slices.name],
            name="",
        )
        outputs, columns = copied[: len(shapes)], copied[len(shapes) : -1]
        for output, shape in zip(outputs, shapes, strict=True):
            output.set_shape(shape)  # a graph definition does not include `set_shape`
        with tf.control_dependencies([copied[-1]]):  # it checks that the columns have equal length
            outputs[steps] = tf.data.experimental.to_variant(tf.data.Dataset.from_tensors(tuple(columns)))
        return tuple(outputs)

    flat_spec = tuple(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs)
    variant = tf.data.experimental.to_variant(data._input_dataset)
    flat = tf.data.experimental.from_variant(variant, flat_spec)
    if type(data) is map_op._MapDataset:
        return flat.map(with_whole_episode)
    deterministic = {"default": None, "true": True, "false": False}[data._deterministic]
    return flat.map(with_whole_episode, data._num_parallel_calls, deterministic)


_HARMLESS = ("Assert", "TensorSliceDataset")
"""Ops that are marked stateful but have no state."""


def _slices(steps: Any, library: dict[str, Any]) -> tuple[Any, list[int]]:
    """The op that creates a dataset of slices, and its inputs that are the fields of a step."""
    if steps.op.type == "Identity":
        return _slices(steps.op.inputs[0], library)
    if steps.op.type == "TensorSliceDataset":
        return steps.op, list(range(len(steps.op.inputs)))
    if steps.op.type not in ("MapDataset", "ParallelMapDatasetV2"):
        raise _UnknownError(f"steps out of {steps.op.type}")
    slices, order = _slices(steps.op.inputs[0], library)
    return slices, [order[i] for i in _find_passed_on(library[steps.op.get_attr("f").name], len(order))]


def _find_passed_on(function: Any, count: int) -> Iterable[int]:
    """The indices of the first `count` arguments that a function returns, if it does nothing else."""
    place = {argument.name: i for i, argument in enumerate(function.signature.input_arg)}
    for node in function.node_def:
        if node.op not in ("Identity", "NoOp"):
            raise _UnknownError(f"steps mapped by {node.op}")
    for node in function.node_def:
        if node.op == "Identity":
            place[f"{node.name}:output:0"] = place[node.input[0]]
    returned = [place[function.ret[output.name]] for output in function.signature.output_arg]
    if any(i >= count for i in returned):
        raise _UnknownError("steps mapped to what is none of theirs")
    return returned
