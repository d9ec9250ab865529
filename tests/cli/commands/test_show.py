"""`rlds-beam show`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bucket_servers import upload
from camera_episodes import write_camera_episodes
from checkout import REAL_DATA
from memory_store import memory_store

import rlds_beam
from rlds_beam.cli.main import main
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.testing import make_episode, write_dataset

Show = Callable[..., str]


@pytest.fixture(scope="module")
def camera(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_camera_episodes(tmp_path_factory.mktemp("data"), 6)


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Show:
    """Returns the output of `rlds-beam show`, or its error if it should fail."""

    def shown(*arguments: object, fails: bool = False) -> str:
        code = main(["show", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert code == (2 if fails else 0), err
        return err if fails else out

    return shown


def test_an_episode_in_the_terminal(camera: str, show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = show(camera, "--episode=3")
    key = out.splitlines()[0]
    assert out == show(camera, f"--episode={key}") == show(camera, "--episode=-3")
    assert show(camera) != out
    assert "▇" in out and "observation/image" in out and "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("name", ["strip.png", "strip.jpg", "clip.mp4"])
def test_a_file(camera: str, show: Show, tmp_path: Path, name: str) -> None:
    if name.endswith("mp4"):
        pytest.importorskip("av")
    path = tmp_path / name
    assert show(camera, "--episode=2", "-o", path).startswith(f"wrote     {path}: point_mass_camera/1.0.0:train:")
    assert path.stat().st_size > 1000
    show(camera, "--episode=2", f"--output={path}", "--curves", "--height=48", "--frames=4")


def test_a_video_has_the_rate_of_the_data(camera: str, show: Show, tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    clip = tmp_path / "clip.mp4"

    def rate() -> float:
        with av.open(str(clip)) as container:
            return float(container.streams.video[0].average_rate)

    assert "rate      10 Hz: the data does not say it; give --fps" in show(camera, "-o", clip)
    assert rate() == 10
    assert "rate      20 Hz\n" in show(camera, "-o", clip, "--fps=20") and rate() == 20
    known = rlds_beam.convert(camera, tmp_path / "known", to="rlds", split="train[:1]")
    assert known.report.items_written == 1
    (tmp_path / "known" / "meaning.json").write_text('{"fps": 25}')
    assert "rate      25 Hz\n" in show(tmp_path / "known", "-o", clip) and rate() == 25
    assert "--fps=10: the data is 25 Hz" in show(tmp_path / "known", "-o", clip, "--fps=10", fails=True)


@pytest.mark.parametrize("to", ["lerobot", "columns", "trajectories"])
def test_outputs_of_convert_need_no_from(camera: str, show: Show, tmp_path: Path, to: str) -> None:
    if to == "lerobot":
        pytest.importorskip("av")
    options = {"fps": 10} if to == "lerobot" else {}
    rlds_beam.convert(camera, tmp_path / "out", to=to, workers=1, **options)
    out = show(tmp_path / "out", "--episode=1")
    assert "action" in out
    if to == "lerobot":
        assert "at 10 fps" in out
        assert "at 10 fps" in show(tmp_path / "out", "--from=lerobot")


def test_violations_and_signals(show: Show, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (40, 32, 32, 3), np.uint8)
    pixels[10:] = 0  # the camera freezes
    images = rlds_beam.EncodedImages(np.array(encode_jpeg(pixels), object), (32, 32, 3))
    episode = make_episode(40, breaks={"missing_is_last"}, columns={"observation/image": images}, observation={"x": 2})
    out = show(write_dataset(tmp_path, [episode]))
    assert "missing_is_last: is_last: False at step 39" in out
    assert "signal frozen_camera observation/image: 0." in out and " at steps 10 to 39; " in out


def test_a_bucket(show: Show, tmp_path: Path) -> None:
    with memory_store() as store:
        episodes = [make_episode(5, seed=i) for i in range(4)]
        data = write_dataset(tmp_path, episodes)
        there = upload(data, f"{store}/toy/1.0.0")
        assert show(there, "--episode=2") == show(data, "--episode=2")


def test_real_data(show: Show) -> None:
    real = REAL_DATA / "bridge_dataset/1.0.0"
    if not real.is_dir():
        pytest.skip("no real data; set $RLDS_BEAM_REAL_DATA to their path")
    for number in range(0, 25, 6):
        out = show(real, f"--episode={number}")
        assert "missing_is_last" in out and "observation/image_0" in out and "language_embedding" in out
