"""Slices of LeRobot datasets: for each pair of boundaries, the episodes between them."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import lerobot_data as data
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlds_beam.cli.main import main
from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.testing import make_episode, write_dataset

EPISODES = 10


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes with different lengths and values."""
    episodes = [make_episode(2 + i % 3, seed=i, observation={"state": 3}) for i in range(EPISODES)]
    return write_dataset(tmp_path_factory.mktemp("data"), episodes, name="toy", shards=4)


@pytest.fixture(scope="module", params=["3.0", "2.1"])
def dataset(request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of 3, 2, 3 and 2 episodes in v3.0, or one for each episode in v2.1."""
    path = tmp_path_factory.mktemp("lerobot") / "out"
    data.convert_here(source, path, shards=4, lerobot_version=request.param)
    assert len(list(path.glob("data/*/*.parquet"))) == {"3.0": 4, "2.1": EPISODES}[request.param]
    return path


def contents(path: Path, split: str | None, ranges: int) -> list[tuple[str, dict[str, bytes]]]:
    """The key and values of each episode, read as `ranges` ranges."""
    made = open_source(str(path), split=split, from_="lerobot")
    reader, found = EpisodeReader(made), []
    for work in plan_ranges(made, ranges):
        for episode in (e for s in work.segments for e in reader.read(work.split, s)):
            assert not episode.faults
            values = {name: np.asarray(column).tobytes() for name, column in episode.steps.items()}
            found.append((str(episode.key), values))
    assert sum(split.episodes or 0 for split in made.splits) == len(found)
    return found


def test_every_slice_is_that_part_of_the_whole(dataset: Path) -> None:
    whole = contents(dataset, None, 1)
    assert len({tuple(values.items()) for _, values in whole}) == EPISODES
    for first, last in itertools.combinations(range(EPISODES + 1), 2):
        for ranges in (1, 4):
            assert contents(dataset, f"train[{first}:{last}]", ranges) == whole[first:last]


def test_a_slice_is_converted_like_the_whole(dataset: Path, tmp_path: Path) -> None:
    """Also into LeRobot, with frames and episodes counted from 0."""
    data.convert_here(dataset, tmp_path / "part", from_="lerobot", split="train[4:9]", to="rlds", shards=2)
    part = data.read_episodes(str(tmp_path / "part"), "rlds")
    whole = data.read_episodes(str(dataset), "lerobot")[4:9]
    for found, wanted in zip(part, whole, strict=True):
        data.assert_equal(found, wanted)
    data.convert_here(dataset, tmp_path / "again", from_="lerobot", split="train[40%:]", fps=None)
    frames = data.frames(tmp_path / "again")
    assert frames["index"].to_pylist() == list(range(sum(map(len, data.read_episodes(str(dataset), "lerobot")[4:]))))
    assert frames["episode_index"].to_pylist()[-1] == 5


def test_splits_of_info_json_are_slices_and_can_be_sliced(dataset: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(dataset, tmp_path / "copy")
    change_info(copy, splits={"train": "0:4", "val": "4:9", "test": "9:10"})
    whole = [values for _, values in contents(dataset, None, 1)]
    for split, first, last in (
        ("train", 0, 4),
        ("val", 4, 9),
        ("test", 9, 10),
        ("val[1:3]", 5, 7),
        ("val[40%:]", 6, 9),
    ):
        assert [values for _, values in contents(copy, split, 2)] == whole[first:last]
    assert [values for _, values in contents(copy, "val[:2]+train[3:]", 3)] == [*whole[4:6], whole[3]]


def change_info(dataset: Path, **content: Any) -> None:
    path = dataset / "meta/info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **content}))


def test_files_with_episodes_out_of_order_cannot_be_sliced(source: Path, tmp_path: Path) -> None:
    """The first file holds the episodes 0, 2, 4..., the second 1, 3, 5...: all can be read, but not a slice."""
    data.convert_here(source, tmp_path / "out", shards=2)
    frames, (table,) = data.frames(tmp_path / "out"), tmp_path.glob("out/meta/episodes/*/*.parquet")
    for file in (0, 1):
        rows = frames.filter(pa.compute.equal(pa.compute.bit_wise_and(frames["episode_index"], 1), file))
        pq.write_table(rows, tmp_path / f"out/data/chunk-000/file-{file:03d}.parquet")
    episodes = pq.read_table(table)
    place = episodes.schema.get_field_index("data/file_index")
    numbers = pa.array(np.arange(EPISODES) % 2, pa.int64())
    pq.write_table(episodes.set_column(place, "data/file_index", numbers), table)
    assert len(contents(tmp_path / "out", None, 2)) == EPISODES
    for split in ("train[:4]", "train[5:]"):
        with pytest.raises(UsageError, match=r"file-000.parquet holds the episodes 0 and 2 but not"):
            open_source(str(tmp_path / "out"), split=split, from_="lerobot")
    change_info(tmp_path / "out", splits={"train": "0:4", "val": "4:10"})
    with pytest.raises(UsageError, match=r"the split train cannot be sliced"):
        open_source(str(tmp_path / "out"), from_="lerobot")


@pytest.mark.parametrize(
    ("splits", "notes"),
    [
        ({"train": "0:10"}, []),
        ({"train": "0:4", "val": "4:10"}, []),
        ({"train": "0:99999999999"}, ["the split train is 0:99999999999 of 10 episodes"]),
        ({"train": "0:6", "val": "4:10"}, ["2 episodes of 10 are in several splits"]),
        ({"train": "0:10", "val": "3:4"}, ["1 episode of 10 is in several splits"]),
        ({"train": "1:4", "val": "6:9"}, ["4 episodes of 10 are in no split, so not read"]),
        ({"train": "0:9"}, ["1 episode of 10 is in no split, so not read"]),
        (
            {"train": "5:2", "val": "5:5"},
            [
                "the split train is 5:2 of 10 episodes",
                "10 episodes of 10 are in no split, so not read",
            ],
        ),
    ],
)
def test_odd_splits_are_noted(
    splits: dict[str, str], notes: list[str], dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = shutil.copytree(dataset, tmp_path / "made")
    change_info(made, splits=splits)
    assert [*open_source(str(made)).details.notes] == [f"meta/info.json: {note}" for note in notes]
    if splits == {"train": "0:9"}:
        for command in (["check", "--rules", str(made)], ["convert", str(made), str(tmp_path / "out"), "--to=rlds"]):
            assert main(command) == 0
            assert capsys.readouterr().out.count(f"note      meta/info.json: {notes[0]}\n") == 1
