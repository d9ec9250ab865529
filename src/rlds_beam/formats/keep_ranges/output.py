"""openpi's `keep_ranges.json`: the steps of each episode in which the robot moves."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from rlds_beam import storage
from rlds_beam.connectors.cleaning.idle import IdleRule, episode_name
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import UsageError
from rlds_beam.formats.format_options import KeepRangesOptions
from rlds_beam.output.base import CostHint, Description, Output
from rlds_beam.output.commits import RangeCommit
from rlds_beam.output.shards import EpisodeWriter
from rlds_beam.reading.base import Source
from rlds_beam.reading.plan import WorkRange

RANGES = "keep_ranges.json"


@dataclasses.dataclass(frozen=True)
class KeepRangesOutput(Output):
    """A JSON line for each episode, in a file for each range, and all of them in `keep_ranges.json`.

    Attributes:
      directory: where the files go.
      name: the name of the dataset.
      rule: decides which steps are idle.
      key: names an episode.
    """

    directory: str
    name: str
    rule: IdleRule
    key: str

    metadata = (RANGES,)
    options_class = KeepRangesOptions
    writes_meaning = False

    @classmethod
    def create(
        cls, source: Source, connectors: ConnectorRunner, directory: str, options: KeepRangesOptions
    ) -> KeepRangesOutput:
        _check(connectors.schema, options.velocity)
        return cls(directory, source.name, IdleRule(options.velocity), options.episode_name)

    @property
    def cost_hint(self) -> CostHint:
        return CostHint(0.0, decodes_images=False)

    def plan(self) -> dict[str, Any]:
        return {"keep_ranges": {**dataclasses.asdict(self.rule), "key": self.key}}

    def describe(self) -> Description:
        return Description([f"the steps of {self.key} in which {self.rule.field} changes"])

    def line(self, episode: Episode) -> bytes:
        """The JSON line of an episode."""
        return json.dumps([episode_name(episode, self.key), self.rule.ranges(episode)]).encode() + b"\n"

    def file(self, work: WorkRange) -> str:
        return f"{self.name}-{work}.jsonl"

    def open_range(self, work: WorkRange) -> EpisodeWriter:
        return EpisodeWriter(storage.below(self.directory, self.file(work)), self.line)

    def complete(self, commits: Sequence[RangeCommit]) -> dict[str, Any]:
        """Writes `keep_ranges.json`. Raises UsageError if two episodes have the same name."""
        kept: dict[str, Any] = {}
        for commit in commits:
            for line in storage.read_text(storage.below(self.directory, commit.files[0].file)).splitlines():
                name, ranges = json.loads(line)
                if name in kept:
                    raise UsageError(f"--to=keep_ranges: two episodes are named {name!r}: change --episode_name")
                kept[name] = ranges
        content = {"metadata": {"filter_last_n_in_ranges": self.rule.trim}, "keep_ranges": kept}
        storage.write_text(storage.below(self.directory, RANGES), json.dumps(content) + "\n")
        return {"episodes": len(kept)}


def _check(schema: Schema, velocity: str) -> None:
    if velocity not in schema.steps:
        raise UsageError(
            f"--velocity={velocity}: there is no such step field; the dataset has {', '.join(schema.steps)}"
        )
