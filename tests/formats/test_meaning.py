"""What numbers mean survives a conversion: names of dimensions, the rate, the robot."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import hdf5_robots
import numpy as np
import pytest
from envlogger_data import write_log
from exchanging import export
from small_datasets import minari_hdf5

import rlds_beam
from rlds_beam.connectors import Resample, SubsampleSteps
from rlds_beam.connectors.base import Batch
from rlds_beam.errors import UsageError
from rlds_beam.formats.registry import OUTPUTS
from rlds_beam.recording.environments import as_environment, make_environment
from rlds_beam.recording.spaces import from_spec
from rlds_beam.testing import make_episode, write_dataset

JOINTS = ["shoulder_pan.pos", "shoulder_lift.pos", "elbow_flex.pos", "wrist_flex.pos", "wrist_roll.pos", "gripper.pos"]
ACTION, STATE = "action", "observation.state"


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LeRobot dataset as LeRobot writes it for an SO-101."""
    directory = tmp_path_factory.mktemp("arm")
    episodes = [make_episode(20, seed=i, observation={"state": 6}, action=6) for i in range(3)]
    source = write_dataset(directory / "rlds", episodes)
    added = ("reward", "discount", "is_first", "is_last", "is_terminal")
    export(source, directory / "arm", "lerobot", fps=30, map=tuple(f"-{name}" for name in added))
    (directory / "arm" / "meta" / "rlds_beam.json").unlink()
    info = read_info(directory / "arm")
    info["robot_type"] = "so101_follower"
    for name in (ACTION, STATE):
        info["features"][name]["names"] = JOINTS
    (directory / "arm" / "meta" / "info.json").write_text(json.dumps(info))
    return directory / "arm"


