"""`index`: the parts of all ranges make the index that one process builds, byte for byte."""

from __future__ import annotations

import os
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
from rlds_beam.datasets.index_parts import IndexParts
from rlds_beam.datasets.opening import LoadOptions, make_recipe
from rlds_beam.datasets.step_index import StepIndex
from rlds_beam.formats.inputs import open_input
from rlds_beam.reading.framing import Framing
from rlds_beam.reading.plan import plan_ranges
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


def files(directory: str | Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(Path(directory).iterdir())}


CONNECTORS: dict[str, list[Any]] = {
    "none": [],
    "edited images": [FlipEverySecond()],
    "dropped episodes, fitted": [MinimumLength(4), Normalize(["action", "observation/state"], mode="normal")],
}


@pytest.mark.parametrize("case", CONNECTORS)
def test_the_parts_of_ranges_make_the_same_index(data: Path, tmp_path: Path, case: str) -> None:
    options = LoadOptions.create(str(data), connectors=CONNECTORS[case])
    recipe = make_recipe(open_input(options), options)
    alone = open_index(recipe)
    ranges = plan_ranges(recipe.source, 7, starts=Framing(recipe.source).record_starts)
    parts = IndexParts(recipe, recipe.digest(), str(tmp_path / "parts"), ranges)
    assert len(ranges) == 7
    for work in reversed(ranges):
        for _ in range(2):  # a runner may repeat a range
            parts.build(work, {}, alone.content["fitted"])
    joined = tmp_path / "joined" / recipe.digest()
    joined.mkdir(parents=True)
    parts.join(str(joined))
    assert files(joined) == files(alone.directory)
    assert not (tmp_path / "parts").exists()
    assert len(StepIndex(str(joined))) == len(alone)


@pytest.mark.parametrize("images", ["copy", "video"])
def test_images_and_videos_of_lerobot(tmp_path: Path, images: str) -> None:
    pytest.importorskip("av")
    source, _ = lerobot_data.write_moving_data(tmp_path / "data")
    lerobot_data.convert_here(source, tmp_path / "out", shards=2, images=images)
    options = LoadOptions.create(str(tmp_path / "out"))
    recipe = make_recipe(open_input(options), options)
    alone = open_index(recipe)
    ranges = plan_ranges(recipe.source, 3, starts=Framing(recipe.source).record_starts)
    parts = IndexParts(recipe, recipe.digest(), str(tmp_path / "parts"), ranges)
    for work in ranges:
        parts.build(work, {}, [])
    joined = tmp_path / "joined" / recipe.digest()
    joined.mkdir(parents=True)
    parts.join(str(joined))
    assert len(ranges) > 1 and files(joined) == files(alone.directory)


def test_the_command_fills_the_cache_of_open_dataset(
    data: Path, tmp_path: Path, cache: Path, capsys, monkeypatch
) -> None:
    flags = ["--workers=2", f"--parts={tmp_path / 'parts'}", "--connectors=MinimumLength(4)", "--progress=none"]
    assert main(["index", str(data), *flags]) == 0
    said = capsys.readouterr().out
    assert f"index     {cache / 'steps'}" in said and "episodes" in said
    monkeypatch.setattr(index_builder, "_build", lambda *_: pytest.fail("built again"))
    steps = open_dataset(data, unit="steps", connectors=[MinimumLength(4)])
    assert f"{len(steps)} steps of" in said
    assert main(["index", str(data), *flags, "--json"]) == 0
    assert f'"steps": {len(steps)}' in capsys.readouterr().out
    assert os.listdir(tmp_path / "parts") == []


def test_an_index_without_steps_is_no_success(data, capsys) -> None:
    assert main(["index", str(data), "--connectors=MinimumLength(1000)", "--workers=1"]) == 3
    assert "there are no steps" in capsys.readouterr().err


@pytest.mark.parametrize(("flags", "code"), [([], 3), (["--max_rejected=1"], 0), (["--max_rejected=0.1"], 3)])
def test_episodes_that_are_left_out(tmp_path, capsys, flags: list[str], code: int) -> None:
    episodes = [make_episode(5, seed=seed, breaks=["non_finite"] * (seed == 2)) for seed in range(4)]
    broken = write_dataset(tmp_path / "data", episodes)
    assert main(["index", str(broken), "--workers=1", *flags]) == code
    printed = capsys.readouterr()
    assert "left out  1 non_finite" in printed.out
    assert ("Accept: --max_rejected=1" in printed.err) == (code == 3)


def test_workers_elsewhere_need_a_shared_directory(data: Path, capsys) -> None:
    assert main(["index", str(data), "--runner=flink", "--flink_master=localhost:1"]) == 2
    assert "--parts=DIR" in capsys.readouterr().err
