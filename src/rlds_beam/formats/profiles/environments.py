"""The rates of the environments that Minari datasets were recorded in, by the `env_spec` of their metadata.

A step is the time that gymnasium 1.3 and gymnasium-robotics 1.4 simulate in it, which the environment may be drawn at
another rate than (Pendulum, AntMaze). No environment is created, and no code that the metadata name is imported.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from rlds_beam.encoding.checked_json import ANY, TEXT, Maybe, check_json
from rlds_beam.encoding.metadata import parse_json
from rlds_beam.errors import UsageError

_RATES = """
CartPole 50; Pendulum 20; Acrobot 5; Ant 20; HalfCheetah 20; Hopper 125; Humanoid 66.666667; HumanoidStandup 66.666667;
InvertedDoublePendulum 20; InvertedPendulum 25; Pusher 20; Reacher 50; Swimmer 25; Walker2d 125; PointMaze_\\w+ 100;
AntMaze_\\w+ 20; AdroitHand(Door|Hammer|Pen|Relocate)\\w* 100; FrankaKitchen 12.5;
Fetch(PickAndPlace|Push|Reach|Slide)\\w* 25
"""


_SPEC = {
    "id": TEXT,
    "entry_point": TEXT,
    "kwargs?": Maybe({"*": ANY}),
    "additional_wrappers?": Maybe([{"entry_point": TEXT, "*": ANY}]),
    "*": ANY,
}


_PACKAGES = ("gymnasium.envs.", "gymnasium_robotics.")


_OTHER_TIME = ("frame_skip", "xml_file", "model_path")
"""Arguments that change the time of a step."""


_REPEAT = ("MaxAndSkipObservation", "AtariPreprocessing")
"""Gymnasium's wrappers that take several steps at once."""


class KnownEnvironment(NamedTuple):
    """An environment of known rate: its name, and steps per second."""

    name: str
    fps: float


def known_environment(env_spec: Any) -> KnownEnvironment | None:
    """The environment of an `env_spec` (gymnasium's EnvSpec as JSON); None if its rate is unknown."""
    try:
        spec = parse_json(env_spec, "env_spec") if isinstance(env_spec, str) else None
        check_json(spec, _SPEC, "env_spec")
    except UsageError:
        return None
    wrappers = [wrapper["entry_point"] for wrapper in spec.get("additional_wrappers") or ()]
    if not spec["entry_point"].startswith(_PACKAGES) or not all(map(_keeps_time, wrappers)):
        return None
    if any(name in _OTHER_TIME for name in spec.get("kwargs") or ()):
        return None
    for row in _RATES.split(";"):
        pattern, rate = row.split()
        if re.fullmatch(rf"{pattern}-v\d{{1,3}}", spec["id"]):
            return KnownEnvironment(spec["id"], float(rate))
    return None


def _keeps_time(wrapper: str) -> bool:
    """Whether a wrapper is gymnasium's, and takes one step at a time."""
    return wrapper.startswith("gymnasium.wrappers.") and wrapper.rpartition(":")[2] not in _REPEAT
