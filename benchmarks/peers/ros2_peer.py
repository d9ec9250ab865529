"""Loops over ROS 2 bags: `python benchmarks/peers/ros2_peer.py KIND PATH [SECONDS]`.

- `make`: writes a bag: two cameras (JPEG of about 50 kB at 30 Hz), joint states at 200 Hz, an action at 100 Hz. PATH
  ends in `zstd.mcap` (chunks compressed with zstd), `plain.mcap` (no compression), or `.db3`.
- `mcap`, `rosbags`: decode all messages with mcap-ros2-support, or with rosbags' AnyReader, align them by the latest
  message at each image of the first camera, and write RLDS with TFDS. Images are copied, not decoded.
- `mcap_read`, `rosbags_read`: the same without output.
- `ours_read`: our reader without output.

Prints JSON: the steps, and the seconds without imports.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

NS, START = 1_000_000_000, 1_700_000_000 * 1_000_000_000
CAMERAS = ("/camera_0/compressed", "/camera_1/compressed")
JOINTS, ACTION = "/joint_states", "/leader/joint_states"
NAMES = [f"joint_{i}" for i in range(7)]
HEIGHT, WIDTH = 480, 640
JOINT_TYPE, IMAGE_TYPE = "sensor_msgs/msg/JointState", "sensor_msgs/msg/CompressedImage"
EPISODE = 10
"""Seconds of an episode; a second without messages follows it."""
MODULES = {
    "mcap": ("mcap.reader", "mcap_ros2.decoder"),
    "rosbags": ("rosbags.rosbag2", "rosbags.typesys.stores.ros2_humble"),
    "ours": ("rlds_beam.formats.ros2.source", "mcap.reader", "rosbags.rosbag2", "rosbags.typesys", "yaml"),
}
"""What a reader imports, also at its first use."""
TFDS = ("tensorflow", "tensorflow_datasets")
"""What a writer also imports; TFDS imports TensorFlow at its first use."""


def make(path: Path, seconds: int) -> None:
    from mcap.writer import CompressionType, Writer
    from rosbags.typesys import Stores, get_typestore

    types = get_typestore(Stores.ROS2_HUMBLE)
    sent = _sent(types, seconds)
    if path.suffix == ".db3":
        _make_db3(path, types, sent)
        return
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        compression = CompressionType.ZSTD if "zstd" in path.name else CompressionType.NONE
        writer = Writer(file, compression=compression, chunk_size=4 << 20)
        writer.start("ros2")
        channels = {}
        for topic, kind in {**dict.fromkeys(CAMERAS, IMAGE_TYPE), JOINTS: JOINT_TYPE, ACTION: JOINT_TYPE}.items():
            text = types.generate_msgdef(kind, ros_version=2)[0]
            channels[topic] = writer.register_channel(
                topic, "cdr", writer.register_schema(kind, "ros2msg", text.encode())
            )
        for at, topic, data in sent:
            writer.add_message(channels[topic], at, data, at)
        writer.finish()
    part.rename(path)


def _make_db3(path: Path, types: Any, sent: Iterable[tuple[int, str, bytes]]) -> None:
    from rosbags.rosbag2 import StoragePlugin, Writer

    with tempfile.TemporaryDirectory(dir=path.parent) as room:
        with Writer(Path(room) / "bag", version=9, storage_plugin=StoragePlugin.SQLITE3) as writer:
            kinds = {**dict.fromkeys(CAMERAS, IMAGE_TYPE), JOINTS: JOINT_TYPE, ACTION: JOINT_TYPE}
            known = {topic: writer.add_connection(topic, kind, typestore=types) for topic, kind in kinds.items()}
            for at, topic, data in sent:
                writer.write(known[topic], at, data)
        next((Path(room) / "bag").glob("*.db3")).rename(path)


def _sent(types: Any, seconds: int) -> Iterator[tuple[int, str, bytes]]:
    """The messages in the order of time."""
    joint, image, header, stamp = (
        types.types[name] for name in (JOINT_TYPE, IMAGE_TYPE, "std_msgs/msg/Header", "builtin_interfaces/msg/Time")
    )
    jpegs, rng = _jpegs(), np.random.default_rng(0)
    rates = {CAMERAS[0]: 30, CAMERAS[1]: 30, JOINTS: 200, ACTION: 100}
    for begin in range(0, seconds, EPISODE):
        length = min(EPISODE, seconds - begin)
        first = START + (begin + begin // EPISODE) * NS
        times = [(first + i * NS // rate, topic) for topic, rate in rates.items() for i in range(length * rate)]
        for number, (at, topic) in enumerate(sorted(times)):
            head = header(stamp=stamp(sec=at // NS, nanosec=at % NS), frame_id="base")
            if topic in CAMERAS:
                message = image(header=head, format="jpeg", data=jpegs[number % len(jpegs)])
            else:
                values = (rng.random(len(NAMES)) for _ in range(3))
                message = joint(head, NAMES, *values)
            yield at, topic, bytes(types.serialize_cdr(message, message.__msgtype__))


def _jpegs() -> list[Any]:
    """Images of about 50 kB; so many that zstd does not find one again in its window of 2 MB."""
    import simplejpeg

    rng = np.random.default_rng(0)
    soft = np.kron(rng.integers(60, 200, (15, 20, 3)), np.ones((32, 32, 1))).astype(np.uint8)
    made = []
    for i in range(100):
        pixels = np.roll(soft, 7 * i, axis=1) + rng.integers(0, 16, soft.shape, np.uint8)
        made.append(np.frombuffer(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=80), np.uint8))
    return made


def _of_mcap(path: Path) -> Iterator[tuple[int, str, Any]]:
    from mcap.reader import make_reader
    from mcap_ros2.decoder import DecoderFactory

    with path.open("rb") as file:
        reader = make_reader(file, decoder_factories=[DecoderFactory()])
        for _, channel, message, decoded in reader.iter_decoded_messages():
            yield message.log_time, channel.topic, decoded


def _of_rosbags(path: Path) -> Iterator[tuple[int, str, Any]]:
    from rosbags.rosbag2 import Reader
    from rosbags.typesys import Stores, get_typestore

    types = get_typestore(Stores.ROS2_HUMBLE)
    with Reader(path) as reader:
        for connection, at, data in reader.messages():
            yield at, connection.topic, types.deserialize_cdr(data, connection.msgtype)


def aligned(messages: Iterable[tuple[int, str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The steps of each episode, by the latest message of each topic at each image of the first camera."""
    episode: list[dict[str, Any]] = []
    latest: dict[str, Any] = {}
    pending: tuple[int, Any] | None = None
    before = 0
    for at, topic, message in messages:
        if pending is not None and at > pending[0]:
            if len(latest) == 4:
                episode.append(_step(latest))
            pending = None
        if at - before > NS // 2 and episode:
            yield episode
            episode, latest = [], {}
        before = at
        latest[topic] = message
        if topic == CAMERAS[0]:
            pending = (at, message)
    if pending is not None and len(latest) == 4:
        episode.append(_step(latest))
    if episode:
        yield episode


