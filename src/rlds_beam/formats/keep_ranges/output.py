"""The steps of each episode in which a robot moves, as openpi reads them: `keep_ranges.json`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any

from rlds_beam import storage
from rlds_beam.checking.verdicts import IgnoredValues
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.cleaning.idle import IdleRule, episode_name
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import UsageError
from rlds_beam.formats.keep_ranges.options import KeepRangesOptions
from rlds_beam.output.base import CostHint, FileOutput
from rlds_beam.output.commits import RangeCommit
from rlds_beam.output.shards import ShardInfo, ShardWriter
from rlds_beam.reading.base import Source
from rlds_beam.reading.plan import WorkRange

RANGES = "keep_ranges.json"


@dataclasses.dataclass(frozen=True)
class KeepRangesOutput(FileOutput):
    """A line of JSON for each episode in a file for each range, and all of them in `keep_ranges.json`.

    Attributes:
      directory, name: as of `FileOutput`.
      rule: what is idle.
      key: the name of an episode.
    """

    directory: str
    name: str
    rule: IdleRule
    key: str

    metadata = (RANGES,)
    holds = "episode"

    @classmethod
    def create(cls, source: Source, directory: str, options: Any) -> KeepRangesOutput:
        own = KeepRangesOptions.of(options)
        _check(source.schema, own.velocity)
        return cls(directory, source.name, IdleRule(own.velocity), own.episode_name)

    @classmethod
    def create_connected(cls, source: Source, connecting: ConnectorRunner, directory: str, options: Any) -> FileOutput:
        connecting.refuse_columns("--to=columns")
        return super().create_connected(source, connecting, directory, options)

    @property
    def effort(self) -> CostHint:
        return CostHint(0.0, decodes_images=False)

    @property
    def unjudged(self) -> IgnoredValues:
        return IgnoredValues()

    def plan(self) -> dict[str, Any]:
        return {"keep_ranges": {**dataclasses.asdict(self.rule), "key": self.key}}

    def describe(self) -> tuple[list[str], dict[str, str]]:
        return [f"the steps of {self.key} in which {self.rule.field} changes"], {}

    def predict(self, steps: Iterable[int]) -> int:
        return sum(1 for _ in steps)

    def count(self, batch: Batch) -> int:
        return len(batch.episodes)

    def file(self, work: WorkRange) -> str:
        return f"{self.name}-{work}.jsonl"

    def open_range(self, work: WorkRange) -> KeepRangesWriter:
        return KeepRangesWriter(self, storage.below(self.directory, self.file(work)))

    def complete(self, commits: Sequence[RangeCommit]) -> dict[str, Any]:
        """Writes the file.

        Raises:
          UsageError: two episodes have the same name.
        """
        found: dict[str, Any] = {}
        for commit in commits:
            for line in storage.read_text(storage.below(self.directory, commit.files[0].file)).splitlines():
                name, ranges = json.loads(line)
                if name in found:
                    raise UsageError(f"--to=keep_ranges: two episodes are called {name!r}: --episode_name names others")
                found[name] = ranges
        content = {"metadata": {"filter_last_n_in_ranges": self.rule.trim}, "keep_ranges": found}
        storage.write_text(storage.below(self.directory, RANGES), json.dumps(content) + "\n")
        return {"episodes": len(found)}


class KeepRangesWriter:
    """Writes the ranges of the episodes of one range of work (`output.base.FileRangeWriter`).

    Attributes:
      predicted: episodes so far.
    """

    def __init__(self, output: KeepRangesOutput, path: str):
        self.predicted = 0
        self._output, self._shard = output, ShardWriter(path)

    def write(self, batch: Batch) -> None:
        for episode in batch.episodes:
            entry = [episode_name(episode, self._output.key), self._output.rule.ranges(episode)]
            self._shard.write([json.dumps(entry).encode() + b"\n"], 1, episode.key)
            self.predicted += 1

    def finish(self) -> ShardInfo:
        return self._shard.commit()

    def abort(self) -> None:
        self._shard.abort()


def _check(schema: Schema, velocity: str) -> None:
    if velocity not in schema.steps:
        raise UsageError(
            f"--velocity={velocity}: there is no such field of the steps; they have {', '.join(schema.steps)}"
        )
