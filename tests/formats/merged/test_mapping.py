"""Datasets of different formats and fields read as one, with and without a file that maps their fields."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import hdf5_robots
import numpy as np
import pytest
import yaml
from exchanging import export
from lerobot_data import convert_here, images, write_moving_data

import rlds_beam
from rlds_beam.cli.main import main
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError
from rlds_beam.formats.format_options import MergeOptions
from rlds_beam.formats.inputs import open_source
from rlds_beam.formats.recognition import datasets_in, recognize
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.reading.base import Segment, Source
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.testing import flip_byte, make_episode, shard_paths, write_dataset

JOINTS = ("pan", "lift", "gripper")


def camera(steps: int, side: int) -> Any:
    pixels = np.random.default_rng(steps).integers(0, 255, (steps, side, side, 3), np.uint8)
    return images(encode_jpeg(pixels), (side, side, 3))


def rlds(path: Path, *, seed: int = 0, size: int = 3, said: Any = None, shards: int = 1, **columns: Any) -> str:
    """A dataset of three episodes, whose name is that of the folder."""
    episodes = [
        make_episode(
            6 + i,
            seed=seed + i,
            observation={"state": size},
            action=size,
            columns={name: make(6 + i) for name, make in columns.items()},
        )
        for i in range(3)
    ]
    data = write_dataset(path, episodes, name=path.name, shards=shards)
    if said is not None:
        (data / "meaning.json").write_text(json.dumps(said))
    return str(data)


def read(source: Source) -> list[Episode]:
    reader = EpisodeReader(source)
    return [e for s in source.splits for shard in s.shards for e in reader.read(s.name, Segment(shard))]


def open_merged(*paths: str, fields: str | None = None) -> Source:
    return open_source(list(paths), options=MergeOptions(merge_fields=fields))


def write(path: Path, *inputs: Any, **others: Any) -> str:
    file = path / "fields.yaml"
    file.write_text(yaml.safe_dump({**others, "inputs": list(inputs)}))
    return str(file)


@pytest.fixture(scope="module")
def robots(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    """LeRobot, ALOHA's HDF5, and RLDS."""
    pytest.importorskip("h5py")
    folder = tmp_path_factory.mktemp("robots")
    data = rlds(folder / "so", **{"observation/images/top": lambda n: camera(n, 32)})
    export(data, folder / "so101", "lerobot", fps=50)
    hdf5_robots.aloha(folder / "aloha", [6, 7])
    last = {"observation/image": lambda n: camera(n, 48)}
    return str(folder / "so101"), str(folder / "aloha"), rlds(folder / "bridge", seed=9, size=7, **last)


