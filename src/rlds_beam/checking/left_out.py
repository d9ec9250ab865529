"""Summarizes the fields that are not written in a few lines."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from rlds_beam.text import printable

_EPISODE = "an episode field; "
_GROUPED = 3
"""The number of fields with the same reason from which they share one line."""


def left_out_lines(left_out: Mapping[str, str]) -> list[str]:
    """Returns a line per field, `path (why)`; fields with the same reason and the same parent share one line.

    In a shared line, flags in the reason name the parent or all fields: `--keep=episode_metadata`.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for path, why in left_out.items():
        groups.setdefault((path.rpartition("/")[0], why.replace(f"={shlex.quote(path)}", "=")), []).append(path)
    lines = []
    for (parent, why), paths in groups.items():
        if len(paths) < _GROUPED:
            lines += [f"{printable(path)} ({left_out[path]})" for path in paths]
            continue
        names = ", ".join(printable(path.rpartition("/")[2]) for path in paths[:_GROUPED])
        names += ", ..." * (len(paths) > _GROUPED)
        kind = (
            "episode fields" if why.startswith(_EPISODE) else f"fields of {printable(parent)}" if parent else "fields"
        )
        value = shlex.quote(parent or ",".join(paths))
        why = why.removeprefix(_EPISODE).replace("=", f"={value}", 1)
        keep = f"; keep them with --keep={value}" if "--keep=" in why else f": {why}"
        lines.append(f"{len(paths)} {kind} ({names}){keep}")
    return lines