def _step(latest: dict[str, Any]) -> dict[str, Any]:
    observation = {f"image_{i}": bytes(latest[topic].data) for i, topic in enumerate(CAMERAS)}
    return {"observation": {**observation, "state": _ordered(latest[JOINTS])}, "action": _ordered(latest[ACTION])}


def _ordered(message: Any) -> Any:
    names = list(message.name)
    return np.array([message.position[names.index(name)] for name in NAMES], np.float32)


def write(episodes: Iterable[list[dict[str, Any]]], room: Path) -> int:
    import tensorflow_datasets as tfds

    f, total = tfds.features, 0

    class Builder(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
        VERSION = tfds.core.Version("1.0.0")
        name = "bag"
        pkg_dir_path = room

        def _info(self) -> Any:
            images = {f"image_{i}": f.Image(shape=(HEIGHT, WIDTH, 3), encoding_format="jpeg") for i in range(2)}
            numbers = f.Tensor(shape=(len(NAMES),), dtype=np.float32)
            flags = dict.fromkeys(("is_first", "is_last", "is_terminal"), np.bool_)
            content = {
                "observation": {**images, "state": numbers},
                "action": numbers,
                "reward": np.float32,
                "discount": np.float32,
                **flags,
            }
            return tfds.core.DatasetInfo(builder=self, features=f.FeaturesDict({"steps": f.Dataset(content)}))

        def _split_generators(self, manager: Any) -> Any:
            del manager
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Iterator[Any]:
            nonlocal total
            for number, steps in enumerate(episodes):
                total += len(steps)
                yield str(number), {"steps": [_flagged(step, i, len(steps)) for i, step in enumerate(steps)]}

    Builder(data_dir=str(room)).download_and_prepare()
    return total


def _flagged(step: dict[str, Any], i: int, count: int) -> dict[str, Any]:
    import io

    images = {name: io.BytesIO(value) for name, value in step["observation"].items() if name != "state"}
    flags = {"is_first": i == 0, "is_last": i == count - 1, "is_terminal": False}
    return {**step, "observation": {**step["observation"], **images}, "reward": 0.0, "discount": 1.0, **flags}


def _ours(path: Path) -> int:
    from rlds_beam.formats.format_options import Ros2Options
    from rlds_beam.formats.ros2.source import Ros2Source

    source = Ros2Source.open(str(path), options=Ros2Options(topics=str(path.parent / "topics.yaml")))
    found = source.files.episodes(str(path), 0, 1 << 40)
    return sum(len(arrays["timestamp_ns"]) for arrays in found if isinstance(arrays, dict))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = ("make", "mcap", "rosbags", "mcap_read", "rosbags_read", "ours_read")
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("path", type=Path)
    parser.add_argument("seconds", type=int, nargs="?", default=10)
    args = parser.parse_args()
    if args.kind == "make":
        if not args.path.exists():
            make(args.path, args.seconds)
        print(args.path)
        return
    for module in (*MODULES[args.kind.removesuffix("_read")], *(() if args.kind.endswith("_read") else TFDS)):
        importlib.import_module(module)
    read = _of_mcap if args.kind.startswith("mcap") else _of_rosbags
    with tempfile.TemporaryDirectory(dir=args.path.parent) as room:
        began, spent = time.perf_counter(), time.process_time()
        if args.kind == "ours_read":
            steps = _ours(args.path)
        elif args.kind.endswith("_read"):
            steps = sum(map(len, aligned(read(args.path))))
        else:
            steps = write(aligned(read(args.path)), Path(room))
        seconds, spent = time.perf_counter() - began, time.process_time() - spent
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "processor_seconds": spent, "steps": steps, "peak_mb": peak}))


if __name__ == "__main__":
    main()
