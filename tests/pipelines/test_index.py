"""`index`: any number of processes build the same index, byte for byte."""

from __future__ import annotations

import functools
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import lerobot_data
import pytest
import rlds_data

import rlds_beam
from rlds_beam import open_dataset
from rlds_beam.cli.main import main
from rlds_beam.connectors import FlipChannels, MinimumLength, Normalize, ResizeImages
from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.datasets import index_builder
from rlds_beam.datasets.index_builder import open_index
from rlds_beam.datasets.opening import LoadOptions, make_recipe
from rlds_beam.datasets.step_index import StepIndex
from rlds_beam.formats.inputs import open_input
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.runners.local import Workers
from rlds_beam.testing import make_episode, write_dataset

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    episodes = [rlds_data.episode(3 + seed % 5, seed) for seed in range(24)]
    return write_dataset(tmp_path_factory.mktemp("data"), episodes, name="toy", shards=3)


class FlipEverySecond(EpisodeConnector):
    """Edits the images of every second episode in one way, the others in another."""

    def edit(self, episode: rlds_beam.Episode, fields: Any) -> rlds_beam.Episode:
        edits = [FlipChannels("observation/image"), ResizeImages(6, 6, minimum=1)]
        return edits[len(episode) % 2].edit(episode, fields)


class Dies(EpisodeConnector):
    """Kills the process that reads an episode, but not the one that tries the connector on zeros."""

    def __init__(self, parent: int):
        self.parent = parent

    def edit(self, episode: rlds_beam.Episode, fields: Any) -> rlds_beam.Episode:
        if os.getpid() != self.parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return episode


CONNECTORS: dict[str, list[Any]] = {
    "none": [],
    "edited images": [FlipEverySecond()],
    "dropped episodes, fitted": [MinimumLength(4), Normalize(["action", "observation/state"], mode="normal")],
}


def build(path: Path, cache: Path, processes: int, connectors: Any = ()) -> tuple[dict[str, bytes], StepIndex]:
    """Builds an index, and removes it from the cache: its files, and the index."""
    options = LoadOptions.create(str(path), connectors=connectors)
    with Workers(processes) as workers:
        index = open_index(make_recipe(open_input(options), options), workers.process)
    found = {path.name: path.read_bytes() for path in sorted(Path(index.directory).iterdir())}
    shutil.rmtree(cache / "steps")
    return found, index


@pytest.fixture
def many_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_builder, "plan_ranges", functools.partial(plan_ranges, shards=7))


@pytest.mark.usefixtures("many_ranges")
@pytest.mark.parametrize("case", CONNECTORS)
def test_processes_build_the_same_index(data: Path, cache: Path, case: str) -> None:
    alone, index = build(data, cache, 1, CONNECTORS[case])
    together, same = build(data, cache, 2, CONNECTORS[case])
    assert together == alone and len(same) == len(index) > 0


@pytest.mark.usefixtures("many_ranges")
@pytest.mark.parametrize("images", ["copy", "video"])
def test_images_and_videos_of_lerobot(tmp_path: Path, cache: Path, images: str) -> None:
    pytest.importorskip("av")
    source, _ = lerobot_data.write_moving_data(tmp_path / "data")
    lerobot_data.convert_here(source, tmp_path / "out", shards=2, images=images)
    alone, _ = build(tmp_path / "out", cache, 1)
    together, _ = build(tmp_path / "out", cache, 2)
    assert together == alone


@pytest.mark.usefixtures("many_ranges")
def test_a_process_that_dies_is_an_error(data: Path, cache: Path) -> None:
    with pytest.raises(rlds_beam.RldsBeamError, match="a worker process died"):
        build(data, cache, 2, [Dies(os.getpid())])
    assert not [*(cache / "steps").glob("*.new")]


def test_the_command_fills_the_cache_of_open_dataset(data: Path, cache: Path, capsys, monkeypatch) -> None:
    flags = ["--workers=2", "--connectors=MinimumLength(4)", "--progress=none"]
    assert main(["index", str(data), *flags]) == 0
    said = capsys.readouterr().out
    assert f"index     {cache / 'steps'}" in said and "episodes" in said
    monkeypatch.setattr(index_builder, "_build", lambda *_: pytest.fail("built again"))
    steps = open_dataset(data, unit="steps", connectors=[MinimumLength(4)])
    assert f"{len(steps)} steps of" in said
    assert main(["index", str(data), *flags, "--json"]) == 0
    assert f'"steps": {len(steps)}' in capsys.readouterr().out


@pytest.mark.parametrize(("flags", "code"), [([], 3), (["--max_rejected=1"], 0), (["--max_rejected=0.1"], 3)])
def test_episodes_that_are_left_out(tmp_path, capsys, flags: list[str], code: int) -> None:
    episodes = [make_episode(5, seed=seed, breaks=["non_finite"] * (seed == 2)) for seed in range(4)]
    broken = write_dataset(tmp_path / "data", episodes)
    assert main(["index", str(broken), "--workers=1", *flags]) == code
    printed = capsys.readouterr()
    assert "left out  1 non_finite" in printed.out
    assert ("Accept: --max_rejected=1" in printed.err) == (code == 3)
