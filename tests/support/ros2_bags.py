"""Writes ROS 2 bags, with rosbags' writer or with MCAP's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlds_beam.episodes.episode import Episode
from rlds_beam.formats.format_options import Ros2Options
from rlds_beam.formats.ros2.source import Ros2Source
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader

T0 = 1_700_000_000_000_000_000
MS = 1_000_000
JOINTS, IMAGE, COMPRESSED = "sensor_msgs/msg/JointState", "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
STRING, BOOL, POSE = "std_msgs/msg/String", "std_msgs/msg/Bool", "geometry_msgs/msg/PoseStamped"


class Sent(NamedTuple):
    """A message: when it was recorded, its topic and type, and its content as nested dicts."""

    time: int
    topic: str
    type: str
    content: dict[str, Any]


def header(stamp: int) -> dict[str, Any]:
    return {"stamp": {"sec": stamp // 10**9, "nanosec": stamp % 10**9}, "frame_id": "base"}


def joints(
    time: int, names: Sequence[str], position: Iterable[float], topic: str = "/joint_states", stamp: int = 0
) -> Sent:
    content = {
        "header": header(stamp or time),
        "name": list(names),
        "position": np.array([*position], np.float64),
        "velocity": np.zeros(0),
        "effort": np.zeros(0),
    }
    return Sent(time, topic, JOINTS, content)


def compressed(time: int, data: bytes, topic: str = "/camera/compressed", label: str = "jpeg") -> Sent:
    return Sent(time, topic, COMPRESSED, {"header": header(time), "format": label, "data": np.frombuffer(data, "u1")})


def pixels(
    time: int, rows: bytes, encoding: str, size: tuple[int, int], step: int, big: bool = False, topic: str = "/image"
) -> Sent:
    content = {
        "header": header(time),
        "height": size[0],
        "width": size[1],
        "encoding": encoding,
        "is_bigendian": int(big),
        "step": step,
        "data": np.frombuffer(rows, "u1"),
    }
    return Sent(time, topic, IMAGE, content)


MATRIX = [90.0, 0, 11.5, 0, 85, 7.5, 0, 0, 1]


def camera_info(time: int, focal: float = 90.0, topic: str = "/camera/camera_info") -> Sent:
    """A CameraInfo as a driver publishes it beside each image."""
    region = {"x_offset": 0, "y_offset": 0, "height": 0, "width": 0, "do_rectify": False}
    content = {
        "header": header(time) | {"frame_id": "camera"},
        "height": 16,
        "width": 24,
        "distortion_model": "plumb_bob",
        "d": np.array([0.1, -0.05, 0.002, 0.001, 0.0]),
        "k": np.array([focal, *MATRIX[1:]]),
        "r": np.eye(3).ravel(),
        "p": np.eye(3, 4).ravel(),
        "binning_x": 0,
        "binning_y": 0,
        "roi": region,
    }
    return Sent(time, topic, "sensor_msgs/msg/CameraInfo", content)


def imu(time: int, acceleration: Iterable[float], topic: str = "/imu") -> Sent:
    still = {"x": 0.0, "y": 0.0, "z": 0.0}
    content = {
        "header": header(time),
        "orientation": still | {"w": 1.0},
        "orientation_covariance": np.zeros(9),
        "angular_velocity": still,
        "angular_velocity_covariance": np.zeros(9),
        "linear_acceleration": dict(zip("xyz", map(float, acceleration), strict=True)),
        "linear_acceleration_covariance": np.zeros(9),
    }
    return Sent(time, topic, "sensor_msgs/msg/Imu", content)


def text(time: int, data: str, topic: str = "/task") -> Sent:
    return Sent(time, topic, STRING, {"data": data})


def flag(time: int, data: bool, topic: str = "/recording") -> Sent:
    return Sent(time, topic, BOOL, {"data": data})


def jpegs(count: int, seed: int = 0) -> list[bytes]:
    import simplejpeg

    random = np.random.default_rng(seed)
    return [simplejpeg.encode_jpeg(random.integers(0, 255, (16, 24, 3), np.uint8)) for _ in range(count)]


def write_bag(path: Path, sent: Iterable[Sent], storage: str = "mcap", **options: Any) -> Path:
    """A directory with metadata.yaml, written by rosbags; `compression` is `(mode, format)`."""
    from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore

    types = get_typestore(Stores.ROS2_HUMBLE)
    plugin = StoragePlugin.MCAP if storage == "mcap" else StoragePlugin.SQLITE3
    writer = Writer(path, version=9, storage_plugin=plugin)
    if "compression" in options:
        mode = CompressionMode[options["compression"]]
        writer.set_compression(mode, CompressionFormat.ZSTD)
    connections: dict[str, Any] = {}
    with writer:
        for one in sent:
            if one.topic not in connections:
                connections[one.topic] = writer.add_connection(one.topic, one.type, typestore=types)
            message = _message(types, one.type, one.content)
            writer.write(connections[one.topic], one.time, types.serialize_cdr(message, one.type))
    return path


def _message(types: Any, kind: str, content: dict[str, Any]) -> Any:
    fields = dict(types.fielddefs[kind][1])
    made = {
        name: [_message(types, fields[name][1][0][1], one) for one in value]
        if isinstance(value, list) and value and isinstance(value[0], dict)
        else _message(types, fields[name][1], value)
        if isinstance(value, dict)
        else value
        for name, value in content.items()
    }
    return types.types[kind](**made)


def write_mcap(
    path: Path, sent: Iterable[Sent], definitions: Callable[[str], str] | None = None, **options: Any
) -> Path:
    """One file, written by mcap and mcap-ros2-support; with `chunk_size=0` without chunks."""
    from mcap.writer import Writer as McapWriter
    from mcap_ros2.writer import Writer
    from rosbags.typesys import Stores, get_typestore

    types = get_typestore(Stores.ROS2_HUMBLE)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = Writer(file, **options)
        if options.get("chunk_size") == 0:
            file.seek(0)
            file.truncate()
            writer._writer = McapWriter(file, use_chunking=False)
            writer._writer.start("ros2")
        schemas: dict[str, Any] = {}
        for one in sent:
            if one.type not in schemas:
                definition = definitions(one.type) if definitions else types.generate_msgdef(one.type, ros_version=2)[0]
                schemas[one.type] = writer.register_msgdef(one.type, definition)
            writer.write_message(one.topic, schemas[one.type], _lists(one.content), one.time, one.time)
        writer.finish()
    return path


def _lists(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _lists(value) for name, value in content.items()}
    if isinstance(content, np.ndarray):
        return content.tobytes() if content.dtype == np.uint8 else content.tolist()
    return content


MAPPING = """
reference: /camera/compressed
max_age_s: 0.1
fps: 10
fields:
  observation/image: {topic: /camera/compressed}
  observation/state: {topic: /joint_states, field: position, names: [a, b, c]}
  action: {topic: /leader, field: position, names: [c, a], dtype: float32}
  language_instruction: {topic: /task, field: data, max_age_s: null}
