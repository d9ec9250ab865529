"""What users say of the data: names of dimensions, the robot, and tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hdf5_robots
import numpy as np
import pytest
from exchanging import export

import rlds_beam
from rlds_beam.cli.main import main
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.testing import make_episode, write_dataset

JOINTS = ["shoulder.pos", "elbow.pos", "gripper.pos"]
TEXT = "language_instruction"


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    episodes = [make_episode(6, seed=i, observation={"state": 3}, action=3) for i in range(4)]
    return Path(write_dataset(tmp_path_factory.mktemp("arm"), episodes))


def info_of(directory: Path) -> dict[str, Any]:
    return dict(json.loads((directory / "meta" / "info.json").read_text()))


def texts_of(directory: Path, path: str = TEXT) -> list[set[str]]:
    rows = rlds_beam.open_dataset(directory)
    return [{text.decode() for text in rows[i][f"steps/{path}"].tolist()} for i in range(len(rows))]


def keys_of(source: Path) -> list[str]:
    table = rlds_beam.check(source).table
    return [str(key) for key in table["key"].to_pylist()]


def test_names_are_given_as_a_list_a_file_or_a_mapping(arm: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("\n".join(JOINTS) + "\n")
    (tmp_path / "names.yaml").write_text(json.dumps(JOINTS))
    (tmp_path / "connectors.yaml").write_text(json.dumps({"names": {"action": JOINTS}, "connectors": []}))
    listed = ",".join(JOINTS)
    for number, given in enumerate(
        [
            {"names": [f"action={listed}"]},
            {"names": f"action={tmp_path / 'names.txt'}"},
            {"names": {"action": JOINTS}},
            {"names": {"action": tmp_path / "names.yaml"}},
            {"connectors": str(tmp_path / "connectors.yaml")},
        ]
    ):
        output = tmp_path / str(number)
        export(arm, output, "lerobot", fps=10, robot_type="so101_follower", **given)
        info = info_of(output)
        assert (info["features"]["action"]["names"], info["robot_type"]) == (JOINTS, "so101_follower"), given


def test_flags_give_names_of_several_fields(arm: Path, tmp_path: Path) -> None:
    listed = ",".join(JOINTS)
    flags = [f"--names=action={listed}", f"--names=observation/state={listed}", "--robot_type=arm", "--task=fold it"]
    assert main(["convert", str(arm), str(tmp_path / "out"), "--to=lerobot", "--fps=10", *flags]) == 0
    features = info_of(tmp_path / "out")["features"]
    assert [features[name]["names"] for name in ("action", "observation.state")] == [JOINTS, JOINTS]
    assert texts_of(tmp_path / "out") == [{"fold it"}] * 4


class Cut:
    def __call__(self, batch: Any) -> Any:
        episodes = (e.with_columns({"action": np.asarray(e.steps["action"])[:, :2] * 2}) for e in batch.episodes)
        return batch.replace(episodes=tuple(episodes))


def test_names_of_what_connectors_return(arm: Path, tmp_path: Path) -> None:
    export(arm, tmp_path / "out", "lerobot", fps=10, connectors=[Cut()], names={"action": ["x", "y"]})
    assert info_of(tmp_path / "out")["features"]["action"]["names"] == ["x", "y"]
    with pytest.raises(UsageError, match=r"4 names, but action.*has 2 values"):
        rlds_beam.convert(arm, tmp_path / "two", to="lerobot", fps=10, connectors=[Cut()], names={"action": [*"wxyz"]})


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("action=x,y", "2 names, but action: float32\\(3\\) has 3 values"),
        ("reward=x", "no vector"),
        (["action=x,y,z", "action=a,b,c"], "given twice"),
    ],
)
def test_names_that_do_not_fit_are_refused(arm: Path, tmp_path: Path, names: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        rlds_beam.convert(arm, tmp_path / "out", names=names)
    assert "\n" not in str(error.value)


def test_what_contradicts_the_data_is_refused(arm: Path, tmp_path: Path) -> None:
    said = {"names": {"action": JOINTS}, "robot_type": "so101"}
    export(arm, tmp_path / "named", "rlds", **said)
    rlds_beam.convert(tmp_path / "named", tmp_path / "same", to="rlds", **said)  # the same is no contradiction
    with pytest.raises(UsageError, match=r"--robot_type=aloha: .* says so101: leave it out") as error:
        rlds_beam.convert(tmp_path / "named", tmp_path / "out", to="rlds", robot_type="aloha")
    assert "\n" not in str(error.value)
    (tmp_path / "names.json").write_text(json.dumps({"names": {"action": [*"xyz"]}, "connectors": []}))
    (tmp_path / "edited.json").write_text(
        json.dumps({"names": {"action": [*"xyz"]}, "connectors": [{"DropFields": {"fields": ["reward"]}}]})
    )
    for given in (
        {"names": {"action": [*"xyz"]}},
        {"connectors": str(tmp_path / "names.json")},
        {"connectors": str(tmp_path / "edited.json")},
    ):
        with pytest.raises(UsageError, match=r"action: value 0 is shoulder.pos in the data, not x: .*RenameDimensions"):
            rlds_beam.convert(tmp_path / "named", tmp_path / "out", to="rlds", **given)


def test_a_robot_that_a_name_or_a_layout_suggests_can_be_corrected(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    hdf5_robots.aloha(tmp_path / "aloha", [4])
    bridge = write_dataset(tmp_path / "bridge", [make_episode(4)], name="bridge_dataset")
    for data in (tmp_path / "aloha", bridge):
        rlds_beam.convert(data, tmp_path / "out" / data.name, to="rlds", robot_type="mine")
        assert rlds_beam.open_source(str(tmp_path / "out" / data.name)).robot == "mine"
    hdf5_robots.robomimic(tmp_path / "robomimic", [4])
    with pytest.raises(UsageError, match=r"--robot_type=mine: \S+ says Panda"):
        rlds_beam.convert(tmp_path / "robomimic", tmp_path / "no", to="rlds", robot_type="mine")


def test_tasks_by_episode(arm: Path, tmp_path: Path) -> None:
    keys = keys_of(arm)
    texts = [f"task {i}" for i in range(4)]
    table = dict(zip(keys, texts, strict=True))
    files = {
        "a.csv": "key,task\n" + "".join(f'{key},"{text}"\n' for key, text in table.items()),
        "b.jsonl": "".join(json.dumps({"key": key, "task": text}) + "\n" for key, text in table.items()),
        "c.yaml": json.dumps(table),
        "d.json": json.dumps(table),
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
        export(arm, tmp_path / f"{name}.out", "rlds", task_file=tmp_path / name)
        assert texts_of(tmp_path / f"{name}.out") == [{text} for text in texts], name


def test_keys_that_are_missing_are_named(arm: Path, tmp_path: Path) -> None:
    keys = keys_of(arm)
    unknown = keys[0].partition("@")[0] + "@99999999"
    (tmp_path / "some.csv").write_text(f"{keys[0]},first\n{unknown},other\n")
    with pytest.raises(RldsBeamError, match=f"{keys[1]} has no task, and .*some.csv has no text for it"):
        rlds_beam.convert(arm, tmp_path / "out", to="rlds", task_file=tmp_path / "some.csv")
    rlds_beam.convert(arm, tmp_path / "all", to="rlds", task_file=tmp_path / "some.csv", task="the rest")
    assert texts_of(tmp_path / "all") == [{"first"}, *[{"the rest"}] * 3]


def test_tasks_fill_only_what_is_missing(arm: Path, tmp_path: Path) -> None:
    export(arm, tmp_path / "a", "rlds", task="fold it")
    export(tmp_path / "a", tmp_path / "b", "rlds", task="fold it")  # the same one is no contradiction
    assert texts_of(tmp_path / "b") == [{"fold it"}] * 4
    with pytest.raises(RldsBeamError, match="has the task 'fold it' already") as error:
        rlds_beam.convert(tmp_path / "a", tmp_path / "c", to="rlds", task="open it")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "key,task\nnonsense,x\n", "not the key of an episode"),
        ("a.jsonl", "{", "line 1"),
        ("a.csv", "d/1.0.0:train:00000@0,x\nd/1.0.0:train:00000@0,y\n", "line 2: .* is listed twice"),
        ("a.csv", "d/1.0.0:train:00000@0,x\n", "lists episodes of d/1.0.0"),
    ],
)
def test_files_of_tasks_that_are_none_are_refused(
    arm: Path, tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=message) as error:
        rlds_beam.convert(arm, tmp_path / "out", to="rlds", task_file=tmp_path / name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("times", "rejected"),
    [
        (np.arange(9) * 0.02, True),
        (np.arange(9, dtype=np.int64) * 20_000_000, True),
        (np.arange(9) * 0.04, False),
        (np.arange(9) * 40.0, False),
        (np.arange(9), False),
        (np.arange(9) * 3, False),
        (np.zeros(9), False),
    ],
)
def test_timestamps_that_contradict_the_rate_are_refused(times: Any, rejected: bool, tmp_path: Path) -> None:
    episode = make_episode(9, observation={"state": 3}, columns={"observation/timestamp": times})
    source = write_dataset(tmp_path / "data", [episode])
    report = export(source, tmp_path / "out", "lerobot", fps=25, allow_empty=True)
    assert report.rejected == rejected
    if rejected:
        assert "its times are 50 Hz, but the dataset is written with 25 Hz" in str(report.rules["not_representable"])
        left_out = {"to": "lerobot", "fps": 25, "map": "-observation/timestamp"}
        assert rlds_beam.convert(source, tmp_path / "without", **left_out).report.rejected == 0


@pytest.fixture
def recorded_at_25(tmp_path: Path) -> Path:
    """A dataset that says 50 Hz, and whose timestamps say 25 Hz."""
    times = np.arange(9, dtype=np.float32) / 25
    columns = {"observation/timestamp": times, "observation/frame_index": np.arange(9) * 40}
    episodes = [make_episode(9, seed=i, observation={"state": 3}, columns=columns) for i in range(3)]
    source = write_dataset(tmp_path / "data", episodes)
    (source / "meaning.json").write_text('{"fps": 50}')
    return source


@pytest.mark.parametrize("command", ["check", "report", "convert"])
def test_every_command_says_that_timestamps_contradict_the_rate(
    command: str, recorded_at_25: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = {"convert": [str(tmp_path / "out"), "--to=rlds"], "report": [f"--output={tmp_path / 'report.html'}"]}
    assert main([command, str(recorded_at_25), *output.get(command, [])]) == 0
    said = " ".join(capsys.readouterr().out.split())
    if command == "report":
        said = (tmp_path / "report.html").read_text()
    assert "rate_mismatch" in said and "observation/timestamp: its times are 25 Hz, but the data says 50 Hz" in said


def test_tasks_by_the_names_of_files_with_one_episode(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    hdf5_robots.aloha(tmp_path / "aloha", [4, 5])
    (tmp_path / "files.csv").write_text("episode,task\nepisode_1.hdf5,second\nepisode_0.hdf5,first\n")
    export(tmp_path / "aloha", tmp_path / "a", "rlds", task_file=tmp_path / "files.csv")
    assert texts_of(tmp_path / "a") == [{"first"}, {"second"}]
    hdf5_robots.aloha(tmp_path / "days" / "b", [4])
    hdf5_robots.aloha(tmp_path / "days" / "a", [5])
    (tmp_path / "days.json").write_text(json.dumps({f"{day}/episode_0.hdf5": day for day in "ba"}))
    export(tmp_path / "days", tmp_path / "both", "rlds", task_file=tmp_path / "days.json")
    assert texts_of(tmp_path / "both") == [{"a"}, {"b"}]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "episode_7.hdf5",
            "is not the key of an episode, nor the name of a file with one episode; did you mean episode_",
        ),
        ("pisode_0.hdf5", "'pisode_0.hdf5' is not the key of an episode"),
        ("episode_0.hdf5", "'episode_0.hdf5' is the name of 2 files: write more of its path"),
        ("a/episode_0.hdf5", "listed twice, also as"),
    ],
)
def test_names_that_no_file_or_several_have_are_refused(tmp_path: Path, name: str, message: str) -> None:
    pytest.importorskip("h5py")
    for day in "ab":
        hdf5_robots.aloha(tmp_path / "data" / day, [4])
    table = {name: "x", **({"data/1.0.0:train:00000@0": "y"} if "twice" in message else {})}
    (tmp_path / "tasks.json").write_text(json.dumps(table))
    with pytest.raises(UsageError, match=message) as error:
        rlds_beam.convert(tmp_path / "data", tmp_path / "out", to="rlds", task_file=tmp_path / "tasks.json")
    assert "\n" not in str(error.value)
