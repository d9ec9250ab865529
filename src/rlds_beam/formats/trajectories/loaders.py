"""Load a converted dataset as NumPy arrays, or as a `tf.data` dataset of TF-Agents `Trajectory`.

TensorFlow is imported when `load_trajectories` is called.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rlds_beam import storage
from rlds_beam.episodes.columns import nest
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import UsageError, needs
from rlds_beam.formats.trajectories.output import read_fields, read_kept_fields
from rlds_beam.formats.trajectories.written_items import open_converted
from rlds_beam.output.commits import read_manifest
from rlds_beam.trajectories.spec import is_tuple

if TYPE_CHECKING:
    import tensorflow as tf

_PARSED_AT_ONCE = 256  # parsing many records at once costs little more than parsing one


def load_items(path: str | os.PathLike[str], split: str | None = None) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """Iterates over the items of a dataset that `rlds-beam convert` wrote, without TensorFlow.

        for item in load_items("pairs"):
            print(item["observation/position"].shape)  # (2, 2): two frames, two coordinates

    Args:
      path: the output directory.
      split: `train` or `train+test`; None for all.

    Yields:
      The arrays of an item by leaf path, [L, ...] for L frames: `step_type`, `observation/...`, `action`, `reward`,
      `discount`, `next_step_type`, `policy_info/...`. Images are uint8 pixels. Items of `--items=frames` have no axis
      L.

    Raises:
      UsageError: the dataset is unfinished or not from rlds-beam, or the split is unknown or empty.
      RldsBeamError: a file is damaged; raised before any of its items.
    """
    converted = open_converted(os.fspath(path), split)
    single = converted.spec.item_shape == ()
    for work in converted.ranges:
        for items in converted.read_items(work):
            columns = cast("dict[str, np.ndarray[Any, Any]]", items.frames.columns)  # JPEGs are already decoded
            length = items.windows.length
            for start in range(0, len(items.frames), length):
                rows: Any = start if single else slice(start, start + length)
                yield {name: column[rows] for name, column in columns.items()}


def load_trajectories(
    path: str, split: str | None = None, *, batch_size: int | None = None, kept: bool = False
) -> tf.data.Dataset:
    """The items of a dataset that `rlds-beam convert` wrote, always in the same order.

        dataset = load_trajectories(path, batch_size=256).shuffle(100).repeat()
        agent.train(next(iter(dataset)))

    Args:
      path: the output directory.
      split: the split; optional if there is only one.
      batch_size: the number of items in a batch, [B, L, ...], as `agent.train` expects; the last batch may be
        smaller. None gives single items, [L, ...]. Batches are much faster. Not for whole
        episodes, whose lengths differ: use `padded_batch`, or batch_size=None.
      kept: return pairs (`Trajectory`, dict), with the extra fields of items (`--keep`) by path. Text is a
        string tensor; an episode field has no axis L.

    Returns:
      A dataset of `Trajectory`. `policy_info` is () if there is none; images are uint8 pixels
      [L, H, W, C], however they are stored. Items of `--items=frames` have no axis L.

    Raises:
      UsageError: the dataset is unfinished or not from rlds-beam, the split is unknown or empty, or
        `batch_size` is set for whole episodes.
      MissingExtraError: TensorFlow or TF-Agents is not installed.
    """
    manifest = read_manifest(path)
    fields, more = read_fields(manifest, path), read_kept_fields(manifest, path) if kept else None
    episodes = any(None in field.shape for field in fields)
    if episodes and batch_size is not None:
        raise UsageError("whole episodes differ in length: pass batch_size=None, then use padded_batch")
    files = _files(path, manifest, split)
    with needs("agents", "load_trajectories needs TensorFlow and TF-Agents"):
        import tensorflow as tf
        import tf_agents.trajectories  # noqa: F401  (for _decoder)

    records = tf.data.Dataset.from_tensor_slices(files).interleave(
        tf.data.TFRecordDataset,
        cycle_length=min(len(files), 16),
        block_length=16,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    if episodes:
        dataset = records.map(_decoder(fields, more, batched=False), num_parallel_calls=tf.data.AUTOTUNE)
    else:
        batches = records.batch(batch_size or _PARSED_AT_ONCE)
        dataset = batches.map(_decoder(fields, more, batched=True), num_parallel_calls=tf.data.AUTOTUNE)
        if batch_size is None:
            dataset = dataset.unbatch()
    return dataset.prefetch(tf.data.AUTOTUNE)


def decoder(path: str) -> Callable[[Any], Any]:
    """A function from a record to its `Trajectory`, for `load_tfrecord_dataset(files, decoder=decoder(path))`.

    TF-Agents' own decoder supports no whole episodes, and returns the frames of a JPEG leaf one by one.

    Raises:
      UsageError: the dataset is unfinished, or not from rlds-beam.
      MissingExtraError: TensorFlow or TF-Agents is not installed.
    """
    return _decoder(read_fields(read_manifest(path), path), batched=False)


def _files(path: str, manifest: dict[str, Any], split: str | None) -> list[str]:
    """The non-empty shards of the split."""
    shards = [shard for shard in manifest["shards"] if shard["records"]]
    splits = sorted({shard["split"] for shard in shards})
    if not splits:
        raise UsageError(f"{path} holds no items; see its report.json for the reasons")
    if split is None and len(splits) > 1:
        raise UsageError(f"{path} has the splits {', '.join(splits)}: choose one with split=...")
    if split is not None and split not in splits:
        raise UsageError(f"{path} has no items in a split {split}; it has {', '.join(splits)}")
    return [storage.join(path, shard["file"]) for shard in shards if shard["split"] in (split or splits[0],)]


def _decoder(fields: Sequence[Field], kept: Sequence[Field] | None = None, *, batched: bool) -> Callable[[Any], Any]:
    """A function from a serialized Example (or a batch) to a `Trajectory`; with `kept`, to a pair."""
    with needs("agents", "reading trajectories needs TensorFlow and TF-Agents"):
        import tensorflow as tf
        from tf_agents.trajectories import trajectory

    features = {field.path: _feature(field) for field in (*fields, *(kept or ()))}
    parse = tf.io.parse_example if batched else tf.io.parse_single_example

    def decode(serialized: Any) -> Any:
        parsed = parse(serialized, features)
        nested = nest({field.path: _value(field, parsed[field.path], batched) for field in fields})
        stacked = {name: _stack(node, name, fields, batched) for name, node in nested.items()}
        decoded = trajectory.Trajectory(**{"policy_info": (), **stacked})
        if kept is None:
            return decoded
        return decoded, {field.path: _value(field, parsed[field.path], batched) for field in kept}

    return decode


def _feature(field: Field) -> Any:
    import tensorflow as tf

    unknown = None in field.shape
    if field.encoding == "bytes" or (field.encoding == "jpeg" and not unknown):
        return tf.io.FixedLenFeature((), tf.string)
    if field.encoding == "jpeg":
        return tf.io.FixedLenSequenceFeature((), tf.string, allow_missing=True)
    if unknown:
        return tf.io.FixedLenSequenceFeature(field.shape[1:], tf.as_dtype(field.dtype), allow_missing=True)
    return tf.io.FixedLenFeature(field.shape, tf.as_dtype(field.dtype))


def _value(field: Field, value: Any, batched: bool) -> Any:
    """The tensor of a parsed feature: [L, ...], or [B, L, ...] for a batch."""
    import tensorflow as tf

    if field.encoding == "none":
        return value
    if field.encoding == "jpeg":
        if not batched and None not in field.shape:
            return _image(value, field)
        signature = tf.TensorSpec(field.shape[-3:], tf.uint8)
        return tf.map_fn(lambda data: _image(data, field), value, fn_output_signature=signature)
    shape = [-1 if size is None else size for size in field.shape]
    return tf.reshape(tf.io.decode_raw(value, tf.as_dtype(field.dtype)), [-1, *shape] if batched else shape)


def _image(data: Any, field: Field) -> Any:
    import tensorflow as tf

    return tf.ensure_shape(tf.io.decode_jpeg(data, channels=field.shape[-1]), field.shape[-3:])


def _stack(node: Any, path: str, fields: Sequence[Field], batched: bool) -> Any:
    """The nest with the JPEGs of each item's frames stacked along the item's axis."""
    import tensorflow as tf

    if not isinstance(node, dict):
        return node
    if is_tuple(node) and any(f.path == f"{path}/0" and f.encoding == "jpeg" for f in fields):
        return tf.stack([node[str(i)] for i in range(len(node))], axis=1 if batched else 0)
    return {name: _stack(child, f"{path}/{name}", fields, batched) for name, child in node.items()}
