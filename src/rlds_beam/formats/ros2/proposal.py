"""The contents of a bag, and a mapping to start from: `rlds-beam inspect BAG --from=ros2`."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds_beam import storage
from rlds_beam.episodes.schema import MAX_UNFOLDED
from rlds_beam.errors import UsageError
from rlds_beam.formats.ros2.bags import Bag
from rlds_beam.formats.ros2.fields import IMAGES, find_pose, image_reader
from rlds_beam.formats.ros2.mapping import OF_EPISODE
from rlds_beam.formats.ros2.messages import BadMessage, message_type
from rlds_beam.text import aligned, count, format_size, printable, shorten

_JOINTS, _TEXT = "sensor_msgs/msg/JointState", "std_msgs/msg/String"
_CAMERA = "sensor_msgs/msg/CameraInfo"
_STATIC = "/tf_static"
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


def topic_facts(bag: Bag) -> list[TopicFacts]:
    """The topics of a bag in numbers, by name. Raises DamagedBag."""
    facts = []
    for name, topic in sorted(bag.topics.items()):
        times = bag.times(name) / 1e9
        between = np.diff(times)
        span = float(times[-1] - times[0]) if len(times) > 1 else 0.0
        rate = (len(times) - 1) / span if span > 0 else 0.0
        jitter, gap = (float(between.std()), float(between.max())) if len(between) else (0.0, 0.0)
        facts.append(TopicFacts(name, topic.type, len(times), rate, jitter, gap))
    return facts


def proposal(paths: Sequence[str], where: str) -> str:
    """Describes the first bag with a card and a table, and proposes a mapping of its topics.

    Raises:
      UsageError: the bag cannot be read.
    """
    try:
        with Bag(paths[0]) as bag:
            facts = topic_facts(bag)
            there = [fact for fact in facts if fact.messages]
            joints = {fact.name: _joints(bag, fact.name) for fact in there if fact.type == _JOINTS}
            fields = _fields(there, joints)
            fields |= _calibration(bag, there, fields)
            driver = _driver(facts, fields)
            lines = [f"{paths[0]} ({count(len(paths), 'bag')} in {where})"]
            rows: list[Sequence[str]] = [("topic", "type", "messages", "Hz", "jitter ms", "longest gap s")]
            for fact in facts:
                numbers = (f"{fact.messages:,}", f"{fact.rate:.1f}", f"{fact.jitter * 1e3:.1f}", f"{fact.gap:.2f}")
                rows.append((printable(fact.name, 60), printable(fact.type, 60), *numbers))
            lines += [*_card(bag, there, joints, driver), "", *aligned(rows)]
            lines += ["", "A mapping to start from; save it as topics.yaml, edit it, and run:"]
            lines += [f"  rlds-beam inspect {shlex.quote(where)} --from=ros2 --topics=topics.yaml", ""]
            return "\n".join([*lines, *_mapping(fields, driver, _windows(bag, there, driver))])
    except OSError as error:
        raise UsageError(str(error)) from error
    except BadMessage as error:
        raise UsageError(f"{paths[0]}: {error}") from error


def _card(
    bag: Bag,
    facts: Sequence[TopicFacts],
    joints: Mapping[str, Sequence[str]],
    driver: TopicFacts | None,
) -> list[str]:
    """The facts about a bag before its topics are mapped."""
    times = np.concatenate([bag.times(topic.name) for topic in facts] or [np.zeros(1)])
    seconds = float(times.max() - times.min()) / 1e9
    long = f"{seconds / 60:,.1f} min" if seconds >= 60 else f"{seconds:.1f} s"
    rows = [("rate", f"{driver.rate:.1f} Hz, that of {printable(driver.name, 100)}" if driver else "unknown")]
    rows += [("time", f"{long}, {format_size(sum(map(storage.size, bag.files)))}")]
    rows += [("cameras", _camera(bag, topic)) for topic in facts if topic.type in IMAGES]
    for topic, names in joints.items():
        shown = [printable(name, 40) for name in names[:MAX_UNFOLDED]] + ["..."] * (len(names) > MAX_UNFOLDED)
        rows.append(("joints", f"{printable(topic, 100)}: {', '.join(shown)}"))
    labels = [label for label, _ in rows]
    return [f"{label if label not in labels[:i] else '':10}{text}" for i, (label, text) in enumerate(rows)]


def _camera(bag: Bag, facts: TopicFacts) -> str:
    """`/camera/compressed: 640 x 480, jpeg, 30.0 Hz`."""
    topic, first = bag.topics[facts.name], bag.first(facts.name)
    stored = "no readable message"
    try:
        if first is not None:
            reader = image_reader(topic.type, "image", message_type(topic).decode(first))
            stored = f"{reader.width} x {reader.height}, {reader.encoding}"
    except (AttributeError, UsageError, BadMessage) as error:
        stored = shorten(str(error), 100)
    return f"{printable(facts.name, 100)}: {stored}, {facts.rate:.1f} Hz"


def _driver(facts: Sequence[TopicFacts], fields: Mapping[str, str]) -> TopicFacts | None:
    """The slowest camera, or the slowest topic of the fields; each of its messages becomes a step."""
    images = [fact for fact in facts if fact.type in IMAGES and fact.messages]
    others = [fact for fact in facts if any(f'"{fact.name}"' in text for text in fields.values())]
    drivers = images or others
    return min(drivers, key=lambda driver: (driver.rate == 0, driver.rate)) if drivers else None


def _windows(bag: Bag, facts: Sequence[TopicFacts], driver: TopicFacts | None) -> dict[str, int]:
    """The most messages between two steps of topics of signals that are faster than the steps."""
    steps = bag.times(driver.name) if driver else np.zeros(0)
    fast = [fact.name for fact in facts if fact.type in _VALUES and driver and fact.rate > 1.5 * driver.rate]
    counts = {name: np.diff(np.searchsorted(bag.times(name), steps, side="right")) for name in fast}
    return {name: int(count.max()) for name, count in counts.items() if len(count)}


def _mapping(fields: Mapping[str, str], driver: TopicFacts | None, windows: Mapping[str, int]) -> list[str]:
    if driver is None:
        return ["# No topic has images, joint states, or another type known to be useful: map fields of other types."]
    fps = [f"fps: {round(driver.rate)}"] if round(driver.rate) else []
    return [
        f"reference: {json.dumps(driver.name)}  # a step for each of its messages; or rate: 30",
        "time: log  # when it was recorded; header: the stamp in the message",
        "max_age_s: 0.5  # an older message makes a step incomplete",
        *fps,
        "end: truncated  # or terminal: episodes end because the task does",
        "episodes: bag  # or {topic: /episode, start: [start], stop: [stop]}, or {gap_s: 2}",
        "fields:",
        *(f"  {path}: {text}{_note(text, windows)}" for path, text in fields.items()),
        *([] if "action" in fields else ["  # action: {topic: ..., field: ...}  # what the robot was told to do"]),
    ]


def _note(text: str, windows: Mapping[str, int]) -> str:
    most = next((most for name, most in windows.items() if f"topic: {json.dumps(name)}" in text), None)
    return f"  # the latest sample; window: {most} gives all since the step before" if most else ""


def _fields(facts: Sequence[TopicFacts], joints: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The proposed fields, as YAML. `joints` has the names of the joints by topic."""
    fields: dict[str, str] = {}
    for fact in facts:
        topic = f"topic: {json.dumps(fact.name)}"
        if fact.type in IMAGES:
            fields[_free(f"observation/{_label(fact.name)}", fields)] = f"{{{topic}}}"
        elif fact.type == _JOINTS:
            path = "action" if _ACTION.search(fact.name) else "observation/state"
            names = ", ".join(json.dumps(name) for name in joints[fact.name])
            fields[_free(path, fields)] = f"{{{topic}, field: position, names: [{names}]}}"
        elif fact.type == _TEXT and _TASK.search(fact.name):
            fields[_free("language_instruction", fields)] = f"{{{topic}, field: data, max_age_s: null}}"
        elif fact.type in _VALUES:
            path = "action" if _ACTION.search(fact.name) else f"observation/{_label(fact.name)}"
            values = ", ".join(_VALUES[fact.type])
            fields[_free(path, fields)] = f"{{{topic}, field: [{values}]}}"
    return fields


