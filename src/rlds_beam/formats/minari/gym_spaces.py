"""Gymnasium spaces and environments, in Minari's JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds_beam.encoding.checked_json import ANY, TEXT, Maybe, check_json, parse_json
from rlds_beam.episodes.columns import nest
from rlds_beam.errors import UsageError

JsonSpace = dict[str, Any]


def box(dtype: np.dtype[Any], shape: tuple[int, ...]) -> JsonSpace:
    """A Box of all values of a dtype: unbounded for floats."""
    low: Any
    high: Any
    if dtype.kind == "b":
        dtype, low, high = np.dtype(np.int8), 0, 1
    elif dtype.kind == "f":
        low, high = -math.inf, math.inf
    else:
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    return {
        "type": "Box",
        "dtype": str(dtype),
        "shape": list(shape),
        "low": _full(shape, low),
        "high": _full(shape, high),
    }


def _full(shape: tuple[int, ...], value: Any) -> Any:
    return [_full(shape[1:], value)] * shape[0] if shape else value


def discrete(low: int, high: int) -> JsonSpace:
    """The integers from min(0, `low`) to `high`."""
    start = min(0, low)
    return {"type": "Discrete", "dtype": "int64", "start": start, "n": max(1, high - start + 1)}


def text(longest: int, characters: Sequence[str]) -> JsonSpace:
    """Text with these characters."""
    charset = "".join(sorted(characters)) or " "
    return {"type": "Text", "max_length": max(1, longest), "min_length": 0, "charset": charset}


def nested(spaces: Mapping[str, JsonSpace]) -> JsonSpace:
    """Spaces by path as a Dict of Dicts; a space with an empty path stays itself."""
    if "" in spaces:
        return spaces[""]
    return _dict(nest(spaces))


def _dict(content: Mapping[str, Any]) -> JsonSpace:
    spaces = {name: one if isinstance(one.get("type"), str) else _dict(one) for name, one in content.items()}
    return {"type": "Dict", "subspaces": spaces}


def is_image(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    """Whether Minari treats such values as images, which it encodes as JPEG."""
    return dtype == np.uint8 and len(shape) in (2, 3) and shape[0] >= 32 and shape[1] >= 32


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
