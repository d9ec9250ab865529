"""The contents of a bag, and a mapping to start from: `rlds-beam inspect BAG --from=ros2`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds_beam import storage
from rlds_beam.errors import UsageError
from rlds_beam.formats.ros2.bags import Bag, Topic
from rlds_beam.formats.ros2.fields import IMAGES, image_like, read_image
from rlds_beam.formats.ros2.mapping import OF_EPISODE
from rlds_beam.formats.ros2.messages import BadMessage, message_type
from rlds_beam.text import aligned, count, format_size, printable, shorten

_JOINTS, _TEXT = "sensor_msgs/msg/JointState", "std_msgs/msg/String"
_CAMERA = "sensor_msgs/msg/CameraInfo"
_STATIC = "/tf_static"
_STREAMS = ("", "image", "image_raw", "compressed", "compressedDepth", "camera_info")  # parts of topics
_ACTION = re.compile(r"leader|master|command|cmd|action|target|goal|desired", re.IGNORECASE)
_TASK = re.compile(r"task|instruction|prompt|language|goal", re.IGNORECASE)
_VALUES = {
    "geometry_msgs/msg/PoseStamped": ("pose.position", "pose.orientation"),
    "geometry_msgs/msg/Pose": ("position", "orientation"),
    "geometry_msgs/msg/TwistStamped": ("twist.linear", "twist.angular"),
    "geometry_msgs/msg/Twist": ("linear", "angular"),
    "geometry_msgs/msg/WrenchStamped": ("wrench.force", "wrench.torque"),
    "geometry_msgs/msg/Wrench": ("force", "torque"),
    "sensor_msgs/msg/Imu": ("orientation", "angular_velocity", "linear_acceleration"),
    "std_msgs/msg/Float32": ("data",),
    "std_msgs/msg/Float64": ("data",),
    "std_msgs/msg/Float32MultiArray": ("data",),
    "std_msgs/msg/Float64MultiArray": ("data",),
    "std_msgs/msg/Int32": ("data",),
    "std_msgs/msg/Bool": ("data",),
}


class TopicFacts(NamedTuple):
    """A topic in numbers: messages, rate in Hz, jitter (the deviation of intervals) and longest gap in seconds."""

    name: str
    type: str
    messages: int
    rate: float
    jitter: float
    gap: float


def proposal(paths: Sequence[str], where: str) -> str:
    """Describes the first bag with a card and a table, and proposes a mapping of its topics.

    Raises:
      UsageError: the bag cannot be read.
    """
    try:
        with Bag(paths[0]) as bag:
            facts = [_topic_facts(bag, topic) for _, topic in sorted(bag.topics.items())]
            there = [fact for fact in facts if fact.messages]
            fields = _fields(bag, there)
            mapped = {field["topic"] for path, field in fields.items() if not path.startswith(OF_EPISODE)}
            images = [fact for fact in there if fact.type in IMAGES]
            drivers = images or [fact for fact in there if fact.name in mapped]
            # the slowest camera, or the slowest topic of the fields; each of its messages becomes a step
            driver = min(drivers, key=lambda fact: (fact.rate == 0, fact.rate), default=None)
            rows: list[Sequence[str]] = [("topic", "type", "messages", "Hz", "jitter ms", "longest gap s")]
            for fact in facts:
                numbers = (f"{fact.messages:,}", f"{fact.rate:.1f}", f"{fact.jitter * 1e3:.1f}", f"{fact.gap:.2f}")
                rows.append((printable(fact.name, 60), printable(fact.type, 60), *numbers))
            lines = [f"{paths[0]} ({count(len(paths), 'bag')} in {where})", *_card(bag, there, driver)]
            lines += ["", *aligned(rows), "", "A mapping to start from; save it as topics.yaml, edit it, and run:"]
            lines += [f"  rlds-beam inspect {shlex.quote(where)} --from=ros2 --topics=topics.yaml", ""]
            return "\n".join([*lines, *_write_mapping(bag, there, fields, driver)])
    except OSError as error:
        raise UsageError(str(error)) from error
    except BadMessage as error:
        raise UsageError(f"{paths[0]}: {error}") from error


def _topic_facts(bag: Bag, topic: Topic) -> TopicFacts:
    times = bag.times(topic.name) / 1e9
    between = np.diff(times)
    span = float(times[-1] - times[0]) if len(times) > 1 else 0.0
    rate = (len(times) - 1) / span if span > 0 else 0.0
    jitter, gap = (float(between.std()), float(between.max())) if len(between) else (0.0, 0.0)
    return TopicFacts(topic.name, topic.type, len(times), rate, jitter, gap)


def _fields(bag: Bag, facts: Sequence[TopicFacts]) -> dict[str, dict[str, Any]]:
    """The proposed fields, by path, as in the file."""
    fields: dict[str, dict[str, Any]] = {}
    for fact in facts:
        path = "action" if _ACTION.search(fact.name) else f"observation/{_label(fact.name)}"
        about: dict[str, Any] = {"topic": fact.name}
        if fact.type == _CAMERA:
            fields |= _calibration(bag, fact.name, f"{OF_EPISODE}/observation/{_label(fact.name)}")
            continue
        if fact.type in IMAGES:
            path = f"observation/{_label(fact.name)}"
        elif fact.type == _JOINTS:
            path = "action" if path == "action" else "observation/state"
            about |= {"field": "position", "names": list(_first(bag, fact.name).name)}
        elif fact.type == _TEXT and _TASK.search(fact.name):
            path = "language_instruction"
            about |= {"field": "data", "max_age_s": None}
        elif fact.type in _VALUES:
            about["field"] = _VALUES[fact.type]
        else:
            continue
        if path in fields and "/" not in path:  # nothing may be in a field that has a value
            path = f"info/{path}"
        names = (path, *(f"{path}_{i}" for i in range(2, 10_000)))
        fields[next(name for name in names if name not in fields)] = about
    return fields


def _calibration(bag: Bag, camera: str, path: str) -> dict[str, dict[str, Any]]:
    """The proposed fields of the calibration of a camera: /front/camera_info goes with /front/image_raw."""
    info = _first(bag, camera)
    values = {"intrinsics": "k", "distortion_model": "distortion_model", "frame_id": "header.frame_id"}
    values |= {"distortion": "d"} if len(info.d) else {}
    fields = {f"{path}_{part}": {"topic": camera, "field": value, "max_age_s": None} for part, value in values.items()}
    if _STATIC in bag.topics:
        kind, frame = message_type(bag.topics[_STATIC]), info.header.frame_id
        sent = [kind.decode(data) for _, _, data in bag.messages((_STATIC,))]
        if any(pose.child_frame_id == frame for message in sent for pose in message.transforms):
            fields[f"{path}_extrinsics"] = {"topic": _STATIC, "frame": frame}
    return fields


def _card(bag: Bag, facts: Sequence[TopicFacts], driver: TopicFacts | None) -> list[str]:
    """The facts about a bag before its topics are mapped."""
    times = np.concatenate([bag.times(topic.name) for topic in facts] or [np.zeros(1)])
    seconds = float(times.max() - times.min()) / 1e9
    long = f"{seconds / 60:,.1f} min" if seconds >= 60 else f"{seconds:.1f} s"
    rows = [("rate", f"{driver.rate:.1f} Hz, that of {printable(driver.name, 100)}" if driver else "unknown")]
    rows += [("time", f"{long}, {format_size(sum(map(storage.size, bag.files)))}")]
    rows += [("camera", _camera(bag, topic)) for topic in facts if topic.type in IMAGES]
    return [f"{label:10}{text}" for label, text in rows]


def _camera(bag: Bag, facts: TopicFacts) -> str:
    """`/camera/compressed: 640 x 480, jpeg, 30.0 Hz`."""
    try:
        encoding, image = read_image(_first(bag, facts.name), facts.type)
        height, width, _ = image_like("image", image).shape
        stored = f"{width} x {height}, {encoding}"
    except (AttributeError, UsageError, BadMessage) as error:
        stored = shorten(str(error), 100)
    return f"{printable(facts.name, 100)}: {stored}, {facts.rate:.1f} Hz"


def _write_mapping(
    bag: Bag, facts: Sequence[TopicFacts], fields: Mapping[str, Mapping[str, Any]], driver: TopicFacts | None
) -> list[str]:
    """The mapping as YAML, with the windows of signals that are faster than the steps."""
    if driver is None:
        return ["# No topic has images, joint states, or another type known to be useful: map fields of other types."]
    steps = bag.times(driver.name)
    windows: dict[str, int] = {}
    for fact in facts:
        if fact.type in _VALUES and fact.rate > 1.5 * driver.rate and len(steps) > 1:
            windows[fact.name] = int(np.diff(np.searchsorted(bag.times(fact.name), steps, side="right")).max())
    fps = [f"fps: {round(driver.rate)}"] if round(driver.rate) else []
    lines = [
        f"reference: {json.dumps(driver.name)}  # a step for each of its messages; or rate: 30",
        "time: log  # when it was recorded; header: the stamp in the message",
        "max_age_s: 0.5  # an older message makes a step incomplete",
        *fps,
        "end: truncated  # or terminal: episodes end because the task does",
        "episodes: bag  # or {topic: /episode, start: [start], stop: [stop]}, or {gap_s: 2}",
        "fields:",
    ]
    for path, field in fields.items():
        text = ", ".join(f"{key}: {json.dumps(value)}" for key, value in field.items())
        most = windows.get(field["topic"])
        note = f"  # the latest sample; window: {most} gives all since the step before" if most else ""
        lines.append(f"  {path}: {{{text}}}{note}")
    if "action" not in fields:
        lines.append("  # action: {topic: ..., field: ...}  # what the robot was told to do")
    return lines


def _first(bag: Bag, topic: str) -> Any:
    """The first message of a topic that has some. Raises BadMessage or UsageError if it cannot be read."""
    first = bag.first(topic)
    assert first is not None
    return message_type(bag.topics[topic]).decode(first)


def _label(topic: str) -> str:
    """A field's name from that of a topic: `camera` for `/camera/image_raw/compressed`."""
    parts = [part for part in topic.split("/") if part not in _STREAMS]
    return re.sub(r"\W", "_", "_".join(parts)) or "image"
