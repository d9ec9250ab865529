"""The frames of a LeRobot dataset: how they are stored, and their Parquet columns, in the types that `datasets` uses.

single number, or a vector of one   the number
vector of n                         fixed_size_list<number>[n]
matrix and above                    list<list<number>>, which `datasets` calls Array2D
text                                string
image                               struct<bytes: binary, path: string>: the PNG or JPEG unchanged
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from rlds_beam.encoding.example.rows import decode_texts
from rlds_beam.encoding.parquet_files import ShardSink, leaf_paths
from rlds_beam.episodes.episode import Column
from rlds_beam.errors import BadEpisode, Violation
from rlds_beam.formats.arrays.array_episodes import representable
from rlds_beam.formats.lerobot import language
from rlds_beam.formats.lerobot.features import FeatureMap, LerobotFeature
from rlds_beam.formats.lerobot.videos import DepthEncoding, Encoding
from rlds_beam.images.codecs import encode_png
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages, StoredImages
from rlds_beam.output.shards import ShardInfo, ShardWriter
from rlds_beam.typing import Array

if TYPE_CHECKING:
    import pyarrow as pa


NUMBERED = ("index", "episode_index", "task_index")
"""Columns that count through the dataset, so they are known when all ranges are finished."""

Values: TypeAlias = "Array | Sequence[str] | Sequence[bytes | memoryview]"
"""The values of a column: numbers (T, ...), text, or images."""

_PNG_LEVEL = 3
"""PNG compression of pixel arrays: a compromise between size and time."""


@dataclasses.dataclass(frozen=True)
class FrameFormat:
    """The features of the frames, and how their images are stored.

    Attributes:
      features: the features, with their fields.
      fps: frames per second.
      image_samples: the number of frames of each camera and episode decoded for the statistics
        (`statistics.sample_places`); None for the default.
      least_samples: the minimum by default (`statistics.samples_of_few`).
      encoding: the encoding of videos; None if there are none.
      copied: what is said of the videos whose packets are copied if no frame changes, by path.
      only_copied: whether other images stay images.
    """

    features: FeatureMap
    fps: int
    image_samples: int | None = None
    least_samples: int = 0
    encoding: Encoding | None = None
    copied: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    only_copied: bool = False

    @functools.cached_property
    def videos(self) -> tuple[LerobotFeature, ...]:
        """The features that become videos; other images (16-bit, gray) are copied into the data files."""
        features = [f for f in self.features.images if f.is_video] if self.encoding is not None else []
        return tuple(f for f in features if not self.only_copied or f.path in self.copied)

    def video_encoding(self, feature: LerobotFeature) -> Encoding | DepthEncoding:
        """The encoding of a video."""
        assert self.encoding is not None
        return self.encoding if feature.depth is None else DepthEncoding(feature.depth)

    @property
    def stored(self) -> tuple[LerobotFeature, ...]:
        """The features in the data files."""
        return tuple(feature for feature in self.features.features if feature not in self.videos)


def is_single(feature: LerobotFeature) -> bool:
    """Whether a frame holds a single value, not a list."""
    return feature.shape in ((), (1,))


def staged_schema(features: Iterable[LerobotFeature]) -> pa.Schema:
    """The schema of the frames without `NUMBERED`: the features, then LeRobot's own columns."""
    import pyarrow as pa

    fields = [pa.field(feature.name, arrow_type(feature)) for feature in features]
    return pa.schema([*fields, ("timestamp", pa.float32()), ("frame_index", pa.int64())])


def frames_schema(features: Iterable[LerobotFeature]) -> pa.Schema:
    """The schema of the frames, with what `datasets` needs to know."""
    import pyarrow as pa

    kept = list(features)
    fields = [*staged_schema(kept), *(pa.field(name, pa.int64()) for name in NUMBERED)]
    kinds = {f.name: _hugging_face_type(f) for f in kept if f.kind != "language"}  # LeRobot names its type
    kinds["timestamp"] = _value("float32")
    kinds |= {name: _value("int64") for name in ("frame_index", *NUMBERED)}
    metadata = json.dumps({"info": {"features": kinds}}).encode()
    return pa.schema(fields, metadata={b"huggingface": metadata})


def arrow_type(feature: LerobotFeature) -> pa.DataType:
    """The type of a column."""
    import pyarrow as pa

    if feature.kind == "language":
        return language.arrow_type(feature.name)
    if feature.kind == "image":
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    kind = pa.string() if feature.kind == "text" else pa.from_numpy_dtype(np.dtype(feature.dtype))
    if is_single(feature):
        return kind
    if len(feature.shape) == 1:
        return pa.list_(kind, feature.shape[0])
    for _ in feature.shape:
        kind = pa.list_(kind)
    return kind


def _hugging_face_type(feature: LerobotFeature) -> dict[str, Any]:
    """The type for `datasets`. All of its versions know `Sequence`, but not `List`."""
    if feature.kind == "image":
        return {"_type": "Image"}
    if is_single(feature):
        return _value(feature.dtype)
    if len(feature.shape) == 1:
        return {"feature": _value(feature.dtype), "length": feature.shape[0], "_type": "Sequence"}
    return {"shape": list(feature.shape), "dtype": feature.dtype, "_type": f"Array{len(feature.shape)}D"}


def _value(dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "_type": "Value"}