"""


def robot(count: int = 6, start: int = T0, seed: int = 0) -> list[Sent]:
    """Messages of a robot: `count` images at 10 Hz, joints at 50 Hz in changing order, a task at the start."""
    sent = [text(start, "pick the cube")]
    for i, image in enumerate(jpegs(count, seed)):
        sent.append(compressed(start + (100 * i + 50) * MS, image))
    for i in range(count * 5):
        names, values = ["a", "b", "c"], [i + 0.1, i + 0.2, i + 0.3]
        turn = slice(None, None, -1 if i % 2 else 1)
        sent.append(joints(start + 20 * i * MS, names[turn], values[turn]))
        sent.append(joints(start + 20 * i * MS + MS, names, [-v for v in values], "/leader"))
    return sorted(sent, key=lambda one: one.time)


def opened(bag: Path | str, mapping: str, **options: Any) -> Ros2Source:
    path = Path(bag).parent / "topics.yaml"
    path.write_text(mapping)
    return Ros2Source.open(str(bag), options=Ros2Options(topics=str(path), **options))


def read(bag: Path | str, mapping: str = MAPPING, ranges: int | None = None, **options: Any) -> list[Episode]:
    source = opened(bag, mapping, **options)
    reader = EpisodeReader(source)
    works = plan_ranges(source, ranges)
    return [episode for work in works for one in work.segments for episode in reader.read(work.split, one)]
