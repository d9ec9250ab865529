"""What data means survives a conversion: names, the rate, and the robot between any two formats that hold them;
each transition and reward, with real and void last actions, from any source to any output.
"""

from __future__ import annotations

import collections
import importlib
import itertools
import json
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from checkout import ROOT
from exchanging import export
from servers import drain
from zarr_data import open_zip, write_buffer

import rlds_beam
from rlds_beam.connectors import (
    AddColumnsFromEpisodesToTrainBatch,
    AddNextObservationsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    ComputeReturnsToGo,
    Normalize,
)
from rlds_beam.connectors.statistics.statistics_formats import statistics_in
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import UsageError
from rlds_beam.formats.rlds.source import known_meaning
from rlds_beam.reading.base import Source
from rlds_beam.reading.meaning import Meaning
from rlds_beam.testing import make_episode, write_dataset
from rlds_beam.typing import Array

FORMATS: dict[str, dict[str, Any]] = {
    "rlds": {},
    "lerobot": {},
    "zarr": {},
}
"""The formats that hold all of these, with the options that keep whole episodes."""

JOINTS = ("shoulder", "elbow", "gripper")
VECTORS = {"action": JOINTS, "observation/state": JOINTS}


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An RLDS dataset with names, a rate, and a robot."""
    directory = tmp_path_factory.mktemp("named")
    episodes = [make_episode(6, seed=i, observation={"state": 3}, action=3) for i in range(2)]
    path = write_dataset(directory / "arm", episodes)
    (Path(path) / "meaning.json").write_text(json.dumps({"fps": 30, "robot": "arm", "names": VECTORS}))
    return str(path)


def known(source: Source) -> tuple[Any, ...]:
    return source.fps, source.robot, {path: field.names for path, field in source.schema.steps.items() if field.names}


def convert(source: str, directory: Path, to: str, from_: str | None = None) -> str:
    export(source, directory, to, from_=from_, **FORMATS[to])
    return str(directory)


@pytest.fixture(scope="module")
def first(request: pytest.FixtureRequest, named: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The dataset in one format: (its path, the format)."""
    return convert(named, tmp_path_factory.mktemp("first") / request.param, request.param), request.param


@pytest.mark.parametrize("second", FORMATS)
@pytest.mark.parametrize("first", FORMATS, indirect=True)
def test_what_two_formats_hold_is_equal_after_the_trip(first: tuple[str, str], tmp_path: Path, second: str) -> None:
    """With each pair in both orders, a trip there and back is two of these."""
    there, kind = first
    over = convert(there, tmp_path / "second", second, kind)
    for path, held in ((there, kind), (over, second)):
        assert known(rlds_beam.open_source(path, from_=held)) == (30, "arm", VECTORS), (path, held)


HOSTILE = [
    {"names": {"action": ["x"]}},
    {"names": {"action": ["\x1b[31m", "y", "z"]}},
    {"robot": "\x1b[31m"},
    {"fps": 1e30},
]


