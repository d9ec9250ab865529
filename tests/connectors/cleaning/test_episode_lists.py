"""`--exclude` and `--only`: episodes listed by key are dropped or kept, and counted."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from exchanging import export
from hypothesis import settings

import rlds_beam
from rlds_beam import connectors as c
from rlds_beam.cli.main import main
from rlds_beam.connectors import Batch
from rlds_beam.connectors.cleaning.episode_lists import SplitEpisodes
from rlds_beam.connectors.configuration import describe_connector
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.reading.base import Segment
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.testing import make_episode, read_items, write_dataset

LENGTHS = (5, 12, 3, 20, 8, 30)
DATASET = "toy/1.0.0"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    """Six episodes, one record without an end, and one that holds two episodes."""
    episodes = [make_episode(length, seed=length) for length in LENGTHS]
    records = [*episodes, make_episode("F M M"), make_episode("F M L | F M M LT", seed=3)]
    return str(write_dataset(tmp_path_factory.mktemp("data"), records, name="toy", shards=3))


@pytest.fixture(scope="module")
def keys(data) -> list[str]:
    source = rlds_beam.open_source(data)
    reader = EpisodeReader(source)
    return [str(e.key) for split in source.splits for s in split.shards for e in reader.read(split.name, Segment(s))]


def listing(path: Path, lines: Sequence[str]) -> str:
    path.write_text("\n".join(lines))
    return str(path)


def lengths(output: Path) -> list[int]:
    return sorted(len(item["reward"]) for item in read_items(output))


def test_listed_episodes_are_left_out_or_kept_and_every_record_is_counted(data, keys, tmp_path):
    file = listing(tmp_path / "bad.txt", ["# reviewed", f"  {keys[1]}\tblurred", f"{keys[3]} # idle", "", keys[1]])
    out = export(data, tmp_path / "out", "trajectories", exclude=file, items="episodes")
    assert (out.records, out.rejected, out.dropped["DropListedEpisodes"].records) == (8, 2, 2)
    assert lengths(tmp_path / "out") == [3, 5, 8, 30]
    kept = export(data, tmp_path / "kept", "trajectories", only=file, items="episodes")
    assert lengths(tmp_path / "kept") == [12, 20]
    assert (kept.rejected, kept.dropped["KeepListedEpisodes"].records) == (2, 4)
    both = rlds_beam.check(data, only=file, exclude=listing(tmp_path / "one.txt", [keys[1]]), rules=True).report
    assert {name: one.records for name, one in both.dropped.items()} == {
        "DropListedEpisodes": 1,
        "KeepListedEpisodes": 4,
    }


def test_a_key_with_a_part_names_one_episode_of_a_repaired_record(data, keys, tmp_path):
    repair = "missing_is_last,unexpected_is_last"
    for lines, left in (
        ([f"{keys[7]}.1"], [3, 3]),
        ([f"{keys[7]}.0"], [3, 4]),
        ([keys[7]], [3]),
        ([f"{keys[7]}.0", f"{keys[7]}.1"], [3]),
    ):
        file = listing(tmp_path / "bad.txt", [*lines, *keys[:2], *keys[3:6]])
        output = tmp_path / str(len(list(tmp_path.iterdir())))
        report = export(data, output, "trajectories", exclude=file, repair=repair, items="episodes")
        assert lengths(output) == sorted([*left, 3]), lines
        assert report.records == 8 and not report.rejected


def test_another_list_is_another_plan_and_another_name_is_not(data, keys, tmp_path, capsys):
    first = listing(tmp_path / "first.txt", [keys[0], keys[1]])
    assert main(["convert", data, str(tmp_path / "out"), f"--exclude={first}", "--max_rejected=2"]) == 0
    same = listing(tmp_path / "same.txt", [f"{keys[1]}\tremark", keys[0]])
    assert main(["convert", data, str(tmp_path / "out"), f"--exclude={same}", "--max_rejected=2"]) == 0
    listing(tmp_path / "first.txt", [keys[0]])
    assert main(["convert", data, str(tmp_path / "out"), f"--exclude={first}"]) == 2
    assert "connectors.0.arguments.digest was" in capsys.readouterr().err


def test_the_list_is_read_once(data, keys, tmp_path):
    """Workers need not be able to read the file."""
    file = listing(tmp_path / "bad.txt", keys[:2])
    connector = c.DropListedEpisodes(file)
    Path(file).unlink()
    again = pickle.loads(pickle.dumps(connector))
    assert describe_connector(again) == describe_connector(connector)
    assert again.edit(make_episode(5).replace(key=rlds_beam.EpisodeKey.parse(keys[1])), c.StepFields()) == []


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([f"{DATASET}:train:00000@0", "train:0"], r"bad.txt, line 2: 'train:0' is not the key of an episode"),
        (["toy/2.0.0:train:00000@0"], "lists episodes of toy/2.0.0, but the input is toy/1.0.0"),
    ],
)
def test_a_wrong_line_is_refused_before_the_job(data, tmp_path, lines, said):
    with pytest.raises(UsageError, match=said):
        rlds_beam.convert(data, tmp_path / "out", exclude=listing(tmp_path / "bad.txt", lines))
    assert not (tmp_path / "out").exists()


FEW = settings(deadline=None, max_examples=50)


def split_of(piece: Any, episodes: list[Episode]) -> list[str]:
    return [batch.episodes[0].metadata["output_split"].decode() for batch in (piece(Batch((e,))) for e in episodes)]


def many(count: int, task: Any = lambda i: "t") -> list[Episode]:
    one = make_episode(2)
    return [
        one.replace(key=EpisodeKey("toy/1.0.0", "train", i % 3, i), metadata={"task": task(i).encode()})
        for i in range(count)
    ]


def test_fractions_are_approximate_and_depend_on_the_seed():
    episodes = many(2000)
    first = split_of(SplitEpisodes({"train": 0.8, "val": 0.15, "test": 0.05}), episodes)
    assert first == split_of(SplitEpisodes({"train": 0.8, "val": 0.15, "test": 0.05}), episodes)
    assert first != split_of(SplitEpisodes({"train": 0.8, "val": 0.15, "test": 0.05}, seed=1), episodes)
    for name, part in (("train", 0.8), ("val", 0.15), ("test", 0.05)):
        assert abs(first.count(name) / 2000 - part) < 0.03
    grouped = split_of(SplitEpisodes({"train": 0.5, "val": 0.5}, key="{task}"), many(90, lambda i: str(i % 9)))
    assert all(len({grouped[i] for i in range(90) if i % 9 == g}) == 1 for g in range(9))


def test_listed_episodes_go_to_their_split(tmp_path):
    episodes = many(5)
    (tmp_path / "lists.json").write_text(json.dumps({"val": [str(episodes[1].key), str(episodes[3].key)]}))
    piece = SplitEpisodes(episodes=str(tmp_path / "lists.json"))
    assert piece.splits == ("val", "train")
    assert split_of(piece, episodes) == ["train", "val", "train", "val", "train"]
