"""Outputs in other programs' formats, and sources that read them back: a format keeps what it can hold."""

from __future__ import annotations

import io
import json
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchanging import assert_equal, export, open_job, plain, read_back, rich_dataset
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam import open_dataset
from rlds_beam.cli.main import main
from rlds_beam.drop_in.scope_rl.logged_dataset import KEYS
from rlds_beam.episodes.columns import text_bytes
from rlds_beam.errors import BadEpisode, MissingExtraError, UsageError, pip_install
from rlds_beam.formats.arrays.array_episodes import pack, unpack
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.jobs.convert import prepare
from rlds_beam.jobs.options import ConvertOptions
from rlds_beam.processing.report import Report
from rlds_beam.testing import make_episode, read_rejected, write_dataset

VOID = ("action", "reward", "discount")


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    return rich_dataset(tmp_path_factory.mktemp("rich"))


@pytest.fixture(scope="module")
def exported(rich, tmp_path_factory):
    """Exports a dataset in a format, once for all tests."""
    made: dict[str, Path] = {}

    def get(to: str, **options: Any) -> Path:
        name = to + "".join(options.values())
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name) / "out"
            assert export(rich[0], made[name], to, **options).items_written == len(rich[1])
        return made[name]

    return get


# NumPy


def test_numpy_keeps_every_field(rich, exported):
    back = read_back(exported("numpy", images="jpeg"), "numpy", ranges=2)
    assert len(back) == 7
    for found, expected in zip(back, rich[1], strict=True):
        assert_equal(found, expected)
        metadata = {path.split("/")[-1]: value for path, value in found.metadata.items()}
        assert metadata["episode_id"] == expected.metadata["episode_id"].encode()
        assert metadata["seed"] == expected.metadata["seed"]
        assert metadata["pose"].tolist() == expected.metadata["pose"].tolist()


def test_numpy_loads_the_arrays(rich, exported):
    folder = exported("numpy") / "train"
    offsets = np.load(folder / "episode_offsets.npy")
    assert offsets.tolist() == np.cumsum([0, *map(len, rich[1])]).tolist()
    state = np.load(folder / "observation.state.npy", mmap_mode="r")
    assert state[offsets[4] : offsets[5]].tolist() == rich[1][4].steps["observation/state"].tolist()
    pixels = np.load(folder / "observation.image.npy")
    images = rich[1][3].steps["observation/image"]
    assert isinstance(images, EncodedImages)
    assert np.array_equal(pixels[offsets[3] : offsets[4]], images.decode())
    assert not (exported("numpy") / "parts").exists()


# d3rlpy


def test_d3rlpy_holds_transitions(rich, tmp_path):
    h5py = pytest.importorskip("h5py")
    out = tmp_path / "out"
    report = export(rich[0], out, "d3rlpy")
    assert report.left_out["language"] == "d3rlpy has no such field"
    assert report.left_out["observation/mission"] == "text"
    with h5py.File(out / "rich-train.h5") as file:
        assert [name.decode() for name in file["columns"][()]] == ["observations", "actions", "rewards", "terminated"]
        assert (int(file["num_episodes"][()]), file["version"][()].decode()) == (7, "2.1")
        for i, episode in enumerate(rich[1]):
            terminal = bool(episode.steps["is_terminal"][-1])
            rows = len(episode) - terminal
            assert bool(file[f"terminated_{i}"][()]) == terminal
            assert file[f"actions_{i}"].shape == (rows, 1)
            assert file[f"rewards_{i}"][:, 0].tolist() == episode.steps["reward"][:rows].tolist()
            assert file[f"observations_{i}_1"].shape == (rows, 3, 40, 40)  # channels first


