"""What is made of checked episodes before they are written: the options."""

from __future__ import annotations

import dataclasses

from rlds_beam.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectorOptions(Options):
    """How episodes are edited."""

    connectors: str | None = option(
        None,
        "connectors to run over the checked episodes: a YAML or JSON file, or module:name",
        by_value=True,
        metavar="FILE",
    )
    preset: str | None = option(None, "fix a public dataset first (inspect suggests one)")
