"""Every profile round-trips, and agrees with the TFDS builders of robomimic."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from exchanging import export, read_back
from hdf5_robots import BUILDERS, droid, robomimic

import rlds_beam
from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.formats.profiles.model import shipped_profiles
from rlds_beam.images.encoded_images import EncodedImages

STEPS = [4, 7, 5, 3, 6, 4, 5, 3, 4, 6, 5, 4]  # with episode 10 after episode 2


def test_there_is_a_builder_for_each_profile() -> None:
    assert {*BUILDERS, "d4rl", "minari", "exorl", "ogbench", "replay_buffer"} == set(shipped_profiles())


@pytest.fixture(scope="module", params=BUILDERS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Any]:
    directory = tmp_path_factory.mktemp(request.param)
    return request.param, directory, BUILDERS[request.param](directory, STEPS)


def same(column: Any, values: Any) -> bool:
    """Whether a column holds these values: arrays with their dtype, images byte for byte (or pixel by pixel)."""
    if isinstance(column, EncodedImages):
        return list(column) == values if isinstance(values, list) else np.array_equal(column.decode(), values)
    if isinstance(values, list):
        return column.tolist() == values
    return column.dtype == values.dtype and np.array_equal(column, values)


def test_it_is_recognized(made: tuple[str, Path, Any]) -> None:
    name, directory, _ = made
    assert open_source(str(directory)).details.notes[0] == f"profile {name}"


def test_every_value_is_read(made: tuple[str, Path, Any]) -> None:
    name, directory, written = made
    episodes = sorted(
        read_back(directory, "hdf5", ranges=2 if name != "robomimic" else 1), key=lambda e: e.key.position
    )
    if not shipped_profiles()[name].per_file:
        assert [e.metadata["group"].decode() for e in episodes] == [f"data/demo_{i}" for i in range(len(STEPS))]
    else:
        episodes.sort(key=lambda e: e.key.shard)
    for episode, one, steps in zip(episodes, written, STEPS, strict=True):
        assert not episode.faults
        last = name == "robomimic"  # next_obs gives the last observation; its action is void
        assert len(episode) == steps + last
        for path, values in one.items():
            column = episode.steps[path]
            assert same(column[: len(values)], values), path
            if len(values) < len(episode):
                assert not column[-1:].any(), path
        assert episode.steps["is_first"].tolist() == [True] + [False] * (len(episode) - 1)
        assert episode.steps["is_last"].tolist() == [False] * (len(episode) - 1) + [True]


def test_rlds_reads_as_the_source(made: tuple[str, Path, Any], tmp_path: Path) -> None:
    name, directory, _ = made
    output = tmp_path / name / "1.0.0"
    report = export(directory, output, "rlds", from_="hdf5")
    assert (report.items_written, report.rejected) == (len(STEPS), 0)
    for ours, stored in zip(read_back(directory, "hdf5"), read_back(output, "rlds"), strict=True):
        assert ours.steps.keys() == stored.steps.keys() and ours.metadata.keys() == stored.metadata.keys()
        for path, column in ours.steps.items():
            values = list(column) if isinstance(column, EncodedImages) else column
            assert same(
                stored.steps[path], values if isinstance(values, list) or values.dtype != object else list(values)
            )


def test_filter_keys_are_fields(tmp_path: Path) -> None:
    robomimic(tmp_path, STEPS)
    assert {one.name: one.episodes for one in open_source(str(tmp_path), from_="hdf5").splits} == {"train": 12}
    listed = [one.metadata["mask/valid"] for one in read_back(tmp_path, "hdf5")]
    assert listed == [False] * 11 + [True]
    (first,) = read_back(tmp_path, "hdf5", split="train[:1]")
    assert (first.metadata["mask/train"], first.metadata["mask/20_percent"]) == (True, True)


def test_without_next_observations_the_last_step_keeps_its_action(tmp_path: Path) -> None:
    written = robomimic(tmp_path, [4, 5], next_obs=False)
    for episode, one in zip(read_back(tmp_path, "hdf5"), written, strict=True):
        assert np.array_equal(episode.steps["action"], one["action"])
        assert episode.steps["reward"].tolist() == one["reward"].tolist()
        assert episode.steps["is_terminal"].tolist() == episode.steps["is_last"].tolist()


def test_two_profiles_that_fit_are_both_named(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    BUILDERS["aloha"](tmp_path, [3])
    (tmp_path / "episode_0.hdf5").rename(tmp_path / "trajectory.hdf5")
    with h5py.File(tmp_path / "trajectory.hdf5", "a") as root:
        root["puppet/x"], root["master/x"] = np.zeros((3, 2)), np.zeros((3, 2))
        root["observations/rgb_images/top"] = np.zeros((3, 2))
    with pytest.raises(UsageError, match=r"several profiles fit: aloha, robomind. Choose one with --profile"):
        open_source(str(tmp_path), from_="hdf5")


def test_files_of_one_name_have_their_own_fingerprints(tmp_path: Path) -> None:
    BUILDERS["droid"](tmp_path / "in", [3, 4, 5])
    export(tmp_path / "in", tmp_path / "out", "rlds", from_="hdf5")
    shards = json.loads((tmp_path / "out/provenance.json").read_text())["source"]["shards"]["train"]
    assert [one["file"] for one in shards] == ["trajectory.h5"] * 3
    assert len({one["fingerprint"] for one in shards}) == 3


@pytest.mark.parametrize("builder", ["robomimic_ph", "robomimic_mh", "robomimic_mg"])
def test_every_field_is_that_of_tfds(tmp_path: Path, builder: str) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    pytest.importorskip("h5py")
    robomimic(tmp_path, [4, 7, 5])
    kind = builder.removeprefix("robomimic_")
    theirs = tfds.builder(f"{builder}/lift_{kind}_low_dim", data_dir=str(tmp_path / "tfds"))
    examples = dict(theirs._generate_examples({"file_path": str(tmp_path / "low_dim.hdf5")}))
    ours = read_back(tmp_path, "hdf5")
    # TFDS takes the groups in the order of their names as text, we in the order of their numbers, within each split.
    assert sorted(examples) == sorted(e.metadata["group"].decode().removeprefix("data/") for e in ours)
    for episode in ours:
        example = examples[episode.metadata["group"].decode().removeprefix("data/")]
        steps = example["steps"]
        for name, values in steps["observation"].items():
            column = episode.steps[f"observation/{name}"]
            column = column.decode() if isinstance(column, EncodedImages) else column
            assert column.dtype == values.dtype and np.array_equal(column, values), name
        for name in ("action", "reward", "states", "is_first", "is_last", "is_terminal"):
            assert np.array_equal(episode.steps[name], steps[name]), name
            assert episode.steps[name].dtype == steps[name].dtype, name
        # TFDS's discount is 0 at the last step alone. By RLDS, the discount belongs to the action: that which leads to
        # the terminal state has 0.
        assert steps["discount"].tolist() == [1] * (len(episode) - 1) + [0]
        assert episode.steps["discount"].tolist() == [1] * (len(episode) - 2) + [0, 0]
        # `horizon` is a constant of TFDS, not in the file; episode_id is the name of the group.
        assert example.keys() - {"steps", "horizon", "episode_id"} == {"20_percent", "train", "valid"}
        for mask in ("20_percent", "train", "valid"):
            assert episode.metadata[f"mask/{mask}"] == example[mask]
        named = {f"observation/{name}" for name in steps["observation"]} | set(steps) - {"observation"}
        assert set(episode.steps) == named | {"observation/state"}  # joined, which TFDS does not


def test_ends_within_an_episode_differ_from_tfds(tmp_path: Path) -> None:
    """With done_mode=0, `dones` is 1 while the task is solved. TFDS copies that.

    In RLDS only the last step may be terminal.
    """
    h5py = pytest.importorskip("h5py")
    robomimic(tmp_path, [6])
    with h5py.File(tmp_path / "low_dim.hdf5", "a") as root:
        root["data/demo_0/dones"][...] = [0, 0, 1, 1, 1, 1]
    (episode,) = read_back(tmp_path, "hdf5")
    assert episode.steps["is_terminal"].tolist() == [False] * 6 + [True]
    with h5py.File(tmp_path / "low_dim.hdf5", "a") as root:
        root["data/demo_0/dones"][...] = 0
    (episode,) = read_back(tmp_path, "hdf5")
    assert not episode.steps["is_terminal"].any() and episode.steps["is_last"][-1]  # truncated
    assert (episode.steps["discount"] == 1).all()


@pytest.mark.parametrize(
    "connectors",
    [
        "ResizeImages(30, 50, minimum=1)",
        "ResizeImages(40, 40, minimum=1, fit='pad')",
        "ResizeImages(40, 70, minimum=1, crop=[8, 12, 60, 80])",
        "RotateImages(90)",
        "RotateImages(180)",
    ],
)
def test_intrinsics_beside_images_follow_the_pixels(tmp_path: Path, connectors: str) -> None:
    """A point that OpenCV projects before an edit is in the written image where the written matrix puts it."""
    cv2 = pytest.importorskip("cv2")
    droid(tmp_path / "droid", [3])
    matrix, point = np.array([[90.0, 0, 47.2], [0, 85.0, 36.4], [0, 0, 1]]), np.array([0.06, -0.05, 1.0])
    (((x, y),),) = cv2.projectPoints(point[None], np.zeros(3), np.zeros(3), matrix, None)[0]
    rows, columns = np.mgrid[:80, :100]
    spot = 250 * np.exp(-((rows - y) ** 2 + (columns - x) ** 2) / (2 * 3.0**2))
    (path,) = (tmp_path / "droid").rglob("trajectory.h5")
    with h5py.File(path, "a") as file:
        pixels = np.tile(spot.round().astype(np.uint8)[None, ..., None], (3, 1, 1, 3))
        file["observation/camera_images/1234_left"] = pixels
        file["observation/camera_intrinsics/1234_left"][:] = matrix
    profile = (files("rlds_beam.formats.profiles") / "droid.yaml").read_text()
    images = "  observation/1234_left: observation/camera_images/1234_left\n"
    (tmp_path / "own.yaml").write_text(profile.replace("fields:\n", f"fields:\n{images}"))
    options = {"from_": "hdf5", "profile": str(tmp_path / "own.yaml"), "connectors": connectors}
    rlds_beam.convert(str(tmp_path / "droid"), tmp_path / "out/own/1.0.0", to="rlds", **options)
    step = rlds_beam.open_dataset(tmp_path / "out/own/1.0.0", unit="steps")[0]
    seen = np.asarray(step["observation/1234_left"])[..., 0].astype(float)
    at = [(np.arange(size) * seen.sum(axis=other)).sum() / seen.sum() for other, size in enumerate(seen.shape[::-1])]
    known = step["observation/1234_left_intrinsics"]
    np.testing.assert_allclose((known @ point)[:2], at, atol=0.1)
    if known[0, 1] == 0:
        (((x, y),),) = cv2.projectPoints(point[None], np.zeros(3), np.zeros(3), known, None)[0]
        np.testing.assert_allclose((x, y), at, atol=0.1)
