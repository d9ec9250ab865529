"""Sources that other programs wrote: D4RL's files with their faults, EnvLogger's logs, whole and damaged."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchanging import assert_equal, export, open_job, plain, read_back
from fuzzed_datasets import minari_directory

from rlds_beam.errors import UsageError
from rlds_beam.formats.sources import open_source
from rlds_beam.testing import flip_byte, make_episode, write_dataset


def d4rl(path: Path, *, terminals: list[int], timeouts: list[int] | None, rows: int = 10, **more: Any) -> np.ndarray:
    """A file of D4RL's; its observations are 0, 1, 2, ..., two of each."""
    h5py = pytest.importorskip("h5py")
    observations = np.arange(rows, dtype=np.float32)[:, None] + np.zeros(2, np.float32)
    place = np.arange(rows)
    with h5py.File(path, "w") as file:
        file["observations"], file["actions"] = observations, np.full((rows, 1), 0.5, np.float32)
        file["rewards"] = place.astype(np.float32)
        file["terminals"] = np.isin(place, terminals)
        if timeouts is not None:
            file["timeouts"] = np.isin(place, timeouts)
        for name, values in more.items():
            file[name.replace("__", "/")] = values
    return observations


def firsts(episodes: list[Any]) -> list[list[float]]:
    return [episode.steps["observation"][:, 0].tolist() for episode in episodes]


def test_d4rl_with_timeouts_and_no_final_observation(tmp_path):
    d4rl(tmp_path / "hopper.hdf5", terminals=[3], timeouts=[7], infos__qpos=np.ones((10, 3)))
    terminal, timeout, rest = read_back(tmp_path / "hopper.hdf5", "d4rl", ranges=2)
    assert firsts([terminal, timeout, rest]) == [[0, 1, 2, 3, 0], [4, 5, 6, 7], [8, 9]]
    assert terminal.steps["is_terminal"].tolist() == [False] * 4 + [True]
    assert terminal.steps["reward"].tolist() == [0, 1, 2, 3, 0]
    assert terminal.steps["discount"].tolist() == [1, 1, 1, 0, 0]
    assert (timeout.steps["is_last"].tolist(), timeout.steps["is_terminal"].any()) == ([False] * 3 + [True], False)
    assert timeout.steps["info/qpos"].shape == (4, 3)
    assert not rest.steps["is_last"].any()  # it never ended: rejected, unless it is repaired
    assert (timeout.key.position, timeout.key.dataset) == (1, "hopper/1.0.0")


def test_d4rl_next_observations_give_the_last_one_and_missing_timeouts(tmp_path):
    after = np.arange(1, 13, dtype=np.float32)[:, None] + np.zeros(2, np.float32)
    after[[3, 7, 11]] = [[30, 30], [70, 70], [110, 110]]  # row 3 is terminal; at 7 a timeout is missing
    d4rl(tmp_path / "x.hdf5", terminals=[3], timeouts=None, rows=12, next_observations=after)
    found = read_back(tmp_path / "x.hdf5", "d4rl")
    assert firsts(found) == [[0, 1, 2, 3, 30], [4, 5, 6, 7, 70], [8, 9, 10, 11, 110]]
    assert [e.steps["is_last"][-1] for e in found] == [True, True, False]
    assert found[1].steps["reward"].tolist() == [4, 5, 6, 7, 0]
    assert [fault for e in found for fault in e.faults] == []


def test_d4rl_other_forms_of_flags(tmp_path):
    flags = np.isin(np.arange(10), [4, 9]).astype(np.float32)[:, None]
    d4rl(tmp_path / "x.hdf5", terminals=[], timeouts=None)
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.hdf5", "a") as file:
        del file["terminals"], file["rewards"]
        file["terminals"], file["rewards"] = flags, np.ones((10, 1), np.float32)
    found = read_back(tmp_path / "x.hdf5", "d4rl")
    assert [len(e) for e in found] == [6, 6] and found[0].steps["reward"].shape == (6,)


def test_d4rl_is_checked_and_converted(tmp_path):
    d4rl(tmp_path / "x.hdf5", terminals=[3], timeouts=[7])
    report = export(tmp_path / "x.hdf5", tmp_path / "out", "rlds", from_="d4rl")
    assert (report.items_written, report.rejected) == (2, 1)
    report = export(tmp_path / "x.hdf5", tmp_path / "all", "rlds", from_="d4rl", repair=("missing_is_last",))
    assert (report.items_written, report.rejected) == (3, 0)
    (version,) = {p.parent for p in (tmp_path / "all").rglob("features.json")}
    back = read_back(version, "rlds")
    assert firsts(back) == [[0, 1, 2, 3, 0], [4, 5, 6, 7], [8, 9]]