def test_d3rlpy_round_trip(rich, exported):
    pytest.importorskip("h5py")
    back = read_back(exported("d3rlpy"), "d3rlpy", ranges=3)
    for found, expected in zip(back, rich[1], strict=True):
        terminal = bool(expected.steps["is_terminal"][-1])
        stop = len(expected) - terminal  # d3rlpy does not store the observation after a terminated episode
        assert found.faults == ()
        for path in ("observation/state", "observation/count", "observation/on", "action", "reward"):
            assert found.steps[path].dtype == expected.steps[path].dtype
            assert plain(found.steps[path][:stop]) == plain(expected.steps[path][:stop])
        assert np.array_equal(
            found.steps["observation/image"][:stop], expected.steps["observation/image"].decode()[:stop]
        )
        for flag in ("is_first", "is_last", "is_terminal"):
            assert plain(found.steps[flag]) == plain(expected.steps[flag])
        assert plain(found.steps["discount"][: stop - 1]) == plain(expected.steps["discount"][: stop - 1])


# Minari


@pytest.mark.parametrize("images", ["raw", "jpeg"])
def test_minari_round_trip(rich, exported, images):
    pytest.importorskip("h5py")
    back = read_back(exported("minari", images=images), "minari", ranges=2)
    for found, expected in zip(back, rich[1], strict=True):
        if images == "raw":
            decoded = expected.steps["observation/image"].decode()
            expected = expected.replace(steps={**expected.steps, "observation/image": decoded})
        assert_equal(found, expected, void=VOID)
        metadata = {path.split("/")[-1]: value for path, value in found.metadata.items()}
        assert metadata["episode_id"] == expected.metadata["episode_id"].encode()
        assert metadata["pose"].tolist() == expected.metadata["pose"].tolist()


def test_minari_layout(rich, exported):
    h5py = pytest.importorskip("h5py")
    out = exported("minari", images="jpeg") / "data"
    metadata = json.loads((out / "metadata.json").read_text())
    assert (metadata["total_episodes"], metadata["total_steps"]) == (7, sum(len(e) - 1 for e in rich[1]))
    assert json.loads(metadata["action_space"]) == {"type": "Discrete", "dtype": "int64", "start": 0, "n": 4}
    spaces = json.loads(metadata["observation_space"])["subspaces"]
    assert spaces["mission"]["type"] == "Text" and "é" in spaces["mission"]["charset"]
    assert spaces["count"]["start"] == -3
    with h5py.File(out / "main_data.hdf5") as file:
        for i, episode in enumerate(rich[1]):
            group, end = file[f"episode_{i}"], np.arange(len(episode) - 1) == len(episode) - 2
            assert dict(group.attrs) == {"id": i, "total_steps": len(episode) - 1}
            terminal = bool(episode.steps["is_terminal"][-1])
            assert group["terminations"][()].tolist() == (end & terminal).tolist()
            assert group["truncations"][()].tolist() == (end & (not terminal)).tolist()
            jpegs = [value.tobytes() for value in group["observations/image"][()]]
            assert jpegs == list(episode.steps["observation/image"])
            assert group["infos/discount"].shape == (len(episode),)


# RLlib and SCOPE-RL


def test_rllib_episodes_are_packed_states(rich, exported):
    import msgpack
    import msgpack_numpy
    import pyarrow.parquet

    folder = exported("rllib") / "train"
    items = [item for file in sorted(folder.iterdir()) for item in pyarrow.parquet.read_table(file)["item"].to_pylist()]
    assert len({*items}) == 7
    for item, episode in zip(items, rich[1], strict=True):
        state, end = msgpack.unpackb(item, object_hook=msgpack_numpy.decode), len(episode) - 1
        assert state["observations"]["data"]["state"].tolist() == episode.steps["observation/state"].tolist()
        assert state["rewards"]["data"].tolist() == episode.steps["reward"][:-1].tolist()
        assert state["infos"]["data"] == [{}] * (end + 1) and state["t"] == end
        assert episode.steps["propensity"][:-1].tobytes() in item


def logged(steps: int, *, terminal: bool, seed: int):
    rng = np.random.default_rng(seed)
    columns = {
        "action": rng.integers(0, 3, steps, np.int64),
        "propensity": rng.random(steps, np.float32),
        "info/click": np.arange(steps),
        "info/tag": [f"t{i}" for i in range(steps)],
    }
    made = make_episode(steps, seed=seed, observation={"x": (), "v": 2}, terminal=terminal, columns=columns)
    return made.replace(metadata={"policy": "greedy_0.3"})