@pytest.fixture(scope="module")
def arranged(robots: tuple[str, str, str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file that arranges the values of the robots: the first ones are the same joints."""
    own = [
        {
            "connectors": [
                {
                    "ArrangeDimensions": {
                        "field": path,
                        "order": [*range(size), *[None] * (14 - size)],
                        "mask": f"mask/{path}",
                    }
                }
                for path in ("action", "observation/state")
            ]
        }
        for size in (3, 14, 7)
    ]
    return write(tmp_path_factory.mktemp("file"), *own)


def test_several_datasets_are_recognized_as_such(robots: tuple[str, ...], tmp_path: Path) -> None:
    found = recognize(robots)
    assert (found.format, found.why) == ("merged", "3 datasets")
    files = sorted(str(path) for path in Path(robots[1]).iterdir())
    assert recognize(files).format == "hdf5"  # the files of one dataset
    assert datasets_in([robots[0], *files]) == [robots[0], ",".join(files)]
    shards = [str(path) for path in shard_paths(Path(rlds(tmp_path / "a", shards=2)))]
    assert recognize(shards).format == "rlds"


def test_arranged_values_have_masks_and_fields_of_some_are_left_out(robots: tuple[str, ...], arranged: str) -> None:
    source = open_merged(*robots, fields=arranged)
    (note,) = (note for note in source.details.notes if note.startswith("fields that only some datasets have are left"))
    single = [open_source(path) for path in robots]
    alone = [read(one) for one in single]
    merged = read(source)
    assert len(merged) == sum(map(len, alone)) == 8
    for found, (which, wanted) in zip(merged, [(i, e) for i, es in enumerate(alone) for e in es], strict=True):
        assert not found.faults and found.metadata["source_dataset"] == single[which].dataset.encode()
        for path in ("action", "observation/state"):
            own = np.asarray(wanted.steps[path])
            values, mask = np.asarray(found.steps[path]), np.asarray(found.steps[f"mask/{path}"])
            assert values.shape == mask.shape == (len(wanted), 14)
            np.testing.assert_array_equal(values[:, : own.shape[1]], own)
            assert not values[:, own.shape[1] :].any()
            assert (mask == (np.arange(14) < own.shape[1])).all()
        for path in ("observation/images/top", "observation/image", "observation/image_cam_high"):
            assert path not in found.steps and path in note
        np.testing.assert_array_equal(found.steps["reward"], wanted.steps["reward"])


def test_a_proposed_file_is_used_as_it_is(robots: tuple[str, ...], tmp_path: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["inspect", *robots]) == 0
    (tmp_path / "fields.yaml").write_text(printed.getvalue())
    convert_here(",".join(robots), tmp_path / "out", to="lerobot", merge_fields=str(tmp_path / "fields.yaml"), fps=50)
    info = json.loads((tmp_path / "out" / "meta" / "info.json").read_text())
    assert (info["total_episodes"], info["fps"]) == (8, 50)
    features = {name: tuple(feature["shape"]) for name, feature in info["features"].items()}
    # Without names, nobody knows which joints are the same, so none are joined; and which cameras, so there are none.
    assert features["action"] == features["mask.action"] == features["observation.state"] == (3 + 14 + 7,)
    assert len([name for name in features if name.startswith("observation.image")]) == 0
    mask = [np.asarray(e.steps["mask/action"])[0] for e in read(open_source(str(tmp_path / "out")))]
    assert [np.flatnonzero(own)[[0, -1]].tolist() for own in mask] == [[0, 2]] * 3 + [[3, 16]] * 2 + [[17, 23]] * 3


ARM = ("pan", "lift", "elbow", "flex", "roll", "gripper")


def test_a_proposal_puts_no_gripper_into_an_elbow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = rlds(tmp_path / "small", said={"names": {"action": JOINTS}})
    arm = rlds(tmp_path / "arm", seed=9, size=6, said={"names": {"action": ARM, "observation/state": ARM}})
    assert main(["inspect", small, arm]) == 0
    file = tmp_path / "fields.yaml"
    file.write_text(capsys.readouterr().out)
    rlds_beam.convert([small, arm], tmp_path / "out", to="lerobot", merge_fields=str(file), fps=10)
    source = open_source(str(tmp_path / "out"))
    names = source.schema.steps["action"].names
    assert set(names) == set(ARM)
    for found, wanted in zip(read(source), read(open_source(small)) + read(open_source(arm)), strict=True):
        joints = JOINTS if np.asarray(wanted.steps["action"]).shape[1] == 3 else ARM
        values, mask = np.asarray(found.steps["action"]), np.asarray(found.steps["mask/action"])
        for i, name in enumerate(names):
            expected = np.asarray(wanted.steps["action"])[: len(found), joints.index(name)] if name in joints else 0
            np.testing.assert_array_equal(values[:, i], expected)
            assert (mask[:, i] == (name in joints)).all()


def test_pictures_of_several_sizes_keep_their_proportions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    white = {side: images(encode_jpeg(np.full((8, side, 32, 3), 255, np.uint8)), (side, 32, 3)) for side in (24, 32)}
    wide, square = (
        rlds(tmp_path / f"s{side}", seed=side, **{"observation/image": lambda n, s=side: white[s][:n]})
        for side in (24, 32)
    )
    with pytest.raises(UsageError, match=r"images of uint8\(24, 32, 3\) in s24.*ResizeImages gives images one size"):
        open_merged(wide, square)
    assert main(["inspect", wide, square]) == 0
    (tmp_path / "fields.yaml").write_text(capsys.readouterr().out)
    episodes = read(open_merged(wide, square, fields=str(tmp_path / "fields.yaml")))
    for i, episode in enumerate(episodes):
        pixels = episode.steps["observation/image"].decode()  # type: ignore[union-attr]
        assert pixels.shape[1:] == (24, 32, 3)
        assert (pixels[:, :, 6:26] > 200).all()
        assert (pixels[:, :, :2] < 50).all() == (i >= 3)  # a square of 24 x 24 between black borders


def test_an_instruction_is_kept_and_only_missing_ones_are_filled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = rlds(tmp_path / "said", language_instruction=lambda n: np.full(n, b"fold", object))
    mute = rlds(tmp_path / "mute", seed=9)
    with pytest.raises(UsageError, match=r"missing in mute/1.0.0: language_instruction"):
        open_merged(said, mute)
    source = open_merged(said, mute, fields=write(tmp_path, {}, {}))
    assert [e.steps["language_instruction"][0] for e in read(source)] == [b"fold"] * 3 + [b""] * 3
    assert not any("left out" in note for note in source.details.notes)
    assert any(note.startswith("no instruction in mute/1.0.0 (--task") for note in source.details.notes)
    flags = ["--to=rlds", f"--merge_fields={tmp_path / 'fields.yaml'}"]
    assert main(["convert", said, mute, str(tmp_path / "other"), *flags, "--task=wipe"]) == 2
    assert "has the task 'fold' already" in capsys.readouterr().err
    filled = write(tmp_path, {}, {"connectors": [{"FillLanguage": {"text": "wipe"}}]})
    episodes = read(open_merged(said, mute, fields=filled))
    assert [e.steps["language_instruction"][0] for e in episodes] == [b"fold"] * 3 + [b"wipe"] * 3


def test_a_program_gets_an_error_instead_of_a_proposal(robots: tuple[str, ...], capsys: Any) -> None:
    assert main(["inspect", *robots, "--json"]) == 2
    assert "cannot be merged" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_values_go_where_their_names_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = rlds(tmp_path / "one", said={"names": {"action": JOINTS, "observation/state": JOINTS}})
    turned = rlds(tmp_path / "turned", said={"names": {"action": JOINTS[::-1]}})
    with pytest.raises(UsageError, match=r"action: its values have different names \(pan, lift, gripper in one"):
        open_merged(one, turned)

    def open_as_proposed(*paths: str) -> Source:
        assert main(["inspect", *paths]) == 0
        (tmp_path / "fields.yaml").write_text(capsys.readouterr().out)
        return open_merged(*paths, fields=str(tmp_path / "fields.yaml"))

    source = open_as_proposed(one, turned)
    assert source.schema.steps["action"].names == JOINTS and "mask/action" not in source.schema.steps
    first, second = (np.asarray(read(source)[i].steps["action"]) for i in (0, 3))
    np.testing.assert_array_equal(first, second[:, ::-1])  # the same numbers, in the other order of joints
    joints = ["lift", "wrist", "pan", "gripper"]
    wider = rlds(tmp_path / "wider", size=4, said={"names": {"action": joints, "observation/state": joints}})
    with pytest.raises(UsageError, match=r"action: its values have different names \(pan, lift, gripper in one"):
        open_merged(one, wider)
    both = open_as_proposed(one, wider)
    assert both.schema.steps["action"].names == (*JOINTS, "wrist")
    episodes = read(both)
    assert np.asarray(episodes[0].steps["mask/action"])[0].tolist() == [True, True, True, False]
    assert np.asarray(episodes[3].steps["mask/action"]).all()
    own = np.asarray(read(open_source(wider))[0].steps["action"])
    np.testing.assert_array_equal(np.asarray(episodes[3].steps["action"]), own[:, [2, 0, 3, 1]])


def test_values_that_are_changes_are_added_as_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"delta_{name}" for name in JOINTS]
    one = rlds(tmp_path / "one", said={"names": {"action": names}})
    wider = rlds(tmp_path / "wider", size=4, said={"names": {"action": ["delta_wrist", *names]}})
    assert main(["inspect", one, wider]) == 0
    (tmp_path / "fields.yaml").write_text(capsys.readouterr().out)
    action = open_merged(one, wider, fields=str(tmp_path / "fields.yaml")).schema.steps["action"]
    assert action.names == (*names, "delta_wrist")
    assert {value.relative_to for value in action.dimensions} == {"unknown"}


def degrees(path: Path) -> str:
    """The numbers of `rlds(path)` in degrees."""
    episodes = [make_episode(6 + i, seed=i, observation={"state": 3}, action=3) for i in range(3)]
    scaled = [
        episode.with_columns(
            {p: np.asarray(episode.steps[p]) * np.float32(57.29578) for p in ("action", "observation/state")}
        )
        for episode in episodes
    ]
    return str(write_dataset(path, scaled, name=path.name))


def test_other_units_are_refused_until_they_are_converted(tmp_path: Path) -> None:
    radians, other = rlds(tmp_path / "radians"), degrees(tmp_path / "degrees")
    with pytest.raises(UsageError, match=r"action: other units\? up to .* in radians/1.0.0, up to .* in degrees/1.0.0"):
        open_merged(radians, other)
    assert open_merged(radians, other, fields=write(tmp_path, {}, {}, same_units=True)).episodes == 6
    scales = [{"ScaleDimensions": {"field": name, "factor": 1 / 57.29578}} for name in ("action", "observation/state")]
    episodes = read(open_merged(radians, other, fields=write(tmp_path, {}, {"connectors": scales})))
    for first, second in zip(episodes[:3], episodes[3:], strict=True):
        np.testing.assert_allclose(first.steps["action"], second.steps["action"], rtol=1e-5)


def test_a_file_names_splits_weights_and_formats(tmp_path: Path) -> None:
    one, two = rlds(tmp_path / "one"), rlds(tmp_path / "two", seed=5)
    file = write(tmp_path, {"split": "train", "weight": 3}, {"from": "rlds"})
    assert open_merged(one, two, fields=file).episodes == 6
    with pytest.raises(UsageError, match="slices of splits cannot be merged"):
        open_merged(one, two, fields=write(tmp_path, {"split": "train[1:]"}, {}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("inputs: [{}, {}, {}]", "3 inputs for 2 datasets"),
        ("fields: common\ninputs: [{}, {}]", "unknown field `fields`"),
        (
            "inputs: [{}, {connectors: [ArrangeDimensions: {field: action, order: [0, 1, 2], mask: mask/action}]}]",
            "missing in a/1.0.0: mask/action .*ArrangeDimensions adds masks",
        ),
        ("inputs: [{wieght: 1}, {}]", "unknown field `wieght`"),
        ("inputs: [{connectors: [RenameFields: {fields: {x: y}}]}, {}]", "RenameFields: there is no field x"),
        ("inputs: [{connectors: [{Normalize: {fields: [action]}}]}, {}]", "nor be fitted to the data"),
        ("inputs: [{connectors: [AddObservationsFromEpisodesToBatch]}, {}]", "neither add columns"),
        ("inputs: [{options: {profile: aloha}}, {}]", "unknown option --profile"),
        ("inputs: [{input: other}, {}]", r"inputs\[0\]: its input is other, not .*: name the datasets in the file's"),
        ("inputs: [{}, {connectors: {names: {action: [x]}, connectors: []}}]", "action"),
    ],
)
def test_a_wrong_file_is_one_line(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "fields.yaml").write_text(content)
    with pytest.raises(UsageError, match=message):
        open_merged(rlds(tmp_path / "a"), rlds(tmp_path / "b"), fields=str(tmp_path / "fields.yaml"))


def test_what_is_no_dataset_is_named(tmp_path: Path) -> None:
    data = rlds(tmp_path / "a")
    with pytest.raises(UsageError, match="gone"):
        open_merged(data, str(tmp_path / "gone"))
    with pytest.raises(UsageError, match="other: No such file"):
        open_merged(data, data, fields="other")


def test_an_episode_that_a_connector_refuses_is_set_aside(tmp_path: Path) -> None:
    rotation = {"ConvertRotation": {"field": "action", "from": "axis_angle", "to": "matrix"}}
    episodes = [make_episode(5, seed=i, action=3) for i in range(3)]
    bad = episodes[1].with_columns({"action": np.asarray(episodes[1].steps["action"]) * np.float32(np.inf)})
    data = write_dataset(tmp_path / "a", [episodes[0], bad, episodes[2]], name="a")
    file = write(tmp_path, {"connectors": [rotation]}, {"connectors": [rotation]})
    other = write_dataset(tmp_path / "b", [make_episode(5, seed=9 + i, action=3) for i in range(3)], name="b")
    done = rlds_beam.convert([data, other], tmp_path / "out", to="rlds", merge_fields=file)
    assert (done.report.items_written, done.report.rejected) == (5, 1)


def test_damage_in_one_of_the_formats_costs_one_record(robots: tuple[str, ...], tmp_path: Path) -> None:
    data = rlds(tmp_path / "damaged", seed=20)
    (shard,) = shard_paths(Path(data))
    flip_byte(shard, 1)
    file = write(tmp_path, {}, {})
    source = open_merged(robots[0], data, fields=file)
    faulty = [episode for episode in read(source) if episode.faults]
    assert len(faulty) == 1 and f"{shard}, bytes " in str(faulty[0].faults[0])
    done = rlds_beam.convert([robots[0], data], tmp_path / "out", to="rlds", merge_fields=file)
    assert (done.report.items_written, done.report.rejected) == (5, 1)


def test_the_bytes_are_the_same_for_any_number_of_parts_and_workers(
    robots: tuple[str, ...], arranged: str, tmp_path: Path
) -> None:
    for name, options in (("one", {}), ("two", {"workers": 2})):
        rlds_beam.convert(robots, tmp_path / name, to="rlds", merge_fields=arranged, shards=3, **options)
    files = [{p.name: p.read_bytes() for p in (tmp_path / name).glob("*.tfrecord*")} for name in ("one", "two")]
    assert files[0] == files[1] and len(files[0]) == 3


def test_videos_of_equal_coding_are_copied(tmp_path: Path) -> None:
    pytest.importorskip("av")
    data, _ = write_moving_data(tmp_path / "data")
    for name in ("a", "b"):
        convert_here(data, tmp_path / name, to="lerobot", fps=10, images="video")
    order = {"ArrangeDimensions": {"field": "action", "order": [0, None]}}
    file = write(tmp_path, *[{"connectors": [order]}] * 2)
    convert_here(f"{tmp_path / 'a'},{tmp_path / 'b'}", tmp_path / "out", to="lerobot", merge_fields=file)
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert '"copied"' in json.dumps(plan)
    wanted = [episode for name in "ab" for episode in read(open_source(str(tmp_path / name)))]
    for found, episode in zip(read(open_source(str(tmp_path / "out"))), wanted, strict=True):
        for path in (path for path, column in episode.steps.items() if hasattr(column, "decode")):
            np.testing.assert_array_equal(found.steps[path].decode(), episode.steps[path].decode())  # type: ignore[union-attr]


def test_pixels_and_coded_images_are_refused(tmp_path: Path) -> None:
    pixels = np.zeros((6, 24, 24, 3), np.uint8)
    raw = make_episode(6, observation={"state": 2}, columns={"observation/image": pixels})
    coded = make_episode(6, observation={"state": 2}, columns={"observation/image": camera(6, 24)})
    one, two = (str(write_dataset(tmp_path / n, [e], name=n)) for n, e in (("raw", raw), ("coded", coded)))
    with pytest.raises(
        UsageError, match="observation/image: pixels in some of the datasets, PNG or JPEG images in others"
    ):
        open_merged(one, two)


def calibrated(path: Path, frame: str = "camera", *, lens: int = 5, **more: str) -> str:
    """A dataset whose camera has a calibration, as `--from=ros2` reads it."""
    about = {"intrinsics": np.float64([30, 0, 12, 0, 30, 12, 0, 0, 1]), "distortion": np.zeros(lens)}
    about |= {name: text.encode() for name, text in {"frame_id": frame, **more}.items()}
    metadata = {f"observation/front_{name}": value for name, value in about.items()}
    seed = len(path.name)
    columns = {"observation/front": camera(6, 24)}
    episode = make_episode(6, seed=seed, observation={"state": 3}, action=3, columns=columns, metadata=metadata)
    return str(write_dataset(path, [episode], name=path.name))


def test_calibrations_are_kept_and_compared(tmp_path: Path) -> None:
    front = "episode_metadata/observation/front"
    one = calibrated(tmp_path / "one", base="table")
    same = open_merged(one, calibrated(tmp_path / "other", base="table"))
    assert not any(front in note for note in same.details.notes)
    moved = open_merged(one, calibrated(tmp_path / "moved", "cam_2", base="table"))
    said = f"{front}_frame_id: camera in one/1.0.0, cam_2 in moved/1.0.0: each episode keeps its own"
    assert [note for note in moved.details.notes if front in note] == [said]
    assert [episode.metadata[f"{front}_frame_id"] for episode in read(moved)] == [b"camera", b"cam_2"]
    with pytest.raises(
        UsageError, match=rf"{front}_distortion: float64\(5,\) in one/1.0.0, float64\(8,\) in fisheye/1"
    ):
        open_merged(one, calibrated(tmp_path / "fisheye", lens=8, base="table"))


def test_a_calibration_that_only_some_datasets_have_is_refused_or_left_out(tmp_path: Path) -> None:
    one, bare = calibrated(tmp_path / "one"), rlds(tmp_path / "bare", **{"observation/front": lambda n: camera(n, 24)})
    front = "episode_metadata/observation/front"
    with pytest.raises(UsageError, match=rf"missing in bare/1.0.0: .*{front}_intrinsics"):
        open_merged(one, bare)
    common = open_merged(one, bare, fields=write(tmp_path, {}, {}))
    assert f"{front}_intrinsics" not in common.schema.metadata
    assert any(note.startswith("fields that only some datasets have are left out") for note in common.details.notes)


def test_a_mixture_of_the_file(robots: tuple[str, ...], tmp_path: Path) -> None:
    pad = {"ArrangeDimensions": {"field": "action", "order": [0, 1, 2, *[None] * 11], "mask": "mask/action"}}
    whole = {"ArrangeDimensions": {"field": "action", "order": [*range(14)], "mask": "mask/action"}}
    file = write(
        tmp_path,
        {"input": robots[0], "weight": 2, "connectors": [pad]},
        {"input": robots[1], "from": "hdf5", "options": {"profile": "aloha"}, "connectors": [whole]},
    )
    batch = next(iter(rlds_beam.mix_batches(file, 64, columns=["action", "mask/action"])))
    assert batch["action"].shape == batch["mask/action"].shape == (64, 14)
    assert 0.5 < (batch["mask/action"].sum(axis=1) == 3).mean() < 0.85
    with pytest.raises(UsageError, match=r"inputs\[0\] has no input"):
        rlds_beam.mix_batches(write(tmp_path, {}), 8)


def test_only_void_last_actions_are_left_out_of_rows(tmp_path: Path) -> None:
    real = rlds(tmp_path / "real", said={"last_action": "real"})
    void = rlds(tmp_path / "void", seed=5, said={"last_action": "void"})
    for to in ("lerobot", "zarr"):
        done = rlds_beam.convert([real, void], tmp_path / to, to=to, **({"fps": 10} if to == "lerobot" else {}))
        assert "last actions are void in some: real in real/1.0.0, void in void/1.0.0" in str(done)
        lengths = [len(row["steps/action"]) for row in rlds_beam.open_dataset(tmp_path / to)]
        assert lengths == [6, 7, 8, 5, 6, 7]
    steps = rlds_beam.open_dataset([real, void], unit="steps")
    assert sum(len(batch["action"]) for batch in steps.batches(8, drop_last=False)) == 39


def test_a_name_given_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "twice.yaml").write_text("same_units: true\nsame_units: false\ninputs: [{}, {}]\n")
    with pytest.raises(UsageError, match="line 2: same_units is given twice"):
        open_merged(rlds(tmp_path / "a"), rlds(tmp_path / "b"), fields=str(tmp_path / "twice.yaml"))


def test_one_value_in_other_units_is_said(tmp_path: Path) -> None:
    episode = make_episode(6, observation={"state": 3}, action=3)
    action = np.asarray(episode.steps["action"]) * np.float32([1, 1, 100])
    other = str(write_dataset(tmp_path / "b", [episode.with_columns({"action": action})], name="b"))
    notes = open_merged(rlds(tmp_path / "a"), other).details.notes
    assert any(note.startswith("action[2]: up to ") and "check that the units are the same" in note for note in notes)


def test_units_are_compared_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also if the vectors have other lengths, or other orders."""
    one = rlds(tmp_path / "one", said={"names": {"action": JOINTS}})
    wider = make_episode(6, observation={"state": 3}, action=4)
    action = np.asarray(wider.steps["action"]) * np.float32(57.29578)
    other = str(write_dataset(tmp_path / "wider", [wider.with_columns({"action": action})], name="wider"))
    (Path(other) / "meaning.json").write_text(json.dumps({"names": {"action": ["wrist", *JOINTS[::-1]]}}))
    assert main(["inspect", one, other]) == 0
    (tmp_path / "fields.yaml").write_text(capsys.readouterr().out)
    with pytest.raises(UsageError, match=r"action: other units\? up to .* in one/1.0.0, up to .* in wider/1.0.0"):
        open_merged(one, other, fields=str(tmp_path / "fields.yaml"))


def test_units_are_compared_without_actions(tmp_path: Path) -> None:
    for name, factor in (("radians", 1.0), ("degrees", 57.29578)):
        made = make_episode(6, observation={"state": 3}, action=3)
        state = np.asarray(made.steps["observation/state"]) * np.float32(factor)
        source = write_dataset(tmp_path / f"with_{name}", [made.with_columns({"observation/state": state})], name=name)
        rlds_beam.convert(source, tmp_path / name, to="lerobot", fps=10, map=["-action"])
    with pytest.raises(UsageError, match=r"observation/state: other units\? up to"):
        open_merged(str(tmp_path / "radians"), str(tmp_path / "degrees"))


def test_differences_are_refused_by_field(tmp_path: Path) -> None:
    one = rlds(tmp_path / "one", count=lambda n: np.zeros(n, np.int32), more=lambda n: np.zeros(n, np.float32))
    two = rlds(tmp_path / "two", seed=5, count=lambda n: np.zeros(n, np.int64))
    with pytest.raises(UsageError, match=r"missing in two/1.0.0: more \(a file leaves such"):
        open_merged(one, two)
    file = write(tmp_path, {}, {})
    assert open_merged(one, two, fields=file).schema.steps["count"].dtype == "int64"
    other = rlds(tmp_path / "other", size=4, count=lambda n: np.zeros(n, np.float32))
    with pytest.raises(UsageError) as refused:
        open_merged(one, other, fields=file)
    for text in (
        "observation/state: float32(3,) in one/1.0.0, float32(4,) in other",
        "count: int32() in one/1.0.0, float32() in",
    ):
        assert text in str(refused.value)
    with pytest.raises(UsageError, match="expected two or more datasets"):
        open_source([one], from_="merged")


def test_a_dataset_without_splits_is_refused(tmp_path: Path) -> None:
    """Otherwise, its episodes would be missing without a word."""
    one, other = rlds(tmp_path / "one"), rlds(tmp_path / "other", seed=5)
    info = Path(other) / "dataset_info.json"
    info.write_text(info.read_text().replace('"splits"', '"parts"'))
    with pytest.raises(UsageError, match=f"{other} has no episodes: it has no splits"):
        open_merged(one, other)
