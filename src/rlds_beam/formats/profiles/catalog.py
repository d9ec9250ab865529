"""The profiles of the package, those in users' files, and proposals for unknown files."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from importlib import resources

from rlds_beam import storage
from rlds_beam.encoding.metadata import yaml_text
from rlds_beam.errors import UsageError
from rlds_beam.formats.profiles.containers import Leaf
from rlds_beam.formats.profiles.model import Profile, parse_profile
from rlds_beam.text import did_you_mean, printable


@functools.cache
def shipped_profiles() -> dict[str, Profile]:
    """The profiles of the package by name, sorted."""
    profiles = {}
    files = (file for file in resources.files(__package__).iterdir() if file.name.endswith(".yaml"))
    for file in sorted(files, key=lambda path: path.name):
        profile = parse_profile(file.read_text("utf-8"), file.name)
        profiles[profile.name] = profile
    return profiles


def find_profile(name: str) -> Profile:
    """A profile of the package by its name, or a user's by its path.

    Raises:
      UsageError: there is none, or the file is not a valid profile.
    """
    known = shipped_profiles()
    if name in known:
        return known[name]
    is_file = os.sep in name or name.endswith((".yaml", ".yml")) or storage.scheme(name) is not None
    if not is_file or not storage.exists(name):
        hint = did_you_mean(name, known, otherwise=f"choose {', '.join(known)}, or the path of a YAML file")
        what = "no such file" if is_file else "there is no such profile"
        raise UsageError(f"--profile={name}: {what}{hint}")
    return parse_profile(storage.read_text(name), name)


_ACTIONS = ("action", "actions", "act", "acts")
_REWARDS = ("reward", "rewards")
_FLAGS = ("timeouts", "truncated", "is_last")
_ENDS = ("dones", "done", "terminals", "terminal", "terminated", "is_terminal")
_NOTHING = ("step", "timestamp", "timestamps", "index")


def propose(name: str, episodes: str, leaves: Mapping[str, Leaf]) -> list[str]:
    """The lines of a profile in YAML.

    Args:
      name: a name for the profile.
      episodes: where the episodes are.
      leaves: the arrays of the first episode.
    """
    last = {path: path.rpartition("/")[2].lower() for path in leaves}
    actions = [path for path, name in last.items() if name in _ACTIONS] or [
        path for path in leaves if "action" in path.lower() and leaves[path].shape
    ]
    rows = leaves[actions[0]].shape[:1] if actions else ()
    lines = [f"name: {name}", f"episodes: {yaml_text(episodes)}", "fields:"]
    for path in actions:
        name = yaml_text(f"action{'' if len(actions) == 1 else '/' + path.replace('/', '_')}")
        lines.append(f"  {name}: {yaml_text(path)}")
    if not actions:
        lines.append("  action: NAME_OF_A_DATASET")
    other = []
    for path, leaf in leaves.items():
        if path in actions or last[path] in (*_REWARDS, *_ENDS, *_FLAGS, *_NOTHING):
            continue
        if rows and leaf.shape[:1] == rows and leaf.readable:
            name = yaml_text(f"observation/{_field_name(path)}")
            lines.append(f"  {name}: {yaml_text(path)}  # {leaf.dtype}{list(leaf.shape)}")
        else:
            other.append(f"# not read: {printable(path)} {leaf.dtype}{list(leaf.shape)}")
    for key, names in (("reward", _REWARDS), ("terminal", _ENDS)):
        lines += [f"{key}: {yaml_text(path)}" for path in leaves if last[path] in names][:1]
    ends = [yaml_text(path) for path in leaves if last[path] in (*_ENDS, *_FLAGS)]
    if ends and episodes == "file":
        lines.append(f"# ends: [{', '.join(ends)}]  # if the file holds several episodes, end to end")
    return lines + other


def _field_name(path: str) -> str:
    for prefix in ("observations/", "observation/", "obs/"):
        path = path.removeprefix(prefix)
    return path