@pytest.fixture(scope="module")
def arm_rlds(arm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as RLDS."""
    output = tmp_path_factory.mktemp("rlds") / "arm"
    export(arm, output, "rlds")
    return output


def read_info(directory: Path) -> dict[str, Any]:
    return dict(json.loads((directory / "meta" / "info.json").read_text()))


def names(directory: Path, feature: str) -> Any:
    return read_info(directory)["features"][feature]["names"]


def test_the_older_forms_of_names_are_read(arm: Path, tmp_path: Path) -> None:
    info = read_info(arm)
    for key, given, known in (
        ("motors", {"motors": JOINTS}, JOINTS),
        ("one", ["joints"], ()),
        ("null", None, ()),
        ("ours", [f"action_{i}" for i in range(6)], ()),
        ("not_text", [*JOINTS[:5], 7], ()),
    ):
        (tmp_path / key / "meta").mkdir(parents=True)
        for file in arm.rglob("*.parquet"):
            copy = tmp_path / key / file.relative_to(arm)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
        info["features"][ACTION]["names"] = given
        (tmp_path / key / "meta" / "info.json").write_text(json.dumps(info))
        source = rlds_beam.open_source(str(tmp_path / key), from_="lerobot")
        assert source.schema.steps["action"].names == tuple(known), key


@pytest.mark.parametrize("resample", [False, True])
@pytest.mark.parametrize("kind", ["lerobot", "hdf5", "merged"])
def test_the_rate_of_fewer_steps_is_lower(arm: Path, tmp_path: Path, kind: str, resample: bool) -> None:
    if kind == "hdf5":
        pytest.importorskip("h5py")
        hdf5_robots.aloha(tmp_path / "data", [6, 7])
    data: dict[str, Any] = {
        "lerobot": arm,
        "hdf5": tmp_path / "data",
        "merged": [say(tmp_path / "a", SAID), say(tmp_path / "bb", SAID)],
    }
    rate = 15 if kind == "lerobot" else 25
    connector = Resample(fps=rate, compare_ranges=False) if resample else SubsampleSteps(every=2)
    robot = {"lerobot": "so101_follower", "hdf5": "mobile_aloha", "merged": "arm"}[kind]
    options: Any = {"from_": kind, "connectors": [connector], "robot_type": robot}
    with pytest.raises(UsageError, match=r"the data is (15|25) Hz"):
        rlds_beam.convert(data[kind], tmp_path / "refused", to="lerobot", fps=30, **options)
    export(data[kind], tmp_path / "lerobot", "lerobot", **options)
    export(data[kind], tmp_path / "rlds", "rlds", **options)
    info = read_info(tmp_path / "lerobot")
    assert (info["fps"], info["robot_type"]) == (rate, robot)
    meaning = json.loads((tmp_path / "rlds" / "meaning.json").read_text())
    assert (meaning["fps"], meaning["robot"]) == (rate, robot)


class Swap:
    """Moves the gripper to the front, and leaves the last joint out."""

    def __call__(self, batch: Batch) -> Batch:
        order = [5, 0, 1, 2, 3]
        return batch.replace(
            episodes=tuple(e.with_columns({"action": np.asarray(e.steps["action"])[:, order]}) for e in batch.episodes)
        )


class Scale:
    def __call__(self, batch: Batch) -> Batch:
        return batch.replace(
            episodes=tuple(e.with_columns({"action": np.clip(e.steps["action"] * 2, 0, 1)}) for e in batch.episodes)
        )


def test_names_follow_dimensions_that_connectors_move(arm: Path, tmp_path: Path) -> None:
    export(arm, tmp_path / "out", "lerobot", connectors=[Swap()])
    assert names(tmp_path / "out", ACTION) == [JOINTS[i] for i in (5, 0, 1, 2, 3)]
    assert names(tmp_path / "out", STATE) == JOINTS


def test_names_of_changed_values_are_left_out_and_named(arm: Path, tmp_path: Path) -> None:
    done = rlds_beam.convert(arm, tmp_path / "out", to="lerobot", connectors=[Scale()])
    assert names(tmp_path / "out", ACTION) == [f"action_{i}" for i in range(6)]
    assert names(tmp_path / "out", STATE) == JOINTS
    assert "the connectors change action, so the names of its values are left out" in str(done)


def test_a_cast_to_float32_keeps_the_names(tmp_path: Path) -> None:
    observation = {"state": np.linspace(0, 1, 12).reshape(6, 2)}
    episode = make_episode(6).with_columns({"action": observation["state"], "observation": observation["state"]})
    source = write_dataset(tmp_path, [episode])
    done = rlds_beam.convert(source, tmp_path / "named", to="lerobot", fps=10)
    said = "float64   action, observation; --connectors=CastFields stores float32"
    assert said in str(done)
    assert said in str(rlds_beam.convert(source, tmp_path / "zarr", to="zarr"))
    info = read_info(tmp_path / "named")
    assert info["features"][ACTION]["dtype"] == "float64"
    info["features"][ACTION]["names"] = ["x", "y"]
    (tmp_path / "named" / "meta" / "info.json").write_text(json.dumps(info))
    done = rlds_beam.convert(tmp_path / "named", tmp_path / "out", to="lerobot", connectors="CastFields")
    info = read_info(tmp_path / "out")
    assert [info["features"][name]["dtype"] for name in (ACTION, STATE)] == ["float32", "float32"]
    assert names(tmp_path / "out", ACTION) == ["x", "y"] and "left out" not in str(done)
    assert "float64" not in str(done)


def test_aloha_names_its_joints_and_its_robot(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    hdf5_robots.aloha(tmp_path / "data", [20, 20])
    export(tmp_path / "data", tmp_path / "out", "lerobot", map=("-observation/image_cam_low",))
    info = read_info(tmp_path / "out")
    assert (info["fps"], info["robot_type"]) == (50, "aloha")
    for feature in (ACTION, STATE):
        joints = info["features"][feature]["names"]
        assert (len(joints), joints[0], joints[6], joints[13]) == (14, "left_waist", "left_gripper", "right_gripper")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"names": {"action": ["x"]}}, "action has 1 names"),
        ({"fps": -1}, "fps"),
        ([], "meaning.json"),
    ],
)
def test_a_damaged_meaning_is_refused(arm_rlds: Path, tmp_path: Path, content: Any, message: str) -> None:
    shutil.copytree(arm_rlds, tmp_path / "rlds")
    (tmp_path / "rlds" / "meaning.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=message):
        rlds_beam.convert(tmp_path / "rlds", tmp_path / "out", to="rlds")


@pytest.mark.parametrize(("choice", "stored"), [("drop", "real"), ("keep", "void")])
def test_zarr_says_what_its_last_rows_are(tmp_path: Path, choice: str, stored: str) -> None:
    data = write_dataset(tmp_path / "data", [make_episode(5, observation={"state": 3}, action=2)])
    (data / "meaning.json").write_text('{"last_action": "void"}')
    export(data, tmp_path / "out", "zarr", last_step=choice)
    (store,) = (tmp_path / "out").glob("*.zarr.zip")
    with zipfile.ZipFile(store) as members:
        attributes = json.loads(members.read(".zattrs"))
    assert attributes["rlds_beam"]["meaning"]["last_action"] == stored


def say(path: Path, content: Any) -> Path:
    """An RLDS dataset that says what its numbers mean."""
    data = write_dataset(path, [make_episode(5, seed=len(path.name), action=2)], name=path.name)
    (data / "meaning.json").write_text(json.dumps(content))
    return data


SAID = {"fps": 50, "robot": "arm", "names": {"action": ["x", "y"]}, "last_action": "real"}


def test_merged_datasets_keep_what_all_of_them_say(tmp_path: Path) -> None:
    both = [say(tmp_path / "a", SAID), say(tmp_path / "bb", SAID)]
    export(both, tmp_path / "out", "lerobot", from_="merged")
    info = read_info(tmp_path / "out")
    assert (info["fps"], info["robot_type"], names(tmp_path / "out", ACTION)) == (50, "arm", ["x", "y"])
    export(both, tmp_path / "rlds", "rlds", from_="merged")
    assert json.loads((tmp_path / "rlds" / "meaning.json").read_text()) == SAID


def test_what_merged_datasets_contradict_is_said(tmp_path: Path) -> None:
    other = {"robot": "leg", "last_action": "void"}
    both = [say(tmp_path / "a", SAID), say(tmp_path / "bb", other)]
    done = rlds_beam.convert(both, tmp_path / "rlds", from_="merged", to="rlds")
    for line in (
        "the rate is left out: 50 Hz in a/1.0.0, unknown in bb/1.0.0",
        "the robot is left out: arm in a/1.0.0, leg in bb/1.0.0",
        "last actions are void in some: real in a/1.0.0, void in bb/1.0.0",
        "the names of values are left out, because they are unknown in some: action",
    ):
        assert f"note      {line}\n" in str(done) + "\n"
    assert json.loads((tmp_path / "rlds" / "meaning.json").read_text()) == {"last_action": "void"}


def test_what_would_be_a_lie_is_refused(tmp_path: Path) -> None:
    data = say(tmp_path / "a", SAID)
    for other, message in (
        ({"fps": 30}, r"rate: 50 Hz in a/1.0.0, 30 Hz in bb/1.0.0: .* Resample: \{fps: 30\}"),
        ({"fps": 50, "names": {"action": ["x", "z"]}}, r"action: its values have different names \(x, y in a"),
    ):
        with pytest.raises(UsageError, match=message):
            rlds_beam.convert([data, say(tmp_path / "bb", other)], tmp_path / "out", to="rlds")


def test_a_rate_that_only_some_merged_datasets_say_must_be_given_and_fit(tmp_path: Path) -> None:
    both = [say(tmp_path / "a", SAID), say(tmp_path / "bb", {})]
    with pytest.raises(UsageError, match="pass --fps"):
        rlds_beam.convert(both, tmp_path / "out", from_="merged", to="lerobot")
    with pytest.raises(UsageError, match="the data is 50 Hz; --fps=50"):
        rlds_beam.convert(both, tmp_path / "out", from_="merged", to="lerobot", fps=30)
    done = rlds_beam.convert(both, tmp_path / "out", from_="merged", to="lerobot", fps=50)
    assert "the rate is left out: 50 Hz in a/1.0.0, unknown in bb/1.0.0" in str(done)


@pytest.mark.parametrize(
    ("env", "rate", "actuators"),
    [
        ("dm_control:point_mass/easy", 50, ["t1", "t2"]),
        ("dm_control:lqr/lqr_2_1", 33.333333, ["motor_0"]),
        ("gymnasium:CartPole-v1", 50, []),
        ("gymnasium:FrozenLake-v1", 4, []),
        ("gymnasium:Pendulum-v1", 20, []),  # its steps take 0.05 s, though it is drawn at 30 frames per second
        ("gymnasium:HalfCheetah-v5", 20, ["bthigh", "bshin", "bfoot", "fthigh", "fshin", "ffoot"]),
        ("gymnasium:Reacher-v5", 50, ["joint0", "joint1"]),
    ],
)
def test_an_environment_says_its_rate_and_its_actuators(env: str, rate: float, actuators: list[str]) -> None:
    for package in ("dm_control",) if "dm_" in env else ("gymnasium", *(("mujoco", "imageio") if "-v5" in env else ())):
        pytest.importorskip(package)
    made = make_environment(env, {})
    assert (made.fps, [list(leaf.names) for leaf in made.action.leaves]) == (rate, [actuators])
    made.close()


def test_wrappers_that_change_steps_or_actions_leave_the_rate_and_the_names_unknown() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    wrappers = gymnasium.wrappers

    class Repeat(gymnasium.Wrapper):  # type: ignore[misc, name-defined]
        def step(self, action: Any) -> Any:
            self.env.step(action)
            return self.env.step(action)

    class Double(gymnasium.ObservationWrapper):  # type: ignore[misc, name-defined]
        def observation(self, observation: Any) -> Any:
            return 2 * observation

    env = gymnasium.make("Pendulum-v1")
    for wrapper, rate in (
        (Double, 20),
        (lambda e: wrappers.RescaleAction(e, -1, 1), 20),
        (Repeat, None),
        (lambda e: wrappers.MaxAndSkipObservation(e, 4), None),
        (lambda e: wrappers.TransformAction(e, lambda action: -action, None), None),
    ):
        assert as_environment(wrapper(env), "wrapped").fps == rate


def test_specs_of_the_composer_name_the_values_of_actions() -> None:
    specs = pytest.importorskip("dm_env").specs
    arm = from_spec(specs.BoundedArray((2,), np.float32, -1, 1, "arm/elbow\tarm/wrist"), "action_spec")
    other = from_spec(specs.BoundedArray((1,), np.float32, -1, 1, "action"), "action_spec")
    assert [leaf.field("action").names for leaf in (*arm.leaves, *other.leaves)] == [("arm/elbow", "arm/wrist"), ()]


def test_a_recording_keeps_its_rate_and_names(tmp_path: Path) -> None:
    pytest.importorskip("dm_control")
    given: Any = {"env": "dm_control:point_mass/easy", "policy": "random", "episodes": 1, "max_episode_steps": 4}
    with pytest.raises(UsageError, match="the data is 50 Hz; --fps=50"):
        rlds_beam.record(tmp_path / "direct", to="lerobot", fps=20, **given)
    rlds_beam.record(tmp_path / "direct", to="lerobot", **given)
    rlds_beam.record(tmp_path / "rlds", **given)
    export(tmp_path / "rlds", tmp_path / "converted", "lerobot")
    for output in ("direct", "converted"):
        assert read_info(tmp_path / output)["fps"] == 50
        assert names(tmp_path / output, ACTION) == ["t1", "t2"]


def env_spec(env: str, entry_point: str | None = "gymnasium.envs.mujoco:HalfCheetahEnv", **more: Any) -> str:
    """As gymnasium's `EnvSpec.to_json` writes it."""
    return json.dumps({"id": env, "entry_point": entry_point, "kwargs": {}, "additional_wrappers": [], **more})


SKIP = {"name": "MaxAndSkip", "entry_point": "gymnasium.wrappers.stateful_observation:MaxAndSkipObservation"}
RESCALE = {"name": "RescaleAction", "entry_point": "gymnasium.wrappers.transform_action:RescaleAction"}


@pytest.mark.parametrize(
    ("spec", "rate"),
    [
        (env_spec("HalfCheetah-v5"), 20),
        (env_spec("AntMaze_UMaze-v4", "gymnasium_robotics.envs:AntMazeEnv"), 20),
        (env_spec("HalfCheetah-v5", additional_wrappers=[RESCALE]), 20),
        (env_spec("HalfCheetah-v5", additional_wrappers=[RESCALE, SKIP]), None),
        (env_spec("HalfCheetah-v5", additional_wrappers=[{"entry_point": "mine:Repeat"}]), None),
        (env_spec("HalfCheetah-v5", kwargs={"frame_skip": 1}), None),
        (env_spec("HalfCheetah-v5", "mine:Env"), None),
        (env_spec("HalfCheetah-v5", None), None),  # made from a function, of which gymnasium writes null
        (env_spec("Unknown-v0"), None),
        ("{", None),
    ],
)
def test_minari_says_the_rate_by_its_environment(tmp_path: Path, spec: Any, rate: float | None) -> None:
    pytest.importorskip("h5py")
    minari_hdf5(tmp_path)
    about = json.loads((tmp_path / "data" / "metadata.json").read_text())
    (tmp_path / "data" / "metadata.json").write_text(json.dumps({**about, "env_spec": spec}))
    source = rlds_beam.open_source(str(tmp_path), from_="hdf5")
    assert source.fps == rate
    assert ("the rate is that of" in str(source.details.notes)) == (rate is not None)


def test_names_that_cannot_be_shown_are_said(arm: Path, tmp_path: Path) -> None:
    shutil.copytree(arm, tmp_path / "arm")
    info = read_info(arm)
    info["features"][ACTION]["names"] = {"motors": ["\x1b[31m", "x" * 300, *JOINTS[2:]]}
    info["robot_type"] = "\x1b[31mrobot"
    (tmp_path / "arm" / "meta" / "info.json").write_text(json.dumps(info))
    done = rlds_beam.convert(tmp_path / "arm", tmp_path / "out", to="lerobot")
    assert "action: 2 of 6 names cannot be shown (expected printable text of up to 255 characters)" in str(done)
    assert "robot_type cannot be shown: the robot is left out" in str(done)
    assert names(tmp_path / "out", ACTION) == [f"action_{i}" for i in range(6)]
    assert names(tmp_path / "out", STATE) == JOINTS and read_info(tmp_path / "out")["robot_type"] is None


POSE = ("x", "y", "z", "axis_angle1", "axis_angle2", "axis_angle3")
PANDA = ("x", "y", "z", "qx", "qy", "qz", "qw", "gripper", "gripper")


def test_hdf5_says_the_rate_and_the_names_that_its_simulation_defines(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    for layout, rate, robot, named in (
        (
            "robomimic",
            20,
            "Panda",
            {"observation/state": PANDA, "action": (*(f"delta_{name}" for name in POSE), "gripper")},
        ),
        ("isaaclab", 20, None, {}),
        (
            "robotwin",
            None,
            None,
            dict.fromkeys(
                ("observation/state", "action"),
                tuple(
                    f"{side}_{name}"
                    for side in ("left", "right")
                    for name in (*(f"arm_{i}" for i in range(1, 7)), "gripper")
                ),
            ),
        ),
    ):
        getattr(hdf5_robots, layout)(tmp_path / layout, [4])
        source = rlds_beam.open_source(str(tmp_path / layout), from_="hdf5")
        assert (source.fps, source.robot, dict(source.schema.names)) == (rate, robot, named), layout
    with h5py.File(tmp_path / "robomimic" / "low_dim.hdf5", "a") as file:  # actions are 6 joints and the gripper
        arguments = {"controller_configs": {"type": "JOINT_POSITION"}, "robots": ["\x1b[31m"]}
        file["data"].attrs["env_args"] = json.dumps({"env_kwargs": arguments})
    source = rlds_beam.open_source(str(tmp_path / "robomimic"), from_="hdf5")
    assert (dict(source.schema.names), source.robot) == ({"observation/state": PANDA}, None)
    assert not [note for note in source.details.notes if "that the profile names" in note]


NAMED = {"action": ["reach", "grip"], "observation": ["x", "y", "z"]}


@pytest.fixture(scope="module")
def reacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An RLDS dataset that says its rate."""
    episodes = [make_episode(6, seed=i, observation=3, action=2) for i in range(2)]
    path = write_dataset(tmp_path_factory.mktemp("reacher"), episodes)
    (path / "meaning.json").write_text('{"fps": 30}')
    return Path(path)


@pytest.mark.parametrize("kind", ["tfrecord", "array_record", "parquet"])
def test_columns_keep_the_names_of_the_fields_that_they_hold(reacher: Path, tmp_path: Path, kind: str) -> None:
    from rlds_beam.formats.columns.row_files import ColumnsManifest

    done = rlds_beam.convert(reacher, tmp_path / "out", to="columns", format=kind, names=NAMED, robot_type="arm")
    manifest = ColumnsManifest.from_manifest(json.loads((tmp_path / "out" / "manifest.json").read_text()), "out")
    (fields,) = manifest.modules.values()
    found = {field.path: list(field.names) for field in fields if field.names}
    assert found == {"actions": NAMED["action"], "obs": NAMED["observation"]} and "note" not in str(done)
    assert (manifest.meaning.fps, manifest.meaning.robot) == (30, "arm")
    if kind == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        (file,) = (tmp_path / "out").rglob("*.parquet")
        schema = parquet.read_schema(file)
        assert json.loads(schema.metadata[b"rlds_beam"]) == {"meaning": {"fps": 30, "robot": "arm"}}
        assert json.loads(schema.field("actions").metadata[b"rlds_beam"])["names"] == NAMED["action"]


def test_columns_without_names_that_were_given_say_so(reacher: Path, tmp_path: Path) -> None:
    connectors = ["FrameStacking(3)", "AddColumnsFromEpisodesToTrainBatch"]
    done = rlds_beam.convert(reacher, tmp_path / "out", to="columns", names=NAMED, connectors=",".join(connectors))
    assert "no column holds the values of observation as they are, so their names are left out" in str(done)


def test_scope_rl_names_states_and_actions(reacher: Path, tmp_path: Path) -> None:
    export(reacher, tmp_path / "out", "scope_rl", names=NAMED, robot_type="arm")
    (file,) = (tmp_path / "out").glob("*.pickle")
    logged = pickle.loads(file.read_bytes())
    assert (logged["action_keys"], logged["state_keys"]) == (NAMED["action"], NAMED["observation"])
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["meaning"]["robot"] == "arm"


@pytest.mark.parametrize("to", OUTPUTS)
def test_every_flag_of_meaning_has_an_effect_or_is_refused(reacher: Path, tmp_path: Path, to: str) -> None:
    flags: dict[str, Any] = {"names": NAMED, "robot_type": "testbot", "task": "fold"}
    done = rlds_beam.convert(reacher, tmp_path / "out", to=to, **flags)
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    written = b"".join(path.read_bytes() for path in files if path.name not in ("plan.json", "report.json"))
    assert b"reach" in written and b"testbot" in written
    assert b"fold" in written or "language_instruction" in str(done)  # a text that an output cannot hold is named


@pytest.mark.parametrize("first", ["lerobot", "zarr"])
def test_void_last_steps_that_were_kept_stay_void(tmp_path: Path, first: str) -> None:
    data = write_dataset(tmp_path / "data", [make_episode(5, observation={"state": 3}, action=2)])
    (data / "meaning.json").write_text('{"fps": 10, "last_action": "void"}')
    export(data, tmp_path / "kept", first, last_step="keep")
    assert rlds_beam.open_source(str(tmp_path / "kept")).last_action == "void"
    done = rlds_beam.convert(tmp_path / "kept", tmp_path / "out", to="lerobot")
    assert "1 last step without an action" in str(done)
    assert rlds_beam.open_source(str(tmp_path / "out")).last_action == "real"


def test_envlogger_names_actions_as_their_spec(tmp_path: Path) -> None:
    for name, spec, known in (
        ("composer", "arm/elbow\tarm/wrist", {"action": ("arm/elbow", "arm/wrist")}),
        ("one", "action", {}),
        ("other", "x\ty\tz", {}),
    ):
        write_log(tmp_path / name, 2, spec)
        assert dict(rlds_beam.open_source(str(tmp_path / name), from_="envlogger").schema.names) == known, name
