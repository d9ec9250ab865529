"""Options for editing checked episodes, and for saying what they mean, before they are written."""

from __future__ import annotations

import dataclasses

from rlds_beam.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectorOptions(Options):
    """What the data means, if it does not say it, and which connectors edit it."""

    names: tuple[str, ...] = option(
        (),
        "names of a field's values, or a file of them; repeat it",
        repeated=True,
        mapping=True,
        metavar="FIELD=NAMES",
    )
    task: str | None = option(None, "instruction of the episodes that have none", metavar="TEXT")
    task_file: str | None = option(
        None, "instructions by episode: CSV, JSON, JSON lines, or YAML of keys (or files) and texts", metavar="FILE"
    )
    connectors: str | None = option(
        None, "MinimumLength(10),FlipChannels, a YAML or JSON file of connectors, or module:name", by_value=True
    )
    preset: str | None = option(None, "fix known faults of a public dataset (see inspect)")
    exclude: str | None = option(None, "leave out the episodes whose keys this file lists", metavar="FILE")
    only: str | None = option(None, "leave out all episodes that this file does not list", metavar="FILE")

    def __post_init__(self) -> None:
        """Adds the repairs of the preset to `CheckOptions`."""
        super().__post_init__()
        if self.preset is not None and hasattr(self, "repair"):
            from rlds_beam.connectors.cleaning.presets import find_preset

            repair = (*self.repair, *find_preset(self.preset).repair)
            object.__setattr__(self, "repair", tuple(dict.fromkeys(repair)))
