"""Reads datasets with the formats' own libraries, and compares their values with episodes.

A reader yields pieces: the arrays of an episode, or of a file, by their names in the file. Which field of an episode is
in which array is learned from the undamaged dataset (`Comparison.of`), so no mapping is written down here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from example_fuzz import example_class
from lerobot_data import FPS

from rlds_beam.episodes.episode import Episode
from rlds_beam.images.encoded_images import EncodedImages

Rows = Any
"""A number array of shape [rows, size], or a list of bytes."""
Piece = dict[str, Rows]
Reader = Callable[[Path], Iterator[Piece]]

ANYWHERE = "any row of "
"""Prefix of arrays whose rows are compared without their order."""
COMPUTED = ("discount", "is_first", "is_last", "is_terminal", "reward")
"""Fields that sources compute from others, unless an array has their name."""
_MAX_BYTES = 64 << 20
_ROWS = 10**9


def rows_of(column: Any) -> Rows:
    """A column of either side as rows."""
    if isinstance(column, EncodedImages):
        return [bytes(image) for image in column]
    array = np.asarray(column)
    if array.dtype.kind in "biuf":
        return array.reshape(len(array), -1 if array.size else 0).astype(np.float64)
    if array.dtype.kind not in "OSU":
        return None
    texts = [value.encode() if isinstance(value, str) else bytes(value or b"") for value in array.reshape(-1).tolist()]
    size = array.size // max(1, len(array))
    return texts if array.ndim == 1 else [repr(texts[i : i + size]).encode() for i in range(0, len(texts), size or 1)]


def _equal(one: Rows, other: Rows) -> bool:
    if isinstance(one, list) and isinstance(other, np.ndarray):  # our lossless images, and pixels
        return len(one) == len(other) and all(
            pixels is not None and np.array_equal(pixels, row)
            for pixels, row in zip(map(_pixels, one), other, strict=True)
        )
    if isinstance(one, list) or isinstance(other, list):
        return isinstance(one, list) and one == other
    return one.shape == other.shape and np.array_equal(one, other, equal_nan=True)


@functools.lru_cache(maxsize=256)
def _pixels(image: bytes) -> Any:
    import imagecodecs

    return imagecodecs.png_decode(image).reshape(-1) if image[:4] == b"\x89PNG" else None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Where the values of an undamaged dataset are.

    Attributes:
      read: the format's own reader.
      places: for each field, the arrays that hold its values: their names, and the number of rows by which they are
        shifted in relation to the first field's. There are several if arrays are equal.
      pieces: the undamaged pieces.
      uncovered: the number of rows of the first field's arrays that are in no episode.
    """

    read: Reader
    places: Mapping[str, Sequence[Place]]
    pieces: Sequence[Piece]
    uncovered: int = 0

    @staticmethod
    def of(read: Reader, path: Path, episodes: Sequence[Episode]) -> Comparison:
        """Learns from an undamaged dataset."""
        pieces = [*read(path)]
        columns = [{field: rows_of(column) for field, column in episode.steps.items()} for episode in episodes]
        candidates = {
            field: [
                Place(name, shift)
                for name in dict.fromkeys(name for piece in pieces for name in piece)
                if field not in COMPUTED or field in name
                for shift in ((0,) if name.startswith(ANYWHERE) else (0, 1, -1))
            ]
            for field in columns[0]
            if any(_varies(column[field]) for column in columns)  # others may be equal by chance
        }

        def fits(places: Mapping[str, Sequence[Place]]) -> bool:
            return all(_find(column, pieces, places) is not None for column in columns)

        unshifted = {field: [place for place in found if not place.shift] for field, found in candidates.items()}
        alone = [field for field, found in unshifted.items() if fits({field: found})]
        first = max(alone, key=lambda field: len({str(row) for column in columns for row in column[field]}))
        places = {first: [place for place in unshifted[first] if fits({first: [place]})]}
        for field, found in candidates.items():
            if field != first and (right := [place for place in found if fits({first: places[first], field: [place]})]):
                places[field] = right
        learned = Comparison(read, places, pieces)
        return dataclasses.replace(
            learned, uncovered=learned._uncovered(pieces, [learned._at(c, pieces) for c in columns])
        )

    def problem(self, path: Path, episodes: Sequence[Episode], silent: bool) -> tuple[str | None, str | None]:
        """Compares accepted episodes of a damaged dataset.

        Args:
          path: the directory.
          episodes: the accepted episodes.
          silent: nothing was rejected or reported, so all rows must be in an episode.

        Returns:
          What is wrong, or None, and the error of the format's own reader, if it cannot read everything. Then episodes
          may also be equal to the undamaged ones. EnvLogger's reader stops at damage without an error, and the readers
          of bags skip messages without one: those of a channel that a damaged summary lacks, and the rest of a chunk.
        """
        pieces: list[Piece] = []
        refused = None
        try:
            for piece in self.read(path):
                pieces.append(piece)
        except Exception as error:
            refused = f"{type(error).__name__}: {error}"[:300]
        if refused and self.read is ros2:  # it stops at the first damage, and most messages have no checksum
            return None, refused
        known = [*pieces, *(self.pieces if refused or self.read in (envlogger, ros2) else ())]
        found = []
        for episode in episodes:
            column = {field: rows_of(episode.steps[field]) for field in self.places if field in episode.steps}
            # An episode that lacks an optional array, for example rewards, gets zeros.
            column = {field: rows for field, rows in column.items() if field not in COMPUTED or np.any(rows)}
            found.append(self._at(column, known))
            if column and found[-1] is None and len(episode) > 1:
                wrong = [field for field in column if _find(column, known, {field: self.places[field]}) is None]
                return f"{episode.key}: its own reader has other values of {wrong or 'its rows'}", refused
        # An only step may be void, so it is not compared, and the first field may be renamed.
        short = any(len(episode) == 1 or not {*episode.steps} >= {next(iter(self.places))} for episode in episodes)
        skipped = any(rows is not None and rows.start >= _ROWS * len(pieces) for rows in found)  # by its own reader
        if (
            silent
            and not refused
            and not short
            and not skipped
            and (lost := self._uncovered(pieces, found)) > self.uncovered
        ):
            return f"{lost} rows are in no episode, and nothing says so", refused
        return None, refused

    def _at(self, column: Mapping[str, Rows], pieces: Sequence[Piece]) -> range | None:
        return _find(column, pieces, {field: places for field, places in self.places.items() if field in column})

    def _uncovered(self, pieces: Sequence[Piece], found: Sequence[range | None]) -> int:
        """The number of rows of the first field's arrays that are in no episode."""
        place = next(iter(self.places.values()))[0]
        sizes = [len(rows) if (rows := piece.get(place.name)) is not None else 0 for piece in pieces]
        distinct = {*(rows for rows in found if rows is not None)}
        covered = {row for rows in distinct for row in rows}
        again = sum(map(len, filter(None, found))) - sum(map(len, distinct))  # equal episodes
        return sum(_ROWS * i + row not in covered for i, size in enumerate(sizes) for row in range(size)) - again


