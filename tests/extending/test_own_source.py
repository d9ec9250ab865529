"""The source of docs/how_to/own_source.md, with episodes as JSON lines, in every command; and faulty ones."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documented_formats import JsonDecoder, JsonSource
from own_formats import run

from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import Violation
from rlds_beam.formats.registry import SOURCES, source_class
from rlds_beam.reading.base import Segment, Source
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.recording.source import RecordedSource
from rlds_beam.testing import SourceTests, make_episode, read_items, read_rejected, write_dataset


@pytest.fixture
def episodes():
    return [make_episode(6, seed=i, observation=2, action=()) for i in range(12)]


def line(episode: Episode) -> str:
    return json.dumps({path: column.tolist() for path, column in episode.steps.items()})


@pytest.fixture
def data(tmp_path, episodes):
    """Three files of four episodes each, and an invalid line in the second file."""
    lines = [line(episode) for episode in episodes]
    lines.insert(5, "not JSON")
    (tmp_path / "json").mkdir()
    for i, part in enumerate((lines[:4], lines[4:9], lines[9:])):
        (tmp_path / "json" / f"{i}.jsonl").write_text("\n".join(part) + "\n")
    return tmp_path / "json"


OWN = "--from=test_own_source:JsonSource"


CONTRACT = {"dataset", "schema", "files", "decoder", "splits", "meaning", "details", "options_class"}
CONTRACT |= {"open", "without", "plan", "companions", "media"}


def test_our_sources_override_only_the_contract():
    derived = {name for name in dir(Source) if not name.startswith("_")} - CONTRACT
    for source in (*map(source_class, SOURCES), RecordedSource):
        for owner in source.__mro__[: source.__mro__.index(Source)]:
            assert not derived & {*vars(owner), *owner.__annotations__}, owner


def test_convert_gives_the_same_as_for_rlds(data, episodes, tmp_path):
    code, _, err = run("convert", data, tmp_path / "own", OWN, "--workers=2", "--shards=4", "--max_rejected=1")
    assert code == 0, err
    rlds = write_dataset(tmp_path / "rlds", episodes)
    assert run("convert", rlds, tmp_path / "theirs")[0] == 0
    own, theirs = (read_items(tmp_path / name) for name in ("own", "theirs"))
    assert len(own) == 12 * 5
    for ours, other in zip(own, theirs, strict=True):
        for path in other:
            np.testing.assert_array_equal(ours[path], other[path], path)
    ((line, payload),) = read_rejected(tmp_path / "own")
    assert (line["rule"], payload) == ("not_an_example", b"not JSON")


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--from=rdls", "choose rlds, merged, "),
        ("--from=test_own_source:Nothing", "no attribute"),
        ("--from=test_own_source:JsonDecoder", "not a subclass of rlds_beam.reading.Source"),
    ],
)
def test_invalid_sources_are_rejected(data, flag, said):
    code, out, err = run("check", "--rules", data, flag)
    assert (code, out) == (2, "")
    assert said in err


# Faulty sources cause rejections or one line, never a traceback.


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "NoReward": lambda steps: {path: column for path, column in steps.items() if path != "reward"},
    "WideReward": lambda steps: {**steps, "reward": steps["reward"].astype(np.float64)},
    "ShortReward": lambda steps: {**steps, "reward": steps["reward"][:-1]},
    "Raising": lambda steps: {}["no such thing"],
    "NoEpisode": lambda steps: None,
}
"""Source -> what its decoder does to the steps of an episode; None instead of an episode."""


@dataclasses.dataclass(frozen=True)
class Changing(JsonDecoder):
    source: str

    def decode(self, payload: bytes, key: EpisodeKey) -> Any:
        made = super().decode(payload, key)
        steps = CHANGES[self.source](dict(made.steps))
        return None if steps is None else made.replace(steps=steps)


for _name in CHANGES:
    globals()[_name] = type(_name, (JsonSource,), {"decoder": Changing(_name), "__module__": __name__})


def found_in(data: Path, source: str) -> list[Violation]:
    """The violations of the first episode."""
    opened = globals()[source].open(str(data))
    segment = Segment(opened.splits[0].shards[0], 0, 1)
    (episode,) = EpisodeReader(opened).read("train", segment)
    return list(episode.faults)


@pytest.mark.parametrize(
    ("source", "rule", "field", "detail"),
    [
        ("NoReward", "missing_field", "reward", "the episode has no reward"),
        ("WideReward", "wrong_dtype_or_shape", "reward", "float64 at each step, but the schema says float32"),
        ("ShortReward", "unequal_lengths", "reward", "5 steps, but 6 of 7 fields have 6"),
        ("Raising", "not_an_example", None, "Raising: its decoder raised KeyError: 'no such thing' (.*.py, line"),
        ("NoEpisode", "not_an_example", None, "NoEpisode: its decoder returned None"),
    ],
)
def test_a_decoder_that_disagrees_with_its_schema(data, source, rule, field, detail):
    (violation,) = found_in(data, source)
    assert (violation.rule, violation.field) == (rule, field)
    assert re.match(re.escape(detail).replace(r"\.\*", ".*"), violation.detail), violation.detail


def test_every_command_rejects_such_episodes(data, tmp_path):
    code, out, _ = run("check", "--rules", data, "--from=test_own_source:NoReward", "--json")
    report = json.loads(out)
    assert (code, report["valid"], report["rules"]["missing_field"]["rejected"]) == (3, 0, 12)
    code, _, err = run("convert", data, tmp_path / "out", "--from=test_own_source:Raising")
    assert code == 3 and "Traceback" not in err


class OpenRaises(JsonSource):
    @classmethod
    def open(cls, input, *, split=None, features=None):
        return json.loads("no JSON")


def test_a_source_with_a_mistake_is_named_in_one_line(data):
    found, out, err = run("check", "--rules", data, "--from=test_own_source:OpenRaises")
    assert found in (1, 2) and out == "" and "your code raised JSONDecodeError: Expecting value" in err
    assert "Traceback" not in err and len(err.strip().splitlines()) == 1, err


class TestConformance(SourceTests):
    source = JsonSource

    def write(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        for i in range(3):
            episodes = [make_episode(6, seed=4 * i + k, observation=2, action=()) for k in range(4)]
            (directory / f"{i}.jsonl").write_text("\n".join(map(line, episodes)) + "\n")