def test_scope_rl_pads_to_the_longest_episode(tmp_path):
    episodes = [logged(4, terminal=True, seed=0), logged(6, terminal=False, seed=1), logged(2, terminal=True, seed=2)]
    export(write_dataset(tmp_path / "data", episodes, shards=3), tmp_path / "out", "scope_rl", shards=2)
    with (tmp_path / "out" / "logged_dataset_discrete_testing_0.pickle").open("rb") as file:
        found = pickle.load(file)
    assert [*found][: len(KEYS)] == list(KEYS)
    assert (found["size"], found["n_trajectories"], found["step_per_trajectory"]) == (15, 3, 5)
    assert (found["state_keys"], found["behavior_policy"]) == (["v_0", "v_1", "x"], "greedy_0.3")
    assert found["action"].dtype == np.int64 and found["state"].shape == (15, 3)
    assert found["mask"].tolist() == [1, 1, 1, 0, 0] + [1] * 5 + [1, 0, 0, 0, 0]
    assert found["done"].tolist() == [0, 0, 1, 1, 1] + [0, 0, 0, 0, 1] + [1] * 5
    assert found["terminal"].tolist() == [0] * 9 + [1] + [0] * 5
    assert found["terminated"].tolist() == [0, 0, 1] + [0] * 7 + [1, 0, 0, 0, 0]
    assert found["truncated"].tolist() == [0] * 9 + [1] + [0] * 5
    first, second = episodes[:2]
    assert found["reward"][:5].tolist() == [*first.steps["reward"][:3].astype(float), 0, 0]
    assert found["pscore"][:5].tolist() == [*first.steps["propensity"][:3].astype(float), 1, 1]
    assert found["pscore"][5:10].tolist() == second.steps["propensity"][:5].astype(float).tolist()
    assert found["state"][3].tolist() == found["state"][2].tolist()
    assert found["info"]["click"].tolist() == [0, 1, 2, 2, 2, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0]
    assert found["info"]["tag"][:5] == ["t0", "t1", "t2", "t2", "t2"]
    found["reward"][0] = 7  # it is writable


def test_the_summary_of_scope_rl_counts_padding(tmp_path, capsys):
    data = write_dataset(tmp_path / "data", [logged(steps, terminal=True, seed=steps) for steps in (4, 6, 2)])
    flags = ["--to=scope_rl", "--runner=FnApiRunner"]
    for _ in range(2):  # the second time, it is already complete
        assert main(["convert", str(data), str(tmp_path / "out"), *flags]) == 0
        assert "6 of 15 rows are padding (their mask is 0)" in capsys.readouterr().out
    assert main(["convert", str(data), str(tmp_path / "out"), *flags, "--json"]) == 0
    assert "6 of 15 rows are padding" in json.loads(capsys.readouterr().out)["notes"][0]
    even = write_dataset(tmp_path / "even", [logged(4, terminal=True, seed=1)])
    assert main(["convert", str(even), str(tmp_path / "even_out"), *flags]) == 0
    assert "padding" not in capsys.readouterr().out


def test_scope_rl_rejects_episodes_of_another_length(tmp_path):
    episodes = [logged(steps, terminal=True, seed=steps) for steps in (4, 6, 3)]
    data = write_dataset(tmp_path / "data", episodes)
    report = export(data, tmp_path / "out", "scope_rl", step_per_trajectory=3, behavior_policy="eg", ragged="reject")
    assert (report.items_written, report.rejected) == (1, 2)
    assert [line["detail"] for line, _ in read_rejected(tmp_path / "out")] == [
        "5 actions, but --step_per_trajectory=3",
        "2 actions, but --step_per_trajectory=3",
    ]
    assert (tmp_path / "out" / "logged_dataset_discrete_eg_0.pickle").exists()
    with pytest.raises(UsageError, match="--ragged=reject needs --step_per_trajectory=N"):
        open_job(data, tmp_path / "other", "scope_rl", ragged="reject")


def test_scope_rl_rejects_actions_above_n_actions(tmp_path):
    data = write_dataset(tmp_path / "data", [logged(6, terminal=True, seed=seed) for seed in range(6)])
    report = export(data, tmp_path / "out", "scope_rl", n_actions=1)
    assert report.rejected > 0
    assert "but --n_actions=1" in read_rejected(tmp_path / "out")[0][0]["detail"]
    assert export(data, tmp_path / "all", "scope_rl", n_actions=9).rejected == 0


