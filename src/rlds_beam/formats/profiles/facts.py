"""What a file says besides its arrays: the task's text, rate, robot, and name of the dataset."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.metadata import parse_json
from rlds_beam.errors import UsageError
from rlds_beam.formats.profiles.containers import Container, matches
from rlds_beam.formats.profiles.model import Condition, Profile, TextRule
from rlds_beam.typing import Array

_RATES = """
CartPole 50; Pendulum 20; Acrobot 5; Ant 20; HalfCheetah 20; Hopper 125; Humanoid 66.666667; HumanoidStandup 66.666667;
InvertedDoublePendulum 20; InvertedPendulum 25; Pusher 20; Reacher 50; Swimmer 25; Walker2d 125; PointMaze_\\w+ 100;
AntMaze_\\w+ 20; AdroitHand(Door|Hammer|Pen|Relocate)\\w* 100; FrankaKitchen 12.5;
Fetch(PickAndPlace|Push|Reach|Slide)\\w* 25
"""
_PACKAGES = ("gymnasium.envs.", "gymnasium_robotics.")
_OTHER_TIME = ("frame_skip", "xml_file", "model_path")  # arguments that change the time of a step
_REPEAT = ("MaxAndSkipObservation", "AtariPreprocessing")  # wrappers that take several steps at once


def find_text(profile: Profile, container: Container) -> bytes | None:
    """The task's text: that of the first place which has one; None if there is none."""
    for rule in profile.text:
        text = _text(rule, container)
        if text is not None and rule.json is not None:
            content = _json_within(text, rule)
            while isinstance(content, list):
                content = content[0] if content else None
            text = content.encode() if isinstance(content, str) else None
        if text:
            return text
    return None


def find_fact(profile: Profile, container: Container, name: str) -> Any:
    """A fact about the dataset that the profile finds in an episode: JSON; None if there is none."""
    rule: TextRule | None = getattr(profile.facts, name)
    text = None if rule is None else _text(rule, container)
    try:
        return None if rule is None or text is None else _json_within(text, rule)
    except ValueError:
        return None


def holds(condition: Condition, container: Container) -> bool:
    """Whether an attribute contains a pattern."""
    text = _text(TextRule(attribute=condition.attribute), container)
    return re.search(condition.contains.encode(), text or b"") is not None


def find_fps(profile: Profile, first: Container) -> tuple[float | None, str]:
    """The rate that an episode says, or the profile; and the environment whose rate it is, if it is one's."""
    fps, seconds, steps = (find_fact(profile, first, name) for name in ("fps", "step_seconds", "decimation"))
    known = _find_environment(find_fact(profile, first, "environment"))
    if _is_rate(seconds) and _is_rate(steps):
        fps = round(1 / (seconds * steps), 6)
    elif known is not None:
        return known[1], known[0]
    return fps if _is_rate(fps) else profile.fps, ""


def _is_rate(number: Any) -> bool:
    return type(number) in (int, float) and 0 < number <= 1_000_000


def find_robot(profile: Profile, first: Container) -> str | None:
    """The robot, or several joined by a comma."""
    robots = find_fact(profile, first, "robot")
    robots = [robots] if isinstance(robots, str) else robots
    known = isinstance(robots, list) and robots and all(isinstance(robot, str) for robot in robots)
    return ", ".join(robots[:8]) if known else profile.robot


def _find_environment(env_spec: Any) -> tuple[str, float] | None:
    """The name and the rate of an environment by its `env_spec` (gymnasium's EnvSpec as JSON); None if unknown.

    A step is the time that gymnasium 1.3 and gymnasium-robotics 1.4 simulate in it, which the environment may be drawn
    at another rate than (Pendulum, AntMaze). No environment is created, and no code that it names is imported.
    """
    try:
        spec = parse_json(env_spec, "env_spec")
        name, entry, arguments = spec["id"], spec["entry_point"], spec.get("kwargs") or {}
        wrappers = [wrapper["entry_point"] for wrapper in spec.get("additional_wrappers") or ()]
        is_known = entry.startswith(_PACKAGES) and not any(key in _OTHER_TIME for key in arguments)
        for wrapper in wrappers:
            is_known &= wrapper.startswith("gymnasium.wrappers.") and wrapper.rpartition(":")[2] not in _REPEAT
        for row in _RATES.split(";") if is_known else ():
            pattern, rate = row.split()
            if re.fullmatch(rf"{pattern}-v\d{{1,3}}", name):
                return name, float(rate)
    except (AttributeError, KeyError, TypeError, UsageError):  # not an EnvSpec
        return None
    return None


def text_files(profile: Profile, path: str) -> list[str]:
    """The files next to the data that may hold its text, if they exist."""
    found = (_files(rule, path) for rule in profile.text if rule.file)
    return [*dict.fromkeys(file for files in found for file in files)]


def _files(rule: TextRule, path: str) -> list[str]:
    directory, name = storage.split(path)
    stem = name.rpartition(".")[0]
    parts = rule.file.split("/")
    while parts and parts[0] == "..":
        directory, parts = storage.split(directory.rstrip("/"))[0], parts[1:]
    below = "/".join(parts)
    if "*" in below:
        return storage.files_below(directory, below)[:1]
    file = storage.join(directory, *(part.replace("{name}", stem) for part in parts))
    return [file] if storage.exists(file) else []


def _text(rule: TextRule, container: Container) -> bytes | None:
    if rule.file_name:
        stem = storage.split(container.path)[1].rpartition(".")[0]
        found = matches(rule.file_name, [stem])
        return found[0][1][0].replace("_", " ").encode() if found else None
    if rule.file:
        files = _files(rule, container.path)
        return storage.read_small(files[0]) if files else None
    try:
        value = container.attribute(rule.attribute) if rule.attribute else container.read(rule.dataset)
    except KeyError:
        return None
    value = value.reshape(-1)[0] if isinstance(value, np.ndarray) and value.size else value
    return value if isinstance(value, bytes) else None


def _json_within(text: bytes, rule: TextRule) -> Any:
    """The value in a JSON text. Raises ValueError if it is not valid."""
    try:
        content = parse_json(text, rule.place)
    except UsageError as error:
        raise ValueError(str(error)) from None
    for key in filter(None, (rule.json or "").split("/")):
        content = content.get(key) if isinstance(content, dict) else None
    return content


def find_metadata(profile: Profile, container: Container) -> dict[str, Array | bytes]:
    """The episode's own fields that it has."""
    found: dict[str, Array | bytes] = {}
    for name, place in profile.metadata.items():
        if container.has(place):
            value = container.attribute(place) if "@" in place else container.read(place)
            found[name] = value if isinstance(value, bytes) else np.asarray(value)
    return found
