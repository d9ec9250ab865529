"""The steps of whole episodes as tensors, without taking them out of a dataset one by one. Imports TensorFlow.

An RLDS episode holds its steps as a dataset, and a dataset hands out single elements: with TFDS that takes most of
the time. But TFDS makes that dataset out of whole tensors (`from_tensor_slices`), in the function
of a map over the records. Here that map is rebuilt with a copy of the function that returns the tensors in place of
the dataset; what follows the map (`take`, `prefetch`...) is rebuilt after it.

It knows the inside of tf.data of TensorFlow 2.15: the attributes of its dataset classes, and the graph of a map's
function. If anything differs from this, `whole_episodes` returns None, and the steps are read singly.
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
    """A dataset that this module does not know."""


def whole_episodes(episodes: tf.data.Dataset) -> tf.data.Dataset | None:
    """The steps of each episode at once, or None where that is not possible.

    Args:
      episodes: a dataset of RLDS episodes.

    Returns:
      A dataset of steps with leading axis T >= 0, an episode each, in the order of `episodes`. They are the
      tensors that the episode's own dataset of steps is made of, not copies.
    """
    try:
        spec = episodes.element_spec
        steps = _leaf(spec, spec["steps"])
        step_spec = spec["steps"].element_spec
        if not all(isinstance(leaf, tf.TensorSpec) and leaf.dtype != tf.variant for leaf in tf.nest.flatten(step_spec)):
            raise _UnknownError("steps that are not all tensors")
        flat = _rebuild(episodes, steps)
    except (_UnknownError, AttributeError):  # the latter where an attribute has another name
        return None
    whole_spec = tf.nest.map_structure(lambda leaf: tf.TensorSpec([None, *leaf.shape], leaf.dtype), step_spec)
    return flat.flat_map(lambda *episode: tf.data.experimental.from_variant(episode[steps], whole_spec))


def _leaf(spec: Any, wanted: Any) -> int:
    """Which of the tensors of an element it is."""
    positions = [i for i, leaf in enumerate(tf.nest.flatten(spec)) if leaf is wanted]
    if len(positions) != 1 or not isinstance(wanted, tf.data.DatasetSpec):
        raise _UnknownError("no dataset of steps")
    return positions[0]


def _rebuild(data: tf.data.Dataset, steps: int) -> tf.data.Dataset:
    """The dataset rebuilt, of flat elements, with whole episodes in the datasets of steps."""
    if type(data) in (map_op._MapDataset, map_op._ParallelMapDataset):
        return _rebuild_map(data, steps)
    if type(data) not in _REBUILDERS:
        raise _UnknownError(type(data).__name__)
    return _REBUILDERS[type(data)](data, _rebuild(data._input_dataset, steps))


def _rebuild_shuffle(data: Any, before: tf.data.Dataset) -> tf.data.Dataset:
    """One of no seed: of others the second iteration has another order, and `data` may have seen its first."""
    if tf.get_static_value(data._seed) or tf.get_static_value(data._seed2) or not data._reshuffle_each_iteration:
        raise _UnknownError("shuffle with a seed")
    return before.shuffle(data._buffer_size)


def _rebuild_cache(data: Any, before: tf.data.Dataset) -> tf.data.Dataset:
    """One in memory, of what is the same on every iteration; TFDS adds it after small datasets."""
    if tf.get_static_value(data._filename) != b"":
        raise _UnknownError("cache in a file")
    inner = data._input_dataset
    while hasattr(inner, "_input_dataset"):
        if type(inner) is shuffle_op._ShuffleDataset:  # whose order would be another one
            raise _UnknownError("cache of what is shuffled")
        inner = inner._input_dataset
    source = tf.data.experimental.to_variant(data._input_dataset)
    try:
        tf.raw_ops.DatasetToGraphV2(input_dataset=source, external_state_policy=2)  # 2: fails where there is any
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
"""Datasets that pass elements on unchanged, and how each is rebuilt."""


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
            output.set_shape(shape)  # a graph's definition leaves out what `set_shape` said
        with tf.control_dependencies([copied[-1]]):  # it sees to it that the columns have one length
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
"""Ops that are called stateful, and have no state."""


def _slices(steps: Any, library: dict[str, Any]) -> tuple[Any, list[int]]:
    """The op that makes a dataset of slices, and which of its inputs the fields of a step are."""
    if steps.op.type == "Identity":
        return _slices(steps.op.inputs[0], library)
    if steps.op.type == "TensorSliceDataset":
        return steps.op, list(range(len(steps.op.inputs)))
    if steps.op.type not in ("MapDataset", "ParallelMapDatasetV2"):
        raise _UnknownError(f"steps out of {steps.op.type}")
    slices, order = _slices(steps.op.inputs[0], library)
    return slices, [order[i] for i in _handed_on(library[steps.op.get_attr("f").name], len(order))]


def _handed_on(function: Any, count: int) -> Iterable[int]:
    """Which of the first `count` arguments a function returns, if that is all it does."""
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
