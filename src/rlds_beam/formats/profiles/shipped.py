"""The profiles of the package, and those in users' files."""

from __future__ import annotations

import functools
import os
from importlib import resources

from rlds_beam import storage
from rlds_beam.errors import UsageError
from rlds_beam.formats.profiles.model import Profile, parse_profile
from rlds_beam.text import did_you_mean


@functools.cache
def shipped_profiles(npz: bool = False) -> dict[str, Profile]:
    """The profiles of the package by name, sorted: those for HDF5 files, or those for `.npz` files."""
    profiles = {}
    files = (file for file in resources.files(__package__).iterdir() if file.name.endswith(".yaml"))
    for file in sorted(files, key=lambda one: one.name):
        profile = parse_profile(file.read_text("utf-8"), file.name)
        if profile.files.endswith(".npz") == npz:
            profiles[profile.name] = profile
    return profiles


def find_profile(name: str, npz: bool = False) -> Profile:
    """A profile of the package by its name, or a user's by its path.

    Raises:
      UsageError: there is none, or the file is not a valid profile.
    """
    known = shipped_profiles(npz)
    if name in known:
        return known[name]
    is_file = os.sep in name or name.endswith((".yaml", ".yml")) or storage.scheme(name) is not None
    if not is_file or not storage.exists(name):
        hint = did_you_mean(name, known, otherwise=f"choose {', '.join(known)}, or the path of a YAML file")
        what = "no such file" if is_file else "there is no such profile"
        raise UsageError(f"--profile={name}: {what}{hint}")
    return parse_profile(storage.read_text(name), name)