def _calibration(bag: Bag, facts: Sequence[TopicFacts], fields: Collection[str]) -> dict[str, str]:
    """The proposed fields of the calibration of cameras, as YAML: /camera/camera_info goes with /camera/image_raw."""
    found: dict[str, str] = {}
    static = bag.topics.get(_STATIC)
    kind = message_type(static) if static else None
    messages = [kind.decode(data) for _, _, data in bag.messages((_STATIC,))] if kind else []
    transforms = [one for message in messages for one in message.transforms]
    for fact in facts:
        image = f"observation/{_label(fact.name.removesuffix('/camera_info'))}"
        if fact.type != _CAMERA or image not in fields:
            continue
        info = _first(bag, fact.name)
        values = {"intrinsics": "k", "distortion_model": "distortion_model", "frame_id": "header.frame_id"}
        for ending, value in (values | ({"distortion": "d"} if len(info.d) else {})).items():
            text = f"{{topic: {json.dumps(fact.name)}, field: {value}, max_age_s: null}}"
            found[f"{OF_EPISODE}/{image}_{ending}"] = text
        with contextlib.suppress(BadMessage):
            find_pose(info.header.frame_id, transforms)
            pose = f"topic: {_STATIC}, frame: {json.dumps(info.header.frame_id)}"
            found[f"{OF_EPISODE}/{image}_extrinsics"] = f"{{{pose}}}"
            found[f"{OF_EPISODE}/{image}_base"] = f"{{{pose}, field: base}}"
    return found


def _joints(bag: Bag, topic: str) -> list[str]:
    return list(_first(bag, topic).name)


def _first(bag: Bag, topic: str) -> Any:
    """The first message of a topic that has some."""
    first = bag.first(topic)
    assert first is not None
    return message_type(bag.topics[topic]).decode(first)


def _label(topic: str) -> str:
    """A field's name from that of a topic: `camera` for `/camera/image_raw/compressed`."""
    parts = [
        part for part in topic.split("/") if part not in ("", "image_raw", "compressed", "compressedDepth", "image")
    ]
    return re.sub(r"\W", "_", "_".join(parts)) or "image"


def _free(path: str, taken: Mapping[str, str]) -> str:
    """The path, or one with a number that is not taken yet. Nothing may be in a field that has a value."""
    if path not in taken:
        return path
    path = path if "/" in path else f"info/{path}"
    return next(name for name in (path, *(f"{path}_{i}" for i in range(2, 10_000))) if name not in taken)