def read_numbers(feature: LerobotFeature, steps: Mapping[str, Column]) -> Array:
    """The values of a numeric feature, (T, *shape), in its dtype.

    Raises:
      BadEpisode: a value would change: vectors of several dtypes were joined.
    """
    dtype = np.dtype(feature.dtype)
    if len(feature.fields) == 1:
        return representable(np.asarray(steps[feature.path]), dtype, feature.path)
    parts = [representable(np.asarray(steps[field.path]), dtype, field.path) for field in feature.fields]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def numbers_array(feature: LerobotFeature, values: Array) -> pa.Array:
    """Numeric values as an Arrow array."""
    import pyarrow as pa

    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    if is_single(feature):
        return flat
    if len(feature.shape) == 1:
        return pa.FixedSizeListArray.from_arrays(flat, feature.shape[0])
    return lists(flat, values.shape)


def lists(flat: pa.Array, shape: tuple[int, ...]) -> pa.Array:
    """Flat values as nested lists of this shape."""
    import pyarrow as pa

    for depth in range(len(shape) - 1, 0, -1):
        rows = int(np.prod(shape[:depth], dtype=np.int64))
        offsets = np.arange(rows + 1, dtype=np.int32) * shape[depth]
        flat = pa.ListArray.from_arrays(pa.array(offsets), flat)
    return flat


def texts(column: Column, path: str) -> list[str]:
    """The strings of a text field. Raises BadEpisode if a string is not UTF-8."""
    try:
        return [text.decode() for row in decode_texts(cast(Array, column), path) for text in row]
    except UnicodeDecodeError as error:
        detail = f"text that is not UTF-8, which LeRobot cannot hold: {error}"
        raise BadEpisode(Violation("wrong_dtype_or_shape", detail, path)) from None


def read_images(feature: LerobotFeature, column: Column) -> list[bytes]:
    """The PNG or JPEG of each frame, unchanged, or a PNG of its pixel array."""
    if not isinstance(column, EncodedImages):
        return encode_png(np.asarray(column), _PNG_LEVEL)
    images: list[bytes] = column.data.tolist()
    if ZERO_IMAGE in images:  # a step added by a repair or a connector
        dtype = np.uint16 if column.dtype == "uint16" else np.uint8
        (zeros,) = encode_png([np.zeros(feature.shape, dtype)], _PNG_LEVEL)
        images = [image or zeros for image in images]
    return images


def image_parts(feature: LerobotFeature, column: Column) -> Sequence[bytes | memoryview]:
    """Like `read_images`, but without copying images from a record."""
    if isinstance(column, StoredImages) and all(map(operator.lt, *column.places)):
        return column.pieces()
    return read_images(feature, column)


def frames_batch(features: Sequence[LerobotFeature], episodes: Sequence[Mapping[str, Values]]) -> pa.RecordBatch:
    """The columns of these episodes, concatenated (`staged_schema`)."""
    import pyarrow as pa

    schema = staged_schema(features)
    columns = [_join(feature, [columns[feature.name] for columns in episodes]) for feature in features]
    for name in schema.names[len(features) :]:
        columns.append(pa.array(np.concatenate([cast(Array, columns[name]) for columns in episodes])))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _join(feature: LerobotFeature, parts: Sequence[Any]) -> pa.Array:
    import pyarrow as pa

    if feature.kind == "number":
        return numbers_array(feature, np.concatenate(parts))
    values = list(itertools.chain.from_iterable(parts))
    if feature.kind == "language":
        return language.rows_array(feature.name, values)
    if feature.kind == "text":
        flat = pa.array(values, pa.string())
        return flat if is_single(feature) else pa.FixedSizeListArray.from_arrays(flat, feature.shape[0])
    ends = np.cumsum([0, *map(len, values)]).astype(np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    content = pa.Array.from_buffers(pa.binary(), len(values), buffers)
    return pa.StructArray.from_arrays([content, pa.nulls(len(content), pa.string())], ["bytes", "path"])


_PAGE_BYTES = 64 << 20  # a column of a row group is usually one page
_BOUNDED = ("index", "episode_index")  # by which readers skip row groups


def write_data_file(
    path: str, features: Sequence[LerobotFeature], tables: Iterable[pa.Table], episodes: Iterable[tuple[object, int]]
) -> ShardInfo:
    """Writes a data file with a row group for each table.

    Args:
      path: the file.
      features: the features in it.
      tables: the frames (`frames_schema`).
      episodes: the key and length of each episode.
    """
    import pyarrow.parquet

    schema = frames_schema(features)
    leaves = [leaf for field in schema for leaf in leaf_paths(field.name, field.type)]
    images = {f"{feature.name}.{leaf}" for feature in features if feature.kind == "image" for leaf in ("bytes", "path")}
    with ShardWriter(path) as shard:
        sink = ShardSink(shard)
        with pyarrow.parquet.ParquetWriter(
            sink,
            schema,
            use_dictionary=[leaf for leaf in leaves if leaf not in images] or False,
            compression={leaf: "none" if leaf in images else "snappy" for leaf in leaves},
            write_statistics=list(_BOUNDED),
            data_page_size=_PAGE_BYTES,
            write_page_checksum=False,
        ) as writer:
            for table in tables:
                writer.write_table(table, row_group_size=table.num_rows)
        sink.flush()
        for key, length in episodes:
            shard.write((), length, key)
        return shard.commit()