# All formats


@pytest.mark.parametrize("to", ["d3rlpy", "minari"])
def test_an_episode_without_a_transition_is_rejected(tmp_path, to):
    data = write_dataset(tmp_path / "data", [make_episode(5), make_episode(1, seed=1)])
    report = export(data, tmp_path / "out", to)
    assert (report.items_written, report.rejected) == (1, 1)
    ((line, _),) = read_rejected(tmp_path / "out")
    assert line["rule"] == "not_representable" and "one step" in line["detail"]


def test_fields_that_a_format_cannot_hold_are_refused(tmp_path):
    nested = write_dataset(tmp_path / "nested", [make_episode(4, action={"arm": 2, "hand": 1})])
    with pytest.raises(UsageError, match=r"the action must be one array, but the dataset has action/arm, action/hand"):
        open_job(nested, tmp_path / "out", "d3rlpy")
    rewards = make_episode(4, columns={"reward": np.zeros((4, 2), np.float32)})
    with pytest.raises(UsageError, match="the reward must be one number per step"):
        open_job(write_dataset(tmp_path / "rewards", [rewards]), tmp_path / "out", "minari")


@pytest.mark.parametrize("to", ["d3rlpy", "minari"])
def test_hdf5_is_refused_without_h5py(rich, tmp_path, monkeypatch, to):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=rf"--to={to} writes HDF5 .*: {re.escape(pip_install('hdf5'))}$"):
        prepare(ConvertOptions.create(str(rich[0]), str(tmp_path / "out"), to=to))


def test_minari_holds_empty_arrays_and_names_with_braces(tmp_path):
    pytest.importorskip("h5py")
    columns = {"none": np.zeros((4, 0), np.float32), "a{}b": np.arange(4)}
    episodes = [make_episode(4, seed=seed, columns=columns) for seed in (0, 1)]
    export(write_dataset(tmp_path / "data", episodes), tmp_path / "out", "minari")
    for found in read_back(tmp_path / "out", "minari"):
        assert found.steps["none"].shape == (4, 0) and plain(found.steps["a{}b"]) == [0, 1, 2, 3]


