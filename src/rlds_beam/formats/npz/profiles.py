"""Layouts of `.npz` files: which array is which field, and where episodes end."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rlds_beam import storage
from rlds_beam.encoding.checked_json import TEXT, Kind, check_json
from rlds_beam.encoding.checked_yaml import parse_yaml
from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean

_ACTIONS = Kind("from_observation or to_observation", lambda v: v in ("from_observation", "to_observation"))
_TERMINAL = Kind("true, false, or an array", lambda v: isinstance(v, (bool, str)))
_SCHEMA = {
    "name": TEXT, "about?": TEXT, "ends?": [TEXT], "fields": {"*": TEXT}, "reward?": TEXT, "discount?": TEXT,
    "terminal?": _TERMINAL, "next_observation?": TEXT, "actions?": _ACTIONS, "val_suffix?": TEXT,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class NpzProfile:
    """A layout. The attributes are the keys of the YAML.

    Attributes:
      name, about: its name, and a description.
      fields: the step fields, each with its array; must have `observation` and `action`, or fields below them.
      ends: the arrays whose rows other than 0 are the last of an episode; empty if each file is an episode.
      reward, discount: the arrays; empty if there are none.
      terminal: whether episodes end in a terminal state: an array whose last row says so (`discount`: if that is 0), or
        a constant.
      next_observation: the array of the observations after each action; its last row becomes the last step.
      actions: `from_observation` if row t is the action taken at observation t, as in RLDS; `to_observation` if it is
        the action that led there (and so row 0 is a dummy).
      val_suffix: the end of the names of files with the split `val`, without `.npz`.
    """

    name: str
    fields: tuple[tuple[str, str], ...]
    about: str = ""
    ends: tuple[str, ...] = ()
    reward: str = ""
    discount: str = ""
    terminal: bool | str = False
    next_observation: str = ""
    actions: str = "from_observation"
    val_suffix: str = ""

    def missing(self, names: Mapping[str, Any]) -> list[str]:
        """The arrays that a file lacks; some of the ends may be missing."""
        needed = [*dict(self.fields).values(), *filter(None, (self.reward, self.discount))]
        ends = [] if not self.ends or any(end in names for end in self.ends) else [self.ends[0]]
        return [name for name in (*needed, *ends) if name not in names]


PROFILES = {
    profile.name: profile
    for profile in (
        NpzProfile(
            "exorl",
            (("observation", "observation"), ("action", "action")),
            "ExoRL and URLB: a file for each episode",
            reward="reward", discount="discount", terminal="discount", actions="to_observation",
        ),
        NpzProfile(
            "d4rl",
            (("observation", "observations"), ("action", "actions")),
            "arrays as in D4RL: all episodes in one file",
            ends=("terminals", "timeouts"), reward="rewards", terminal="terminals",
            next_observation="next_observations",
        ),
        NpzProfile(
            "ogbench",
            (("observation", "observations"), ("action", "actions")),
            "OGBench: all episodes in one file, without rewards",
            ends=("terminals",), val_suffix="-val",
        ),
    )
}  # fmt: skip
"""The built-in profiles; the first that fits a file is taken."""


def find_profile(name: str) -> NpzProfile:
    """A built-in profile by its name, or a user's YAML file. Raises UsageError if there is none."""
    if name in PROFILES:
        return PROFILES[name]
    if not name.endswith((".yaml", ".yml")) or not storage.exists(name):
        hint = did_you_mean(name, PROFILES, otherwise=f"choose {', '.join(PROFILES)}, or the path of a YAML file")
        raise UsageError(f"--profile={name}: there is no such profile{hint}")
    content = parse_yaml(storage.read_text(name), name)
    if not isinstance(content, dict):
        raise UsageError(f"{name}: not a profile: expected a mapping with the keys name and fields")
    known = [key.rstrip("?") for key in _SCHEMA]
    for key in content:
        if key not in known:
            raise UsageError(f"{name}: unknown key {key!r}{did_you_mean(str(key), known)}")
    check_json(content, _SCHEMA, name)
    for top in ("observation", "action"):
        if not any(path.partition("/")[0] == top for path in content["fields"]):
            raise UsageError(f"{name}: no field is {top}, or begins with {top}/")
    fields = tuple(content["fields"].items())
    return NpzProfile(**{**content, "fields": fields, "ends": tuple(content.get("ends", ()))})


def fitting(names: Mapping[str, Any]) -> NpzProfile | None:
    """The first built-in profile that fits a file with these arrays."""
    return next((profile for profile in PROFILES.values() if not profile.missing(names)), None)


def proposal(name: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """A profile for a file that none fits, as YAML to be edited."""

    def guess(*words: str) -> str:
        return next((one for one in shapes if any(word in one.lower() for word in words)), "FILL_IN")

    lines = [f"name: {name}", "fields:", f"  observation: {guess('obs', 'state')}", f"  action: {guess('act')}"]
    lines += [f"  {one}: {one}" for one in shapes if one not in (guess("obs", "state"), guess("act"))]
    ends = [one for one in shapes if any(word in one.lower() for word in ("terminal", "done", "timeout"))]
    lines += [f"ends: [{', '.join(ends)}]"] if ends else ["# ends: []  # each file is an episode"]
    lines += [
        "# reward: rewards",
        "terminal: false",
        "actions: from_observation  # or to_observation: row 0 is a dummy",
    ]
    return "\n".join(lines)