def test_an_import_keeps_every_bit(tmp_path):
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["observations"], file["actions"], file["rewards"] = rng.random((6, 3)), rng.random((6, 2)), rng.random(6)
        file["terminals"], file["infos/big"] = np.arange(6) == 5, np.arange(6, dtype=np.uint64) + 2**63
    for to, from_ in (("rlds", "rlds"), ("numpy", "numpy"), ("minari", "minari"), ("d3rlpy", "d3rlpy")):
        export(tmp_path / "x.hdf5", tmp_path / to, to, from_="d4rl")
        (expected,), (found,) = read_back(tmp_path / "x.hdf5", "d4rl"), read_back(_root(tmp_path / to), from_)
        for path in ("observation", "action", "reward", *(["info/big"] if to != "d3rlpy" else [])):
            assert found.steps[path].dtype == expected.steps[path].dtype
            assert found.steps[path].tolist() == expected.steps[path].tolist()
    export(tmp_path / "minari", tmp_path / "again", "rlds", from_="minari")
    (found,) = read_back(_root(tmp_path / "again"), "rlds")
    assert found.steps["reward"].tolist() == expected.steps["reward"].tolist()


def test_tfds_reads_an_import(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    h5py = pytest.importorskip("h5py")
    rewards = np.random.default_rng(0).random(6)
    d4rl(tmp_path / "x.hdf5", terminals=[5], timeouts=None, rows=6)
    with h5py.File(tmp_path / "x.hdf5", "a") as file:
        del file["rewards"]
        file["rewards"] = rewards
    export(tmp_path / "x.hdf5", tmp_path / "out", "rlds", from_="d4rl")
    (episode,) = tfds.as_numpy(tfds.builder_from_directory(str(_root(tmp_path / "out"))).as_dataset(split="train"))
    assert [float(step["reward"]) for step in episode["steps"]][:6] == rewards.tolist()


def _root(output: Path) -> Path:
    """The directory of the dataset in an output."""
    return next((path.parent for path in output.rglob("features.json")), output)


def test_files_that_are_none_of_the_kind(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["rewards"] = np.ones(3)
    with pytest.raises(UsageError, match=r"x.h5 is no file of D4RL: it has no observations"):
        open_source(str(tmp_path / "x.h5"), from_="d4rl")
    with pytest.raises(UsageError, match=r"x.h5 is no file of a d3rlpy ReplayBuffer"):
        open_source(str(tmp_path / "x.h5"), from_="d3rlpy")
    (tmp_path / "y.h5").write_bytes(b"no HDF5")
    with pytest.raises(UsageError, match="cannot be read"):
        open_source(str(tmp_path / "y.h5"), from_="d4rl")
    with pytest.raises(UsageError, match="is no Minari dataset"):
        open_source(str(tmp_path), from_="minari")
    with pytest.raises(UsageError, match=r"--features=f: --from=d4rl reads no features.json"):
        open_source(str(tmp_path / "x.h5"), from_="d4rl", features="f")


# TF-Agents' trajectory records


@pytest.mark.parametrize("items", ["frames", "episodes"])
def test_trajectories_are_episodes_again(tmp_path, items):
    made = [make_episode(3 + i % 4, seed=i, observation={"state": 3}, terminal=i % 2 == 0) for i in range(9)]
    data = write_dataset(tmp_path / "data", made, shards=2)
    export(data, tmp_path / "out", "trajectories", items=items, shards=2)
    for found, expected in zip(read_back(tmp_path / "out", "trajectories"), made, strict=True):
        assert_equal(found, expected, void=("action", "reward", "discount"))
    files = sorted((tmp_path / "out").glob("*.tfrecord-*-of-00002"))
    by_spec = read_back(",".join(map(str, files)), "trajectories")  # without the manifest
    assert [len(episode) for episode in by_spec] == [len(episode) for episode in made]


def test_trajectories_of_several_frames_are_refused(tmp_path):
    data = write_dataset(tmp_path / "data", [make_episode(5)])
    export(data, tmp_path / "out", "trajectories")
    with pytest.raises(UsageError, match=r"holds items of 2 frames, cut out of episodes"):
        open_source(str(tmp_path / "out"), from_="trajectories")


def test_a_damaged_frame_costs_its_episode(tmp_path):
    data = write_dataset(tmp_path / "data", [make_episode(4, seed=i) for i in range(4)])
    export(data, tmp_path / "out", "trajectories", items="frames")
    (file,) = (tmp_path / "out").glob("*.tfrecord-00000-of-00001")
    flip_byte(file, 6)  # the third frame of the second episode
    found = read_back(str(file), "trajectories")
    assert [[fault.rule for fault in episode.faults] for episode in found] == [[], [], ["corrupt_record"], [], [], []]
    assert [len(episode) for episode in found] == [4, 2, 0, 1, 4, 4]
    report = export(file, tmp_path / "again", "rlds", from_="trajectories")
    assert (report.items_written, report.rejected) == (3, 3)  # what is left of the second: no end, no beginning


def test_what_tf_agents_recorded(tmp_path):
    pytest.importorskip("tf_agents")
    import tensorflow as tf
    from tf_agents.trajectories import trajectory
    from tf_agents.utils import example_encoding_dataset

    def frame(step, following, value):
        return trajectory.Trajectory(
            step_type=np.int32(step), observation={"x": np.full(2, value, np.float32)}, action=np.int64(value),
            policy_info=(), next_step_type=np.int32(following), reward=np.float32(value),
            discount=np.float32(following != 2),
        )  # fmt: skip

    frames = [frame(0, 1, 0), frame(1, 2, 1), frame(2, 0, 2), frame(0, 1, 3), frame(1, 1, 4)]
    spec = tf.nest.map_structure(lambda value: tf.TensorSpec(np.shape(value), np.asarray(value).dtype), frames[0])
    observer = example_encoding_dataset.TFRecordObserver(str(tmp_path / "log.tfrecord"), spec, py_mode=True)
    for one in frames:
        observer(one)
    observer.close()
    first, rest = read_back(tmp_path / "log.tfrecord", "trajectories")
    assert first.steps["observation/x"][:, 0].tolist() == [0, 1, 2]
    assert (first.steps["action"].dtype, first.steps["action"].tolist()) == (np.int64, [0, 1, 2])
    assert first.steps["is_terminal"].tolist() == [False, False, True]
    assert (len(rest), rest.steps["is_last"].any()) == (2, False)


# Minari's directories of Arrow and Parquet; Minari itself writes them in tests/peers/exchange.


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_minaris_directories(tmp_path, kind):
    minari_directory(tmp_path / "arrow-v0" / "data", kind)
    first, second = read_back(tmp_path / "arrow-v0", "minari", ranges=2)
    assert (first.faults, second.faults, first.key.position, second.key.position) == ((), (), 0, 1)
    assert first.steps["observation/state"].tolist() == [[[2 * t, 2 * t + 1]] for t in range(4)]
    assert second.steps["observation/pair/0"].tolist() == [[[10 + 2 * t, 11 + 2 * t]] for t in range(3)]
    assert plain(second.steps["observation/pair/1"]) == [b"a", b"b", b"c"]
    assert (first.steps["action"].tolist(), second.steps["reward"].tolist()) == ([0, 1, 2, 0], [0.0, 0.5, 0.0])
    assert [e.steps["is_terminal"].tolist() for e in (first, second)] == [[False] * 4, [False, False, True]]
    assert first.steps["is_last"].tolist() == [False] * 3 + [True]
    file = tmp_path / "arrow-v0" / "data" / "1" / f"part-0.{kind}"
    for content in (file.read_bytes()[:-40], b"", None):
        file.unlink() if content is None else file.write_bytes(content)
        whole, damaged = read_back(tmp_path / "arrow-v0", "minari")
        assert not whole.faults and damaged.faults[0].rule == "corrupt_record"
        assert "episode 1 cannot be read" in damaged.faults[0].detail


# EnvLogger


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A log of 40 episodes of 6 steps, in chunks of a few; the last one is not finished."""
    pytest.importorskip("envlogger.backends.python")
    import dm_env
    import envlogger
    from dm_env import specs
    from envlogger.backends import riegeli_backend_writer

    class Env(dm_env.Environment):
        def __init__(self):
            self.time, self.rng = 0, np.random.default_rng(0)

        def _observe(self):
            image = self.rng.integers(0, 255, (32, 32, 3), np.uint8)
            return {"state": np.full(2, self.time, np.float32), "image": image}

        def reset(self):
            self.time = 0
            return dm_env.restart(self._observe())

        def step(self, action):
            self.time += 1
            if self.time == 5:
                return dm_env.termination(1.0, self._observe())
            return dm_env.transition(0.5 * self.time, self._observe(), 1.0)

        def observation_spec(self):
            return {"state": specs.Array((2,), np.float32), "image": specs.Array((32, 32, 3), np.uint8)}

        def action_spec(self):
            return specs.BoundedArray((2,), np.float32, -1, 1)

    directory = tmp_path_factory.mktemp("log")
    backend = riegeli_backend_writer.RiegeliBackendWriter(
        str(directory), writer_options="transpose,brotli:1,chunk_size:95k"
    )
    env = envlogger.EnvLogger(Env(), step_fn=lambda timestep, action, env: {"propensity": 0.25}, backend=backend)
    for number in range(40):
        env.reset()
        for _ in range(5 if number < 39 else 2):
            env.step(np.full(2, number / 40, np.float32))
    env.close()
    return directory


@pytest.fixture(scope="module")
def whole(log):
    """Its episodes."""
    return read_back(log, "envlogger")


def shard_of(log: Path) -> Path:
    (shard,) = [path for path in log.iterdir() if path.is_dir()]
    return shard


def test_envlogger_has_what_was_logged(log):
    found = read_back(log, "envlogger", ranges=3)
    assert [len(e) for e in found] == [6] * 39 + [3]
    episode = found[4]
    assert episode.faults == ()
    assert episode.steps["observation/state"][:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert episode.steps["observation/image"].shape == (6, 32, 32, 3)
    assert episode.steps["action"][:, 0].tolist() == [np.float32(0.1)] * 5 + [0]
    assert episode.steps["reward"].tolist() == [0.5, 1.0, 1.5, 2.0, 1.0, 0]
    assert episode.steps["discount"].tolist() == [1, 1, 1, 1, 0, 0]
    assert episode.steps["is_terminal"].tolist() == [False] * 5 + [True]
    assert plain(episode.steps["propensity"]) == [0.25] * 6
    assert not found[-1].steps["is_last"].any()


@pytest.mark.parametrize("damage", ["byte", "cut"])
def test_envlogger_reads_what_can_be_read_of_a_damaged_log(log, tmp_path, damage):
    shutil.copytree(log, tmp_path / "log")
    file = shard_of(tmp_path / "log") / "steps.riegeli"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content if damage == "byte" else content[: len(content) // 2])
    found, whole = read_back(tmp_path / "log", "envlogger"), read_back(log, "envlogger")
    lost = [i for i, episode in enumerate(found) if episode.faults]
    assert {fault.rule for i in lost for fault in found[i].faults} == {"corrupt_record"}
    assert len(found) == 40 and 0 < len(lost) < (15 if damage == "byte" else 26)
    assert lost == list(range(lost[0], lost[-1] + 1))
    if damage == "byte":
        assert lost[-1] < 39  # what comes after the damage is read
    for ours, other in zip(found, whole, strict=True):
        assert ours.faults or plain(ours.steps["observation/image"]) == plain(other.steps["observation/image"])


def damaged(log: Path, into: Path) -> Path:
    """The shard of a copy."""
    shutil.copytree(log, into)
    return shard_of(into)


def images_of(episodes: list[Any]) -> list[Any]:
    return [plain(e.steps["observation/image"]) for e in episodes if not e.faults]


def reasons(episodes: list[Any]) -> list[str]:
    assert {fault.rule for e in episodes for fault in e.faults} <= {"corrupt_record"}
    return [fault.detail for e in episodes for fault in e.faults]


INDEXES = ("episode_index.riegeli", "step_offsets.riegeli", "episode_metadata.riegeli")


@pytest.mark.parametrize(
    ("how", "names"),
    [("missing", INDEXES[:1]), ("missing", INDEXES[1:2]), ("missing", INDEXES), ("empty", INDEXES)],
    ids=["index", "offsets", "all", "all empty"],
)
def test_envlogger_without_index_files(log, whole, tmp_path, how, names):
    shard = damaged(log, tmp_path / "log")
    for name in names:
        (shard / name).unlink() if how == "missing" else (shard / name).write_bytes(b"")
    found = read_back(tmp_path / "log", "envlogger", ranges=3)
    assert images_of(found) == images_of(whole)
    told = reasons(found)
    assert len(told) == 1 and len(found) == 41 and found[-1].faults
    assert "40 episodes of 237 steps were found in steps.riegeli" in told[0]
    if how == "missing":
        assert all(f"{name} is missing" in told[0] for name in names)


def test_envlogger_whose_writer_was_killed(log, whole, tmp_path):
    """What a flush leaves: no index of the last episode, and the beginning of a chunk that was never finished."""
    shard = damaged(log, tmp_path / "log")
    steps = (shard / "steps.riegeli").read_bytes()
    (shard / "steps.riegeli").write_bytes(steps[: len(steps) * 3 // 5])
    for name in INDEXES:
        (shard / name).unlink()
    found = read_back(tmp_path / "log", "envlogger")
    complete = [e for e in found if not e.faults and e.steps["is_last"].any()]
    assert images_of(complete) == images_of(whole)[: len(complete)]
    (told,) = reasons(found)
    assert 10 < len(found) < 40 and f"to {len(steps) * 3 // 5:,} of steps.riegeli hold no step" in told
    report = export(tmp_path / "log", tmp_path / "out", "rlds", from_="envlogger")
    assert (report.items_written, report.rejected) == (len(complete), len(found) - len(complete))


def test_envlogger_with_a_damaged_header_and_no_offsets(log, whole, tmp_path):
    """The steps of a chunk are lost, and those of the next ones are found again by the headers of blocks."""
    from rlds_beam.formats.envlogger.riegeli import Chunk, scan

    shard = damaged(log, tmp_path / "log")
    with open(shard / "steps.riegeli", "rb") as file:
        chunks = [chunk for chunk in scan(file) if isinstance(chunk, Chunk)]
    content = bytearray((shard / "steps.riegeli").read_bytes())
    content[chunks[1].begin + (24 if chunks[1].begin % 65536 == 0 else 0) + 3] ^= 0xFF
    (shard / "steps.riegeli").write_bytes(content)
    (shard / "step_offsets.riegeli").unlink()
    found = read_back(tmp_path / "log", "envlogger")
    (told,) = reasons(found)
    images, expected = images_of(found), images_of(whole)
    kept = [image for image in images if image in expected]
    assert f"bytes {chunks[1].begin:,} to" in told and "whose beginning is lost" in told
    assert 25 < len(kept) < 40 and expected[-2] in kept
    (cut,) = [e for e in found[:-2] if not e.steps["is_last"].any()]  # two episodes do not become one
    image = plain(cut.steps["observation/image"])
    assert image in [e[: len(image)] for e in expected]


def test_envlogger_with_a_shard_without_steps(log, tmp_path):
    shard = damaged(log, tmp_path / "log")
    other = shard.with_name("20990101T000000000000")
    shutil.copytree(shard, other)
    (other / "steps.riegeli").unlink()
    found = read_back(tmp_path / "log", "envlogger")
    assert len(found) == 41 and found[-1].faults[0].detail.count("there is no steps.riegeli") == 1
    job = open_job(tmp_path / "log", tmp_path / "out", "rlds", from_="envlogger")
    assert len(job.source.splits[0].shards) == 2


FROM = {"lerobot": {"fps": 10}, "lerobot 2.1": {"fps": 10, "lerobot_version": "2.1"}, "rlds": {}, "numpy": {},
        "minari": {}, "d3rlpy": {}, "trajectories": {"items": "frames"}}  # fmt: skip


@pytest.mark.parametrize("of", FROM)
def test_special_characters_of_a_directory(tmp_path, of):
    if of in ("minari", "d3rlpy"):
        pytest.importorskip("h5py")
    data = write_dataset(tmp_path / "data[1]", [make_episode(4, seed=i, observation={"x": 2}) for i in range(2)])
    to = of.split()[0]
    made = tmp_path / "a*b[12]?"
    export(data, made, to, **FROM[of])
    assert [len(episode) for episode in read_back(made, to)] == [4, 4]
    if to == "trajectories":
        (shard,) = made.glob("*-of-00001")
        assert len(read_back(shard, to)) == 2