def test_a_file_of_another_program(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["columns"] = [b"observations", b"actions", b"rewards", b"terminated"]
        file["num_episodes"], file["version"] = 3, "2.1"
        for i in (0, 1):
            file[f"observations_{i}"] = np.arange(6, dtype=np.float32).reshape(3, 2) + i
            file[f"actions_{i}"] = np.array([[1], [0], [2]])
            file[f"rewards_{i}"] = np.ones((3, 1), np.float32)
            file[f"terminated_{i}"] = i == 0
    first, second, third = read_back(tmp_path / "x.h5", "d3rlpy")
    assert first.steps["observation"].tolist() == [[0, 1], [2, 3], [4, 5], [0, 0]]
    assert first.steps["action"].tolist() == [1, 0, 2, 0]
    assert first.steps["is_terminal"].tolist() == [False, False, False, True]
    assert first.steps["discount"].tolist() == [1, 1, 0, 0]
    assert second.steps["observation"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert (second.steps["is_last"].tolist(), second.steps["is_terminal"].any()) == ([False, False, True], False)
    assert [fault.rule for fault in third.faults] == ["corrupt_record"]


# Bytes


@given(st.lists(st.tuples(st.sampled_from("?iuf"), st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=4))
def test_packed_arrays_are_npz(shapes):
    dtypes = {"?": np.bool_, "i": np.int64, "u": np.uint8, "f": np.float32}
    arrays = {f"a/{i}": np.ones((rows, width), dtypes[kind]) for i, (kind, rows, width) in enumerate(shapes)}
    arrays["text"] = np.array([b"", "é".encode(), b"x" * 300, None], object)[:3]
    payload = pack(arrays)
    found, theirs = unpack(payload), np.load(io.BytesIO(payload))
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and found[name].tolist() == array.tolist()
    assert all(theirs[name].tolist() == arrays[name].tolist() for name in arrays if name != "text")
    for damaged in (b"", payload[:60], payload[:-1][::-1]):
        with pytest.raises(ValueError, match="not the arrays"):
            unpack(damaged)


ZERO, LAST_ZERO, NOT_UTF8 = [b"a\0b"], [b"\0", b"end\0"], [b"\xff\xfe", b"a\xed\xa0\x80"]
TEXTS = [b"plain", "é\U0001f600".encode(), *ZERO, *LAST_ZERO, *NOT_UTF8]
PLACES = ["note", "observation/mission", "language_instruction", "episode_metadata/policy"]
OUTPUTS: dict[str, tuple[str, dict[str, Any], list[bytes], str]] = {
    "rlds": ("rlds", {}, [], ""),
    "numpy": ("numpy", {}, [], ""),
    "trajectories": ("trajectories", {"keep": PLACES}, [], ""),
    "zarr": ("zarr", {}, LAST_ZERO, "a text ends with a zero byte"),
    "minari": ("minari", {}, [*ZERO, *LAST_ZERO, *NOT_UTF8], "has a zero byte|is not UTF-8"),
    "lerobot": ("lerobot", {"fps": 10}, NOT_UTF8, "not UTF-8"),
    "lerobot 2.1": ("lerobot", {"fps": 10, "lerobot_version": "2.1"}, NOT_UTF8, "not UTF-8"),
}
"""Name -> the output, its options, the texts that it rejects, and what it says of them."""


def convert(tmp_path: Path, place: str, to: str, options: dict[str, Any]) -> Report:
    """Converts an episode for each text, which is at step 1, or in the metadata."""
    made = []
    for i, text in enumerate(TEXTS):
        columns = {} if "metadata" in place else {place: [b"first", text, b"last"]}
        metadata = None if columns else {place.partition("/")[2]: text}
        made.append(make_episode(3, seed=i, observation={"state": 2}, columns=columns, metadata=metadata))
    if "keep" in options:
        options = {**options, "keep": (place,)}
    return export(write_dataset(tmp_path, made, name="texts"), tmp_path / "out", to, **options)


def stored(output: Path, to: str, place: str) -> list[bytes]:
    """The texts of an output, in order."""
    if to == "trajectories":  # two frames of each episode: steps 0 and 1, and steps 1 and 2
        rows = [row[place] for row in open_dataset(output)]
        return [bytes(row if "metadata" in place else row[1]) for row in rows[::2]]
    episodes = read_back(output, to)
    return [bytes(e.metadata[place] if "metadata" in place else e.steps[place][1]) for e in episodes]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("output", OUTPUTS)
def test_a_text_is_kept_as_it_is_or_its_episode_is_rejected(output: str, place: str, tmp_path: Path) -> None:
    to, options, rejected, said = OUTPUTS[output]
    report = convert(tmp_path, place, to, options)
    assert stored(tmp_path / "out", to, place) == [text for text in TEXTS if text not in rejected]
    assert report.rejected == len(rejected) and not [path for path in report.left_out if place in path]
    details = [detail for rule in report.rules.values() for _, detail in rule.samples]
    assert len(details) == len(rejected)
    for detail in details:
        assert detail.startswith(place) and any(part in detail for part in said.split("|"))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("to", ["d3rlpy", "scope_rl", "rllib"])
def test_an_output_without_texts_says_that_it_leaves_them_out(to: str, place: str, tmp_path: Path) -> None:
    report = convert(tmp_path, place, to, {})
    assert (report.rejected, report.valid) == (0, len(TEXTS))
    if (to, place) != ("scope_rl", "episode_metadata/policy"):
        assert place in report.left_out
        return
    (file,) = (tmp_path / "out").glob("*.pickle")
    names = sorted(text.decode("utf-8", "backslashreplace") for text in TEXTS)
    assert pickle.loads(file.read_bytes())["behavior_policy"] == "+".join(names)  # no two become equal


def test_half_of_a_surrogate_pair_is_a_violation() -> None:
    with pytest.raises(BadEpisode, match="surrogate pair"):
        text_bytes("\ud800", "note")
    assert text_bytes(np.str_("é"), "note") == "é".encode()
