"""The conformance tests of each source and each output, on small datasets."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cases import ALL
from exchanging import rich_episode
from small_datasets import DATASETS

from rlds_beam.episodes.episode import Episode
from rlds_beam.formats.inputs import open_source
from rlds_beam.formats.registry import OUTPUTS, SOURCES
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.testing import OutputTests, SourceTests, conformance
from rlds_beam.testing.conversions import check_killed_and_resumed, episode_content


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The datasets, each written by the first test that needs it."""
    return tmp_path_factory.mktemp("written")


KILLED = ("hdf5", "lerobot", "rlds", "ros2")
"""Sources of several kinds of ranges: whole files, rows, records, episodes between messages."""


class TestEverySource(SourceTests):
    @pytest.fixture(autouse=True, params=SOURCES)
    def _choose(self, request: pytest.FixtureRequest, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.source, self._whole = request.param, written / request.param
        if not ALL:  # `test_every_record_once.py` cuts more
            monkeypatch.setattr(conformance, "_MAX_FILES", 2)
            monkeypatch.setattr(conformance, "_MAX_CUTS", 100)

    def test_a_killed_conversion_resumes(self, tmp_path: Path) -> None:
        """To one output; `TestEveryOutput` has the others."""
        if not ALL and self.source not in KILLED:
            pytest.skip("only with RLDS_BEAM_ALL_CASES")
        super().test_a_killed_conversion_resumes(tmp_path)

    def write(self, directory: Path) -> str:
        dataset = DATASETS["hdf5_aloha" if self.source == "hdf5" else self.source]
        if not self._whole.exists():
            dataset.make(self._whole)
        shutil.copytree(self._whole, directory)
        given, *flags = dataset.argv(directory)
        named = dict(flag.removeprefix("--").split("=") for flag in flags)
        self.options = {name: value for name, value in named.items() if name != "from"}
        return given


OPTIONS: dict[str, dict[str, Any]] = {
    **{to: {} for to in OUTPUTS},
    "lerobot": {"fps": 10},
    "lerobot 2.1": {"fps": 10, "lerobot_version": "2.1"},
    "trajectories of episodes": {"items": "episodes"},
}
"""Output, and what is special about it -> its options."""
PLAIN = ("scope_rl", "trajectories")
"""Outputs that get episodes without images and texts."""
MERGED = (".npy", ".h5", ".hdf5", ".zip")
"""Files whose bytes do not depend on the ranges."""


class TestEveryOutput(OutputTests):
    @pytest.fixture(autouse=True, params=OPTIONS)
    def _choose(self, request: pytest.FixtureRequest) -> None:
        self.output, self.options = request.param.split()[0], OPTIONS[request.param]
        self.can_be_read = self.output in SOURCES

    def test_a_killed_conversion_resumes(self, tmp_path: Path) -> None:
        for seed in range(1, 3 if ALL else 2):
            check_killed_and_resumed(self._data(tmp_path), tmp_path / str(seed), self._options(), seed)

    def episodes(self) -> Sequence[Episode]:
        if self.output in PLAIN:
            return super().episodes()
        return [rich_episode(2 + i % 7, i, terminal=i % 3 != 2) for i in range(7)]

    def read(self, directory: Path) -> Any:
        if not self.can_be_read:
            return None
        source = open_source(str(directory), from_=str(self.output))
        reader, segments = EpisodeReader(source), [(w.split, s) for w in plan_ranges(source) for s in w.segments]
        contents = [episode_content(episode) for split, segment in segments for episode in reader.read(split, segment)]
        merged = {file.name: file.read_bytes() for file in directory.rglob("*") if file.suffix in MERGED}
        return merged, [{name: value for name, value in content.items() if name != "key"} for content in contents]
