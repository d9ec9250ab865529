"""What is made of checked episodes before they are written: the options."""

from __future__ import annotations

import dataclasses

from rlds_beam.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectorOptions(Options):
    """What is made of the episodes."""

    connectors: str | None = option(
        None, "connectors to run over the checked episodes: a YAML or JSON file, or module:name", by_value=True
    )
    preset: str | None = option(
        None, "mend the known faults of a public dataset before that: roboturk, kuka and others (inspect suggests one)"
    )
