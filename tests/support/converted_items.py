"""Converts items with any leaves and reads them back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from outputs import commit_dataset, commit_range, open_output, plan, shard_path

from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.formats.trajectories.written_items import ConvertedDataset
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.output.shards import ShardWriter
from rlds_beam.reading.base import WorkRange
from rlds_beam.trajectories.frames import Frames
from rlds_beam.trajectories.items import ItemMaker, Items
from rlds_beam.trajectories.record_encoding import TrajectoryEncoder
from rlds_beam.trajectories.record_layout import decode_pixels, encode_jpegs
from rlds_beam.trajectories.spec import SpecLeaf, TrajectorySpec

KEY = EpisodeKey("testing/1.0.0", "train", 0, 0)


def list_leaves(*observation: SpecLeaf) -> tuple[SpecLeaf, ...]:
    return (
        SpecLeaf("step_type", "int32", ()),
        *observation,
        SpecLeaf("action", "float32", (2,)),
        SpecLeaf("next_step_type", "int32", ()),
        SpecLeaf("reward", "float32", ()),
        SpecLeaf("discount", "float32", ()),
    )


def make_frames(leaves: tuple[SpecLeaf, ...], n: int, seed: int, most: int = 64) -> Frames:
    """Makes frames of random bits; int64 values have at most `most` bits, which sets the length of their varints."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {}
    for leaf in leaves:
        shape = (n, *leaf.shape)
        bits = rng.integers(0, 256, (*shape, leaf.numpy_dtype.itemsize), np.uint8)
        columns[leaf.path] = bits.view(leaf.dtype)[..., 0]
        if leaf.dtype == "int64" and most < 64:
            columns[leaf.path] = rng.integers(0, 1 << most, shape)
        if leaf.encoding == "jpeg":
            data = np.empty(n, object)
            data[:] = encode_jpeg(columns[leaf.path])
            data[n // 2] = b""  # the image of an added step
            columns[leaf.path] = EncodedImages(data, leaf.shape)
    columns["step_type"] = np.array([0, *[1] * (n - 2), 2][-n:], np.int32)
    return Frames(columns, KEY)


def write(output: Path, leaves, options, episodes, images="raw", split="train", shards=1) -> list[Items]:
    """Converts the frames of episodes to `output` and returns the items in it."""
    spec = TrajectorySpec(leaves, () if options.items == "frames" else (options.length,))
    encoder = TrajectoryEncoder(spec, images)
    open_output(str(output), plan(options=str(options)))
    made = []
    for work in (ranges := [WorkRange(split, i, shards, ()) for i in range(shards)]):
        path = shard_path(output, work)
        maker = ItemMaker(options)
        items = [maker.push(frames) for frames in episodes[work.index :: shards]]
        items += [last] if (last := maker.finish()) is not None else []
        with ShardWriter(path) as writer:
            for some in items:
                encoded = encoder.encode(some)
                writer.write(encoded.buffers, encoded.count, KEY)
            shard = writer.commit()
        made += items
        commit_range(output, work, shard, encoder.fields)
    commit_dataset(output, ranges, encoder.fields)
    return made


def expected_of(made: list[Items], leaves, images="raw") -> list[dict[str, np.ndarray]]:
    """What reading should return for each item: images decoded to pixels, after JPEG encoding for JPEGs."""
    rows = []
    for items in made:
        columns = {}
        for leaf in leaves:
            column = items.gather(leaf.path)
            if images == "jpeg" and len(leaf.shape) == 3:
                flat = column.data.ravel() if isinstance(column, EncodedImages) else column.reshape(-1, *leaf.shape)
                jpegs = EncodedImages(flat, leaf.shape) if isinstance(column, EncodedImages) else flat
                data = np.empty(len(flat), object)
                data[:] = [bytes(jpeg) for jpeg in encode_jpegs(jpegs, leaf, 95)]
                column = EncodedImages(data, leaf.shape).decode().reshape(*items.index.shape, *leaf.shape)
            elif isinstance(column, EncodedImages):
                flat = EncodedImages(column.data.ravel(), leaf.shape)
                column = decode_pixels(flat, leaf).reshape(*items.index.shape, *leaf.shape)
            columns[leaf.path] = column
        rows += [{path: column[k] for path, column in columns.items()} for k in range(len(items))]
    return rows


def read(replay: ConvertedDataset) -> list[dict[str, np.ndarray]]:
    rows = []
    for work in replay.ranges:
        for items in replay.read_items(work):
            replay.spec.check(items.frames)
            columns = {path: items.gather(path) for path in items.frames.columns}
            rows += [{path: column[k] for path, column in columns.items()} for k in range(len(items))]
    return rows


def assert_same(got: list[dict[str, np.ndarray]], want: list[dict[str, np.ndarray]]) -> None:
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        assert [*one] == [*other]  # in the spec's order
        for path, value in other.items():
            assert (one[path].dtype, one[path].shape) == (value.dtype, value.shape), path
            assert one[path].tobytes() == value.tobytes(), path