@pytest.mark.parametrize("content", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_content_is_refused_in_one_short_line(content: Any) -> None:
    schema = Schema({"action": Field("action", "float32", (3,))})
    with pytest.raises(UsageError) as error:
        Meaning.from_json(content, "meaning.json").name(schema)
    assert len(str(error.value)) < 400
    assert str(error.value).isprintable()


def test_names_that_cannot_be_shown_are_not_names() -> None:
    field = Field("action", "float32", (2,))
    assert field.with_names(["x", "y"]).names == ("x", "y")
    assert field.with_names(["x", "\n"]).names == field.with_names(["x", "y" * 1000]).names == ()


def test_open_x_datasets_have_their_known_rate_and_robot(tmp_path: Path) -> None:
    path = write_dataset(
        tmp_path / "bridge_dataset", [make_episode(3, observation={"state": 7}, action=7)], name="bridge_dataset"
    )
    source = rlds_beam.open_source(path)
    assert (source.fps, source.robot) == (5, "WidowX")
    names = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
    assert source.schema.steps["observation/state"].names == names
    assert source.schema.steps["action"].names == (*(f"delta_{name}" for name in names[:6]), "gripper")
    assert "those known for bridge_dataset" in str(rlds_beam.inspect(path))


@pytest.mark.parametrize(
    ("name", "differences"),
    [
        ("bridge_orig", 6),
        ("libero_10_no_noops", 6),
        ("austin_sailor_dataset_converted_externally_to_rlds", 6),
        ("nyu_rot_dataset_converted_externally_to_rlds", 3),
        ("toto", 0),
    ],
)
def test_open_x_datasets_say_which_actions_are_differences(name: str, differences: int) -> None:
    meaning = known_meaning(name, Schema({"action": Field("action", "float32", (7,))}))
    assert meaning is not None
    names = meaning.names.get("action", ())
    assert sum(name.startswith("delta_") for name in names) == differences


def test_the_parts_of_an_rt_1_action_are_differences() -> None:
    parts = ("action/world_vector", "action/rotation_delta", "action/gripper_closedness_action")
    meaning = known_meaning("fractal20220817_data", Schema({path: Field(path, "float32", (3,)) for path in parts}))
    assert meaning is not None
    assert meaning.names == {
        "action/world_vector": ("delta_x", "delta_y", "delta_z"),
        "action/rotation_delta": ("delta_roll", "delta_pitch", "delta_yaw"),
    }


def test_a_layout_that_does_not_fit_gives_no_names() -> None:
    schema = Schema({"action": Field("action", "float32", (8,))})
    assert known_meaning("bridge_orig", schema) == Meaning(5, "WidowX", assumes_robot=True)
    assert known_meaning("nyu_rot_dataset_converted_externally_to_rlds", schema) == Meaning(
        3, "xArm", assumes_robot=True
    )
    assert known_meaning("toy", schema) is None


PAGE = (ROOT / "docs" / "reference" / "meaning.md").read_text()
ROWS = {line.split(" | ")[0].removeprefix("| "): line for line in PAGE.splitlines() if line.startswith("| ")}
ROWS.pop("dataset")


@pytest.fixture(scope="module")
def table() -> Any:
    """docs/meaning_table.py."""
    for package in ("h5py", "rosbags", "mcap", "pyarrow"):
        pytest.importorskip(package)
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        return importlib.import_module("meaning_table")
    finally:
        sys.path.remove(str(ROOT / "docs"))


@pytest.mark.parametrize("title", ROWS)
def test_each_row_of_the_page_is_up_to_date(table: Any, title: str, tmp_path: Path) -> None:
    if title == table.BRIDGE_TITLE and not table.BRIDGE.exists():
        pytest.skip("no real data; set $RLDS_BEAM_REAL_DATA to their path")
    assert table.make_row(title, tmp_path) == f"{ROWS[title]}\n", "run python docs/meaning_table.py"


# Transitions: every source to every output, with real and void last actions, compared without our readers.


class Known(NamedTuple):
    """What an episode of a source says, as it was written: T actions and rewards.

    Attributes:
      states: the states, T of them if the last action is real, else T + 1.
      actions, rewards: those taken at the first T states.
      terminal: whether the episode ends in a terminal state.
    """

    states: Array
    actions: Array
    rewards: Array
    terminal: bool

    @property
    def states_before(self) -> Array:
        return self.states[: len(self.actions)]

    @property
    def next_states(self) -> Array:
        """The states after each action; the last one repeats if it was not recorded."""
        return np.concatenate([self.states[1:], self.states[-1:]])[: len(self.actions)]

    @property
    def ends(self) -> Array:
        """Whether each transition is the last one."""
        return np.arange(len(self.actions)) == len(self.actions) - 1


def draw(real: bool) -> list[Known]:
    """Episodes whose last reward and last gripper command are the only ones; the second one is truncated."""
    rng, found = np.random.default_rng(int(real)), []
    for length, terminal in ((7, True), (4, False), (1, True), (9, True)):
        actions, rewards = rng.uniform(-1, 1, (length, 3)).astype(np.float32), np.zeros(length, np.float32)
        actions[:, 2], actions[-1, 2], rewards[-1] = 0, 1, 1
        states = rng.normal(size=(length + (not real), 3)).astype(np.float32)
        found.append(Known(states, actions, rewards, terminal))
    return found


def stack(episodes: Iterable[Known], name: str) -> Array:
    return np.concatenate([np.asarray(getattr(episode, name)) for episode in episodes])


def write_rlds_data(directory: Path, said: str) -> list[Known]:
    real = said == "real"
    known, episodes = draw(real), []
    for number, episode in enumerate(known):
        steps = len(episode.states)
        columns = {"observation/state": episode.states, "action": episode.actions, "reward": episode.rewards}
        if not real:  # a void action and reward, which nothing may use
            void = np.zeros((1, 3), np.float32) if said == "" else episode.actions[-1:] + 9
            columns["action"] = np.concatenate([episode.actions, void])
            columns["reward"] = np.append(episode.rewards, np.float32(9))
        discount = np.ones(steps, np.float32)
        discount[-1 if real else -2 :] = not episode.terminal
        made = make_episode(steps, seed=number, terminal=episode.terminal, observation={"state": 3}, action=3)
        episodes.append(made.with_columns({**columns, "discount": discount}))
    path = write_dataset(directory.parent, episodes, name=directory.name)
    meaning = {"fps": 30, "robot": "arm", "names": VECTORS, **({"last_action": said} if said else {})}
    (path / "meaning.json").write_text(json.dumps(meaning))
    return known


def write_zarr_data(directory: Path) -> list[Known]:
    known = draw(True)
    terminal = np.concatenate([episode.ends & episode.terminal for episode in known])
    arrays = {name: stack(known, f"{name}s") for name in ("state", "action", "reward")} | {"is_terminal": terminal}
    write_buffer(directory / "x.zarr", arrays, tuple(len(episode.actions) for episode in known))
    return known


def write_robomimic(directory: Path, *, real: bool) -> list[Known]:
    h5py = pytest.importorskip("h5py")
    directory.mkdir()
    known = draw(real)
    with h5py.File(directory / "x.hdf5", "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 30}})
        for number, episode in enumerate(known):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = length = len(episode.actions)
            demo["obs/state"], demo["actions"] = episode.states[:length], episode.actions
            demo["rewards"], demo["dones"] = episode.rewards, (episode.ends & episode.terminal).astype(np.int64)
            if not real:
                demo["next_obs/state"] = episode.states[1:]
    return known


def write_d4rl(directory: Path) -> list[Known]:
    h5py = pytest.importorskip("h5py")
    directory.mkdir()
    known = draw(False)
    with h5py.File(directory / "x.hdf5", "w") as file:
        file["observations"] = np.concatenate([episode.states[:-1] for episode in known])
        file["next_observations"] = np.concatenate([episode.states[1:] for episode in known])
        file["actions"], file["rewards"] = stack(known, "actions"), stack(known, "rewards")
        for name, terminal in (("terminals", True), ("timeouts", False)):
            file[name] = np.concatenate([episode.ends & (episode.terminal is terminal) for episode in known])
    return known


def write_ogbench(directory: Path) -> list[Known]:
    directory.mkdir()
    known = [episode._replace(rewards=episode.rewards * 0, terminal=False) for episode in draw(True)]
    arrays = {"observations": stack(known, "states"), "actions": stack(known, "actions")}
    np.savez(directory / "x.npz", **arrays, terminals=stack(known, "ends"), qpos=stack(known, "states"))
    return known


def write_lerobot(directory: Path) -> list[Known]:
    """LeRobot v3.0, as its recorder writes it."""
    known, lengths = draw(True), [len(episode.actions) for episode in draw(True)]
    ends, index = np.cumsum(lengths), np.arange(sum(lengths))
    numbers = np.repeat(np.arange(len(known)), lengths)
    vectors = {"observation.state": stack(known, "states"), "action": stack(known, "actions")}
    done = np.concatenate([episode.ends & episode.terminal for episode in known])
    scalars = {
        "next.reward": stack(known, "rewards"),
        "next.done": done,
        "timestamp": np.float32((index - (ends - lengths)[numbers]) / 30),
        "frame_index": index - (ends - lengths)[numbers],
        "episode_index": numbers,
        "index": index,
        "task_index": index * 0,
    }
    listed = {name: pa.FixedSizeListArray.from_arrays(pa.array(v.ravel()), 3) for name, v in vectors.items()}
    features = {name: {"dtype": "float32", "shape": [3], "names": JOINTS} for name in vectors}
    features |= {name: {"dtype": str(v.dtype), "shape": [1], "names": None} for name, v in scalars.items()}
    info = {
        "codebase_version": "v3.0",
        "robot_type": "arm",
        "total_episodes": len(known),
        "total_frames": len(index),
        "total_tasks": 1,
        "chunks_size": 1000,
        "fps": 30,
        "splits": {"train": f"0:{len(known)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": None,
        "features": features,
    }
    zeros = np.zeros(len(known), np.int64)
    places = {f"{what}/{part}_index": zeros for what in ("data", "meta/episodes") for part in ("chunk", "file")}
    bounds = {"dataset_from_index": ends - lengths, "dataset_to_index": ends, "length": lengths}
    rows = {"episode_index": np.arange(len(known)), "tasks": [["fold"]] * len(known), **bounds, **places}
    tables = {
        "data/chunk-000/file-000": {**listed, **scalars},
        "meta/episodes/chunk-000/file-000": rows,
        "meta/tasks": {"task_index": [0], "task": ["fold"]},
    }
    for name, columns in tables.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), directory / f"{name}.parquet")
    (directory / "meta" / "info.json").write_text(json.dumps(info))
    return known


def write_merged(directory: Path) -> list[Known]:
    return [e for said in ("real", "void") for e in write_rlds_data(directory / said, said)]


SOURCES_OF_TRANSITIONS: dict[str, tuple[Callable[[Path], list[Known]], str]] = {
    "rlds_real": (lambda d: write_rlds_data(d, "real"), ""),
    "rlds_void": (lambda d: write_rlds_data(d, "void"), ""),
    "rlds_silent": (lambda d: write_rlds_data(d, ""), ""),
    "lerobot": (write_lerobot, ""),
    "zarr": (write_zarr_data, ""),
    "hdf5_real": (lambda d: write_robomimic(d, real=True), ""),
    "hdf5_void": (lambda d: write_robomimic(d, real=False), ""),
    "d4rl": (write_d4rl, ""),
    "ogbench": (write_ogbench, "npz"),
    "merged": (write_merged, "merged"),
}
"""Source -> what writes its data and says what it wrote, and `--from` if it is not recognized."""

UNNAMED = ("zarr", "hdf5_real", "hdf5_void", "d4rl", "ogbench")
"""The sources whose formats hold no names of these vectors."""


class Written(NamedTuple):
    """The data of a source, and what is known of it."""

    name: str
    path: str | list[str]
    options: dict[str, Any]
    known: list[Known]


@pytest.fixture(scope="module", params=SOURCES_OF_TRANSITIONS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    write, kind = SOURCES_OF_TRANSITIONS[request.param]
    directory = tmp_path_factory.mktemp("written") / request.param
    known = write(directory)
    path: Any = [str(directory / name / "1.0.0") for name in ("real", "void")] if kind == "merged" else str(directory)
    if request.param.startswith("rlds"):
        path = str(directory / "1.0.0")
    return Written(request.param, path, {"from_": kind} if kind else {}, known)


@pytest.mark.parametrize("written", ["lerobot", "merged", "d4rl"], indirect=True)
def test_tables_hold_each_transition(written: Written) -> None:
    reverb = pytest.importorskip("reverb")
    fifo, limit = reverb.selectors.Fifo, reverb.rate_limiters.MinSize(1)
    server, known = reverb.Server([reverb.Table("t", fifo(), fifo(), 1000, limit, max_times_sampled=1)]), written.known
    try:
        given: dict[str, Any] = {"reverb": f"127.0.0.1:{server.port}", "table": "t", "workers": 1}
        pushed = rlds_beam.push(written.path, **given, **written.options)
        items = [item.data for item in drain(given["reverb"], "t")]
    finally:
        server.stop()
    _, state, action, _, reward, discount = (np.stack(column) for column in zip(*items, strict=True))
    terminal = np.concatenate([e.ends & e.terminal for e in known])
    assert pushed.report.items_written == len(items) == len(terminal)
    order = np.lexsort(action[:, 0].T)
    expected = np.lexsort(stack(known, "actions").T)
    for found, values in (
        (state[:, 0], stack(known, "states_before")),
        (state[:, 1], stack(known, "next_states")),
        (action[:, 0], stack(known, "actions")),
        (reward[:, 0], stack(known, "rewards")),
        (discount[:, 0], ~terminal),
    ):
        np.testing.assert_array_equal(found[order], values[expected])


def rows_of(files: Iterable[Path]) -> dict[str, Array]:
    """The columns of Parquet files, by pyarrow."""
    table = pa.concat_tables([pq.read_table(file) for file in sorted(files)])
    return {name: np.array(table[name].to_pylist()) for name in table.column_names}


def state_in(columns: Mapping[str, Array], *names: str) -> Array:
    return columns[next(name for name in names if name in columns)]


def test_columns_have_a_row_for_each_transition(written: Written, tmp_path: Path) -> None:
    columns = (
        AddObservationsFromEpisodesToBatch(),
        AddNextObservationsFromEpisodesToTrainBatch(),
        AddColumnsFromEpisodesToTrainBatch(),
        ComputeReturnsToGo(gamma=0.5),
    )
    export(written.path, tmp_path / "out", "columns", format="parquet", connectors=columns, **written.options)
    rows, known = rows_of((tmp_path / "out").rglob("*.parquet")), written.known
    ends, terminal = stack(known, "ends"), np.concatenate([e.ends & e.terminal for e in known])
    returns = [e.rewards[-1] * 0.5 ** np.arange(len(e.rewards))[::-1] for e in known]
    for found, expected in (
        (state_in(rows, "obs", "obs/state"), stack(known, "states_before")),
        (state_in(rows, "new_obs", "new_obs/state"), stack(known, "next_states")),
        (rows["actions"], stack(known, "actions")),
        (rows["rewards"], stack(known, "rewards")),
        (rows["terminateds"], terminal),
        (rows["truncateds"], ends & ~terminal),
        (rows["returns_to_go"], np.concatenate(returns)),
    ):
        np.testing.assert_array_equal(found, expected)


def test_pairs_hold_each_transition(written: Written, tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    report = export(written.path, tmp_path / "out", "trajectories", **written.options)
    known, frames = written.known, collections.defaultdict(list)
    for record in tf.data.TFRecordDataset(
        [str(file) for file in sorted((tmp_path / "out").glob("*.tfrecord-*-of-?????"))]
    ):
        for name, feature in tf.train.Example.FromString(record.numpy()).features.feature.items():
            kind = np.int32 if name.endswith("step_type") else np.float32
            frames[name].append(numbers_in(feature, kind).reshape(2, -1))
    found = {name: np.array(values) for name, values in frames.items()}
    assert report.items_written == len(found["action"]) == len(stack(known, "actions"))
    state = state_in(found, "observation", "observation/state")
    terminal = np.concatenate([e.ends & e.terminal for e in known])
    np.testing.assert_array_equal(state[:, 0], stack(known, "states_before"))
    np.testing.assert_array_equal(state[:, 1], stack(known, "next_states"))
    np.testing.assert_array_equal(found["action"][:, 0], stack(known, "actions"))
    np.testing.assert_array_equal(found["reward"][:, 0, 0], stack(known, "rewards"))
    np.testing.assert_array_equal(found["discount"][:, 0, 0], ~terminal)
    np.testing.assert_array_equal(found["next_step_type"][:, 0, 0] == 2, stack(known, "ends"))


def test_lerobot_has_a_frame_for_each_transition(written: Written, tmp_path: Path) -> None:
    known, out = written.known, tmp_path / "out"
    given = {} if rlds_beam.open_source(written.path, **written.options).fps else {"fps": 30}
    export(written.path, out, "lerobot", **given, **written.options)
    rows = rows_of(out.glob("data/*/*.parquet"))
    np.testing.assert_array_equal(rows["observation.state"], stack(known, "states_before"))
    np.testing.assert_array_equal(rows["action"], stack(known, "actions"))
    np.testing.assert_array_equal(rows["next.reward"].reshape(-1), stack(known, "rewards"))
    info, stats = (json.loads((out / "meta" / f"{name}.json").read_text()) for name in ("info", "stats"))
    assert (info["features"]["action"]["names"] == [*JOINTS]) == (written.name not in UNNAMED)
    check_statistics(stats["action"], stack(known, "actions"))


def test_zarr_has_a_row_for_each_transition(written: Written, tmp_path: Path) -> None:
    export(written.path, tmp_path / "out", "zarr", **written.options)
    (file,) = (tmp_path / "out").glob("*.zarr.zip")
    group, known = open_zip(file), written.known
    data = {name: np.asarray(group["data"][name]) for name in group["data"].array_keys()}
    np.testing.assert_array_equal(state_in(data, "state", "observation"), stack(known, "states_before"))
    np.testing.assert_array_equal(data["action"], stack(known, "actions"))
    np.testing.assert_array_equal(data["reward"], stack(known, "rewards"))
    lengths = [len(episode.actions) for episode in known]
    np.testing.assert_array_equal(group["meta"]["episode_ends"], np.cumsum(lengths))


@pytest.mark.parametrize("to", ["numpy", "rlds"])
def test_outputs_of_steps_keep_them_and_say_what_the_last_one_is(written: Written, tmp_path: Path, to: str) -> None:
    known, out = written.known, tmp_path / "out"
    export(written.path, out, to, **written.options)
    names = ("action", "reward", "observation.state", "observation")
    if to == "numpy":
        offsets = np.load(out / "train" / "episode_offsets.npy")
        columns = {n: np.load(out / "train" / f"{n}.npy") for n in names if (out / "train" / f"{n}.npy").exists()}
        episodes = [{n: v[a:b] for n, v in columns.items()} for a, b in itertools.pairwise(offsets)]
        meaning = json.loads((out / "manifest.json").read_text())["numpy"].get("meaning", {})
    else:
        tf = pytest.importorskip("tensorflow")
        episodes = []
        for record in tf.data.TFRecordDataset([str(file) for file in sorted(out.glob("*.tfrecord-*"))]):
            features = tf.train.Example.FromString(record.numpy()).features.feature
            named = {name.removeprefix("steps/").replace("/", "."): feature for name, feature in features.items()}
            wanted = [name for name in names if name in named]
            episodes.append({name: numbers_in(named[name]) for name in wanted})
        meaning = json.loads((out / "meaning.json").read_text()) if (out / "meaning.json").exists() else {}
    for episode, expected in zip(episodes, known, strict=True):
        count = len(expected.actions)
        state = state_in(episode, "observation.state", "observation")
        np.testing.assert_array_equal(state.reshape(-1, 3), expected.states)
        np.testing.assert_array_equal(episode["action"].reshape(-1, 3)[:count], expected.actions)
        np.testing.assert_array_equal(episode["reward"].reshape(-1)[:count], expected.rewards)
    real = {len(episode.states) == len(episode.actions) for episode in known}
    said = {"rlds_silent": None, "merged": "void"}.get(written.name, "real" if real == {True} else "void")
    assert meaning.get("last_action") == said


def numbers_in(feature: Any, dtype: type = np.float32) -> Array:
    """The numbers of a feature of a tf.Example, of which tensors are stored as bytes."""
    kind = feature.WhichOneof("kind")
    values = getattr(feature, kind).value
    return np.frombuffer(values[0], dtype) if kind == "bytes_list" else np.array(values, dtype)


def test_scope_rl_has_a_row_for_each_transition(written: Written, tmp_path: Path) -> None:
    if written.name == "ogbench":
        pytest.skip("its positions are a second state")
    export(written.path, tmp_path / "out", "scope_rl", **written.options)
    (file,) = (tmp_path / "out").glob("*.pickle")
    logged, known = pickle.loads(file.read_bytes()), written.known
    real = logged["mask"] == 1
    np.testing.assert_array_equal(logged["state"][real], stack(known, "states_before"))
    np.testing.assert_array_equal(logged["action"][real], stack(known, "actions"))
    np.testing.assert_array_equal(logged["reward"][real], stack(known, "rewards"))
    np.testing.assert_array_equal(logged["terminated"][real], np.concatenate([e.ends & e.terminal for e in known]))


def check_statistics(found: Mapping[str, Any], values: Array) -> None:
    """Compares statistics with numpy's."""
    for name, expected in (
        ("mean", values.mean(0, np.float64)),
        ("std", values.std(0, np.float64)),
        ("min", values.min(0)),
        ("max", values.max(0)),
        ("q01", np.quantile(values.astype(np.float64), 0.01, axis=0)),
        ("count", len(values)),
    ):
        if name in found:
            np.testing.assert_allclose(np.squeeze(found[name]), expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_statistics_count_each_transition(written: Written) -> None:
    known = written.known
    content = rlds_beam.stats(written.path, workers=1, **written.options).statistics
    actions, rewards = stack(known, "actions"), stack(known, "rewards")
    state = "observation/state" if "observation/state" in content["fields"] else "observation"
    assert (content["episodes"], content["transitions"]) == (len(known), len(actions))
    for path, values in (("action", actions), ("reward", rewards), (state, stack(known, "states"))):
        check_statistics(content["fields"][path], values)
    check_statistics(content["episode_return"], np.array([episode.rewards.sum() for episode in known]))
    check_statistics(content["episode_length"], np.array([len(episode.actions) for episode in known]))
    content["dataset"] = "known"
    check_statistics(statistics_in("lerobot", content)["action"], actions)
    check_statistics(statistics_in("openpi", content, proprio=state)["norm_stats"]["actions"], actions)
    check_statistics(statistics_in("openvla", content)["known"]["action"], actions)


def test_checks_see_each_reward(written: Written, tmp_path: Path) -> None:
    known = written.known
    returns = [float(episode.rewards.sum()) for episode in known]
    assert rlds_beam.check(written.path, workers=1, **written.options).table["return"].to_pylist() == returns
    report = export(written.path, tmp_path / "out", "numpy", reject="return < 1", **written.options)
    assert report.rejected == sum(total < 1 for total in returns)


def test_batches_are_normalized_by_each_action(written: Written) -> None:
    actions = stack(written.known, "actions")
    normalize = Normalize(["action"], mode="normal")
    rows = rlds_beam.open_dataset(written.path, unit="steps", connectors=[normalize], **written.options)
    (batch,) = rows.batches(1000, columns=["action"], shuffle=False)
    expected = (actions - actions.mean(0, np.float64)) / (actions.std(0, dtype=np.float64) + 1e-8)
    np.testing.assert_allclose(batch["action"], expected, rtol=1e-4, atol=1e-5)


def test_batches_say_where_each_action_led(written: Written) -> None:
    known = written.known
    (batch,) = rlds_beam.open_dataset(written.path, unit="steps", **written.options).batches(1000, next_step=True)
    state = next(name for name in ("next_observation/state", "next_observation") if name in batch)
    ends = stack(known, "ends")
    np.testing.assert_array_equal(batch["reward"], stack(known, "rewards"))
    np.testing.assert_array_equal(batch[state], stack(known, "next_states"))
    np.testing.assert_array_equal(batch["next_is_last"], ends)
    np.testing.assert_array_equal(batch["next_is_terminal"], np.concatenate([e.ends & e.terminal for e in known]))
    repeated = np.concatenate([e.ends & (len(e.states) == len(e.actions)) for e in known])
    np.testing.assert_array_equal(batch[f"{state}_is_pad"], repeated)
