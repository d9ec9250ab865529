"""Reads the steps of whole episodes as tensors, not one by one from a dataset. Imports TensorFlow.

An RLDS episode holds its steps as a dataset, and reading single elements from it takes most of the time. But TFDS
creates that dataset from whole tensors (`from_tensor_slices`), in the function of a map over the records. This module
rebuilds that map with a copy of the function that returns the tensors instead of the dataset, and then the datasets
after the map (`take`, `prefetch`...).

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
    map_op,
    prefetch_op,
    repeat_op,
    shard_op,
    shuffle_op,
    skip_op,
    take_op,
)


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
    return slices, [order[i] for i in _handed_on(library[steps.op.get_attr("f").name], len(order))]


def _handed_on(function: Any, count: int) -> Iterable[int]:
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
