"""Custom outputs whose files get global indices at the end: `--to=test_own_indices:Numbered`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import documented_formats
import msgspec
import pytest
from own_formats import run

from rlds_beam.episodes.episode import Episode
from rlds_beam.output.base import GlobalIndices
from rlds_beam.output.commits import RangeCommit
from rlds_beam.output.files import compute_checksum
from rlds_beam.testing import make_episode, write_dataset


class Numbered(GlobalIndices, documented_formats.ReturnsOutput):
    """Writes a line per episode, with its number in the dataset."""

    metadata = ()

    def line(self, episode: Episode) -> bytes:
        return f"000 {episode.key}\n".encode()

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
    numbers = [line[:3] for file in sorted(output.glob("*train-*.jsonl")) for line in file.read_text().splitlines()]
    assert numbers == ["000", "001", "002", "003", "004", "005"]
    shards = json.loads((output / "manifest.json").read_text())["shards"]
    assert all(shard["checksum"] == compute_checksum(str(output / shard["file"])) for shard in shards)