class Place(NamedTuple):
    """An array of a piece, and the number of rows by which a field is shifted in it."""

    name: str
    shift: int


def _varies(rows: Rows) -> bool:
    """Whether the rows that are compared differ."""
    return rows is not None and any(not _equal(rows[t : t + 1], rows[:1]) for t in range(1, len(rows) - 1))


def _find(column: Mapping[str, Rows], pieces: Sequence[Piece], places: Mapping[str, Sequence[Place]]) -> range | None:
    """The rows of a piece that have these fields of an episode; counted from `_ROWS` times the number of the piece.

    The last row of an episode may be void: it is not compared.
    """
    for i, piece in enumerate(pieces):
        first, *_ = places
        for place in places[first]:
            if (rows := piece.get(place.name)) is None or column[first] is None:
                continue
            size = len(column[first])
            if size == 1:
                return None
            anywhere = place.name.startswith(ANYWHERE)
            for start in range(1 if anywhere else max(1, len(rows) - size + 2)):
                if all(
                    any(_is_at(column[field], piece.get(name), start + shift, name) for name, shift in found)
                    for field, found in places.items()
                ):
                    return range(_ROWS * i + start, _ROWS * i + start + size)
    return None


def _is_at(ours: Rows, theirs: Rows, start: int, name: str) -> bool:
    if ours is None or theirs is None:
        return False
    last = len(ours) - 1
    if name.startswith(ANYWHERE):
        return all(any(_equal(ours[t : t + 1], theirs[i : i + 1]) for i in range(len(theirs))) for t in range(last))
    return start >= 0 and _equal(ours[:last], theirs[start : start + last])


def _files(path: Path, *patterns: str) -> list[Path]:
    """Raises OSError for a FIFO or a device, which a library would wait for."""
    files = sorted(file for pattern in patterns for file in path.glob(pattern))
    if other := [file for file in files if not stat.S_ISREG(file.stat().st_mode)]:
        raise OSError(f"{other[0].name} is not a regular file")
    return files


def _piece(arrays: Mapping[str, Any]) -> Piece:
    return {name: rows_of(array) for name, array in arrays.items() if np.ndim(array)}


def _example(payload: bytes) -> dict[str, Any]:
    """A tf.Example's values, by protobuf."""
    features = example_class().FromString(payload).features.feature
    values = {
        name: [*getattr(feature, feature.WhichOneof("kind") or "int64_list").value]
        for name, feature in features.items()
        if feature.WhichOneof("kind")
    }
    return {
        name: np.array([*value, None], object)[:-1] if value and isinstance(value[0], bytes) else np.array(value)
        for name, value in values.items()
    }


