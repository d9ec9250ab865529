"""Options for editing checked episodes before they are written."""

from __future__ import annotations

import dataclasses

from rlds_beam.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectorOptions(Options):
    """Which connectors to run on the checked episodes."""

    connectors: str | None = option(
        None,
        "connectors to run on the checked episodes: a YAML or JSON file, or module:name",
        by_value=True,
        metavar="FILE",
    )
    preset: str | None = option(None, "fix known faults of a public dataset (see inspect)")
    exclude: str | None = option(
        None, "leave out the episodes that this file lists by key, one per line (rlds-beam check writes such files)",
        metavar="FILE",
    )  # fmt: skip
    only: str | None = option(None, "leave out all episodes that this file does not list", metavar="FILE")
