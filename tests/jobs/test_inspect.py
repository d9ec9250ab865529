"""The card of `inspect`: what a dataset is, what it lacks for learners, and the next command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import hdf5_robots
import pytest
from camera_episodes import write_camera_episodes
from exchanging import export

import rlds_beam
from rlds_beam.cli.main import main
from rlds_beam.testing import make_episode, write_dataset

Card = Callable[..., dict[str, list[str]]]


@pytest.fixture
def card(capsys: pytest.CaptureFixture[str]) -> Card:
    """Returns the lines of the card by name; those of its first line by ''."""

    def read(*arguments: object) -> dict[str, list[str]]:
        assert main(["inspect", *map(str, arguments)]) == 0
        title, *lines = capsys.readouterr().out.partition("\n\nstep\n")[0].splitlines()
        facts: dict[str, list[str]] = {"": [title]}
        for line in lines:
            name = line[:10].strip()
            facts.setdefault(name or list(facts)[-1], []).append(line[10:])
        return facts

    return read


@pytest.fixture(scope="module")
def camera(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_camera_episodes(tmp_path_factory.mktemp("data"), 4)


def test_aloha(card: Card, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    hdf5_robots.aloha(tmp_path / "aloha", [20, 30])
    said = card(tmp_path / "aloha")
    assert said[""] == ["aloha"]
    assert (said["robot"], said["rate"]) == (["aloha"], ["50 Hz"])
    assert said["episodes"] == ["2, 50 steps, 1.0 s"]
    assert said["size"][0].endswith(" in 2 HDF5 files")
    assert said["cameras"] == ["observation/image_cam_high: 32 x 32, png", "observation/image_cam_low: 32 x 32, jpeg"]
    assert said["last step"] == ["real: an observation with an action"]
    assert said["lacks"] == ["no task text, give --task"]
    assert said["next"] == [f"rlds-beam convert {tmp_path / 'aloha'} aloha_lerobot --to=lerobot"]
    given = card(tmp_path / "aloha", "--task=pick the pen", "--robot_type=mobile_aloha")
    assert given["robot"] == ["mobile_aloha"]
    assert "lacks" not in given
    words = ["convert", str(tmp_path / "aloha"), "aloha_lerobot", "--task=pick the pen", "--robot_type=mobile_aloha"]
    assert shlex.split(given["next"][0])[1:] == [*words, "--to=lerobot"]


def test_tasks(card: Card, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    hdf5_robots.libero(tmp_path / "libero", [5, 6, 7, 8])
    said = card(tmp_path / "libero")
    assert said["episodes"] == ["4, 26 steps, 1.3 s"]
    assert said["tasks"] == ["1 task", '  "open the drawer" (4 episodes)']
    assert "lacks" not in said


def test_lerobot_is_not_offered_pairs_and_has_videos(card: Card, camera: str, tmp_path: Path) -> None:
    pytest.importorskip("av")
    export(camera, tmp_path / "arm", "lerobot", fps=10, images="video", robot_type="so101_follower")
    said = card(tmp_path / "arm")
    assert said[""] == ["arm"] and said["robot"] == ["so101_follower"]
    assert said["size"][0].endswith(" in 1 Parquet file, and 1 video")
    assert said["cameras"] == ["observation/image: 96 x 96, av1 video"]
    assert said["next"] == [f"rlds-beam convert {tmp_path / 'arm'} arm_rlds --to=rlds"]
    assert "--items=pairs" not in str(rlds_beam.inspect(tmp_path / "arm"))


def test_what_is_missing(card: Card, tmp_path: Path) -> None:
    source = write_dataset(tmp_path, [make_episode(5, seed=i) for i in range(3)])
    said = card(source)
    assert said["rate"] == ["unknown"] and said["cameras"] == ["none"] and said["tasks"] == ["none"]
    assert "lacks" not in said
    assert said["next"][0].endswith("_trajectories")


def test_the_next_command_runs(card: Card, camera: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = card(camera, "--split=train[:2]")
    program, *words = shlex.split(said["next"][0].replace("=RATE", "=10"))
    assert program == "rlds-beam" and words[-2:] == ["--to=lerobot", "--fps=10"]
    assert main(words) == 0
    assert json.loads((tmp_path / words[2] / "meta" / "info.json").read_text())["total_episodes"] == 2
    assert card(words[2])["next"] == [f"rlds-beam convert {words[2]} {words[2]}_rlds --to=rlds"]


def test_a_sample_says_so(card: Card, tmp_path: Path) -> None:
    source = write_dataset(tmp_path, [make_episode(20, seed=i) for i in range(50)])
    said = card(source, "--sample_bytes=1000")
    assert said["episodes"] == ["50, about 1,000 steps"]
