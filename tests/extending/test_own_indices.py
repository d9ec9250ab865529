"""Custom outputs whose files get global indices at the end: `--to=test_own_indices:Numbered`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from own_formats import run

from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.episodes.episode import Episode
from rlds_beam.output.base import Description, GlobalIndices
from rlds_beam.output.commits import RangeCommit
from rlds_beam.output.files import compute_checksum
from rlds_beam.output.shards import EpisodeWriter
from rlds_beam.reading.base import Source, WorkRange
from rlds_beam.testing import make_episode, write_dataset


def encode(episode: Episode) -> bytes:
    return f"000 {episode.key}\n".encode()


@dataclasses.dataclass(frozen=True)
class Numbered(GlobalIndices):
    """Writes a line per episode, with its number in the dataset."""

    directory: str

    @classmethod
    def create(cls, source: Source, connectors: ConnectorRunner, directory: str, options: Any) -> Numbered:
        return cls(directory)

    def plan(self) -> dict[str, Any]:
        return {"numbered": 1}

    def describe(self) -> Description:
        return Description(["number and key: string"], {})

    def file(self, work: WorkRange) -> str:
        return f"{work}.txt"

    def open_range(self, work: WorkRange) -> EpisodeWriter:
        return EpisodeWriter(str(Path(self.directory, self.file(work))), encode)

    def complete(self, commits: Sequence[RangeCommit]) -> dict[str, Any]:
        return {}

    def global_indices(self, commits: Sequence[RangeCommit]) -> list[Any]:
        return [sum(one.items for one in commits[:i]) for i in range(len(commits))]

    def finish_range(self, commit: RangeCommit, indices: Any) -> RangeCommit:
        (file,) = commit.files
        path = Path(self.directory, file.file)
        lines = path.read_text().splitlines()
        path.write_text("".join(f"{indices + i:03d}{line[3:]}\n" for i, line in enumerate(lines)))
        shard = msgspec.structs.replace(file.shard, checksum=compute_checksum(str(path)))
        return msgspec.structs.replace(commit, files=(msgspec.structs.replace(file, shard=shard),))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_dataset(tmp_path, [make_episode(5, seed=seed) for seed in range(6)], shards=3)


def test_the_files_have_their_indices(data: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert run("convert", data, output, "--to=test_own_indices:Numbered", "--shards=3")[0] == 0
    numbers = [line[:3] for file in sorted(output.glob("train-*.txt")) for line in file.read_text().splitlines()]
    assert numbers == ["000", "001", "002", "003", "004", "005"]
    shards = json.loads((output / "manifest.json").read_text())["shards"]
    assert all(shard["checksum"] == compute_checksum(str(output / shard["file"])) for shard in shards)