def _episode_example(payload: bytes) -> Piece:
    values = _example(payload)
    steps = len(values.get("steps/is_first", values.get("step_type", ())))
    return _piece({name: _by_step(value, steps) for name, value in values.items()})


def _by_step(value: Any, steps: int) -> Any:
    return value if value.dtype == object or not steps or value.size % steps else value.reshape(steps, -1)


def _tfrecords(path: Path) -> Iterator[Iterator[bytes]]:
    from tensorflow.python.lib.io import tf_record

    for file in _files(path, "**/*.tfrecord*"):
        if file.suffix != ".spec":
            zipped = file.read_bytes()[:2] == b"\x1f\x8b"
            kind = tf_record.TFRecordCompressionType.GZIP if zipped else tf_record.TFRecordCompressionType.NONE
            yield tf_record.tf_record_iterator(str(file), tf_record.TFRecordOptions(kind))


def tfrecord(path: Path) -> Iterator[Piece]:
    for payloads in _tfrecords(path):
        yield from map(_episode_example, payloads)


def array_record(path: Path) -> Iterator[Piece]:
    from array_record.python.array_record_module import ArrayRecordReader

    for file in _files(path, "**/*.array_record*"):
        reader = ArrayRecordReader(str(file))
        yield from map(_episode_example, reader.read_all())
        reader.close()


def _hdf5(group: str, path: Path) -> Iterator[Piece]:
    """A piece for each file, and each group (or end of a name) that the pattern finds in it."""
    import h5py

    for file in _files(path, "**/*.hdf5", "**/*.h5"):
        pieces: dict[str, dict[str, Any]] = {}
        with h5py.File(file) as opened:
            damaged = None
            for name, data in _datasets(opened):
                if isinstance(data, Exception):
                    damaged = data
                elif data.shape and 0 < data.nbytes <= _MAX_BYTES:
                    found = re.search(group, name)
                    try:
                        pieces.setdefault(found[0] if found else "", {})[re.sub(group, "", name)] = _values(data)
                    except Exception as error:
                        damaged = error
        yield from map(_piece, pieces.values())
        if damaged:
            raise damaged


def _datasets(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The datasets below a group, by name; the error for one that cannot be opened."""
    for name in group:
        try:
            member = group[name]
        except Exception as error:
            yield prefix + name, error
            continue
        if hasattr(member, "keys"):
            try:
                yield from _datasets(member, f"{prefix}{name}/")
            except Exception as error:
                yield prefix + name, error
        elif hasattr(member, "nbytes"):
            yield prefix + name, member


def _values(data: Any) -> Any:
    import h5py

    values = data[()]
    kind = h5py.check_vlen_dtype(data.dtype)
    if kind is None or kind in (bytes, str):
        return values
    return np.array([*(np.asarray(value).tobytes() for value in values), None], object)[:-1]


hdf5: Reader = functools.partial(_hdf5, r"data/demo_\d+/")
minari: Reader = functools.partial(_hdf5, r"episode_\d+/")
d4rl: Reader = functools.partial(_hdf5, r"^$")


def _table(file: Path) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    return (
        parquet.ParquetFile(file).read()
        if file.suffix == ".parquet"
        else pa.ipc.open_file(pa.OSFile(str(file))).read_all()
    )


def _columns(table: Any) -> dict[str, Any]:
    """A table's columns as arrays; those of structs by the names of their parts."""
    while any(str(field.type).startswith("struct") for field in table.schema):
        table = table.flatten()
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        values = column.to_pylist()
        text = bool(values) and isinstance(values[0], (bytes, str))
        values = values if text else [np.nan if value is None else value for value in values]
        columns[name] = np.array([*values, None], object)[:-1] if text else np.array(values)
    return columns


def lerobot(path: Path) -> Iterator[Piece]:
    """A piece for each episode; the frames of its videos are next to its rows."""
    first = 0
    damaged = list[Exception]()
    videos = {file.parts[-3]: _frames(file, damaged) for file in _files(path, "videos/*/*/*.mp4")}
    for file in _files(path, "data/*/*.parquet"):
        columns = _columns(_table(file))
        numbers = columns["episode_index"]
        borders = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1), len(numbers)]
        for start, stop in itertools.pairwise(borders):
            shown = {name: read(range(first, first + stop - start)) for name, read in videos.items()}
            first += stop - start
            yield _piece({name: values[start:stop] for name, values in columns.items()} | shown)
    if damaged:
        raise damaged[0]


