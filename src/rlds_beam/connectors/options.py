"""Options for editing checked episodes before they are written."""

from __future__ import annotations

import dataclasses

from rlds_beam.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectorOptions(Options):
    """Which connectors to run on the checked episodes."""

    connectors: str | None = option(
        None,
        "MinimumLength(10),FlipChannels, a YAML or JSON file of connectors, or module:name",
        by_value=True,
        metavar="CONNECTORS",
    )
    preset: str | None = option(None, "fix known faults of a public dataset (see inspect)")
    exclude: str | None = option(None, "leave out the episodes whose keys this file lists", metavar="FILE")
    only: str | None = option(None, "leave out all episodes that this file does not list", metavar="FILE")