def _frames(file: Path, damaged: list[Exception]) -> Callable[[range], Any]:
    """Reads frames by their numbers; those that cannot be decoded are NaN, and their errors are in `damaged`."""
    import av

    decoded = {}
    with av.open(str(file)) as container:
        for packet in container.demux(video=0):
            try:
                decoded |= {round(frame.time * FPS): frame.to_ndarray(format="rgb24") for frame in packet.decode()}
            except av.FFmpegError as error:
                damaged.append(error)
    missing = np.full(next(iter(decoded.values())).shape, np.nan)
    return lambda numbers: np.stack([decoded.get(number, missing) for number in numbers])


def numpy(path: Path) -> Iterator[Piece]:
    yield _piece({file.name: np.load(file) for file in _files(path, "*/*.npy") if "offsets" not in file.name})


def npz(path: Path) -> Iterator[Piece]:
    for file in _files(path, "*.npz"):
        with np.load(file) as arrays:
            yield _piece(dict(arrays))


def zarr(path: Path) -> Iterator[Piece]:
    import zarr as library

    _files(path, "**/.z*", "**/[0-9]*")
    for store in sorted(path.glob("*.zarr*")):
        opened = str(store) if store.is_dir() else library.storage.ZipStore(str(store), mode="r")
        group = library.open_group(opened, mode="r", path="data")  # whatever the metadata of the root is
        damaged, arrays = list[Exception](), {}
        for name, array in group.arrays():
            try:
                arrays[name] = array[...]
            except Exception as error:
                damaged.append(error)
                arrays[name] = _zarr_rows(array)
        yield _piece(arrays)
        if damaged:
            raise damaged[0]


def _zarr_rows(array: Any) -> Any:
    """The rows of an array of numbers; NaN for those that cannot be read."""
    rows = np.full((min(array.shape[0], 100), *array.shape[1:]), np.nan)
    for i in range(len(rows)):
        with contextlib.suppress(Exception):
            rows[i] = array[i]
    return rows


def envlogger(path: Path) -> Iterator[Piece]:
    import envlogger as library

    _files(path, "*/*.riegeli", "*.riegeli")
    with library.reader.Reader(str(path)) as reader:
        for episode in reader.episodes:
            steps = [*episode]
            observed = [step.timestep.observation for step in steps]
            yield _piece(
                {name: np.stack([one[name] for one in observed]) for name in observed[0]}
                | {"action": np.stack([step.action for step in steps[1:]])}
            )


def ros2(path: Path) -> Iterator[Piece]:
    _files(path, "bag/*")
    messages: dict[str, list[tuple[int, Any]]] = {}
    for topic, time, message in _mcap_messages(path) if not (path / "bag" / "metadata.yaml").exists() else _bag(path):
        messages.setdefault(topic, []).append((time, message))
    arrays: dict[str, Any] = {}
    for topic, names in (("/joint_states", "abc"), ("/leader", "ca")):
        found = [dict(zip(message.name, message.position, strict=False)) for _, message in messages.get(topic, ())]
        arrays[ANYWHERE + topic] = [[float(joints.get(name, np.nan)) for name in names] for joints in found]
    # A message that a repeated chunk has again is one step.
    images = [image for _, image in sorted({(t, bytes(m.data)) for t, m in messages.get("/camera/compressed", ())})]
    yield _piece({**arrays, "images": np.array([*images, None], object)[:-1]})


def _mcap_messages(path: Path) -> Iterator[tuple[str, int, Any]]:
    """The messages of the data section; mcap's own loop also yields those that follow it, which the format forbids."""
    from mcap.records import Channel, DataEnd, Message, Schema
    from mcap.stream_reader import StreamReader
    from mcap_ros2.decoder import DecoderFactory

    factory, schemas, channels = DecoderFactory(), dict[int, Any](), dict[int, Any]()
    with (path / "bag" / "x.mcap").open("rb") as file:
        for record in StreamReader(file, record_size_limit=1 << 30).records:
            if isinstance(record, DataEnd):
                return
            if isinstance(record, Schema):
                schemas[record.id] = record
            elif isinstance(record, Channel):
                channels[record.id] = record
            elif isinstance(record, Message):
                channel = channels[record.channel_id]
                decode: Any = factory.decoder_for(channel.message_encoding, schemas.get(channel.schema_id))
                yield channel.topic, record.log_time, decode(record.data)


def _bag(path: Path) -> Iterator[tuple[str, int, Any]]:
    from rosbags.rosbag2 import Reader as Bag
    from rosbags.typesys import Stores, get_typestore

    types = get_typestore(Stores.ROS2_HUMBLE)
    with Bag(path / "bag") as reader:
        for storage in reader.storage.storages:  # type: ignore[attr-defined]  # it reads a chunk as often as the index has it
            if hasattr(storage, "chunks"):
                storage.chunks[:] = {chunk.chunk_start_offset: chunk for chunk in storage.chunks}.values()
        for connection, time, raw in reader.messages():
            yield connection.topic, time, types.deserialize_cdr(raw, connection.msgtype)
