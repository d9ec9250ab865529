"""Outputs in other programs' formats, and sources that read them back: a format keeps what it can hold."""

from __future__ import annotations

import itertools
import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchanging import export, plain, read_back, rich_dataset
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam import open_dataset
from rlds_beam.drop_in.scope_rl.logged_dataset import KEYS
from rlds_beam.episodes.columns import is_text, text_bytes
from rlds_beam.formats.arrays import parts
from rlds_beam.formats.arrays.array_episodes import pack, unpack
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.processing.report import Report
from rlds_beam.testing import make_episode, read_rejected, write_dataset


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


def texts(folder: Path, name: str) -> list[bytes]:
    """The values of an array of bytes and offsets."""
    data, offsets = np.load(folder / f"{name}.npy"), np.load(folder / f"{name}.offsets.npy")
    return [data[start:stop].tobytes() for start, stop in itertools.pairwise(offsets)]


def test_numpy_keeps_every_field(rich, exported):
    folder = exported("numpy") / "train"
    for path, column in rich[1][0].steps.items():
        expected = [value for episode in rich[1] for value in plain(episode.steps[path])]
        name = path.replace("/", ".")
        if isinstance(column, EncodedImages):
            pixels = [episode.steps[path].decode() for episode in rich[1]]
            assert np.array_equal(np.load(folder / f"{name}.npy"), np.concatenate(pixels))
        elif is_text(column):
            assert texts(folder, name) == [text_bytes(value, path) for value in expected], path
        else:
            found = np.load(folder / f"{name}.npy")
            assert found.dtype == column.dtype and found.tolist() == expected, path
    made = [episode.metadata for episode in rich[1]]
    ids = [metadata["episode_id"].encode() for metadata in made]
    assert texts(folder, "episode_metadata.episode_id") == ids
    assert np.load(folder / "episode_metadata.seed.npy").tolist() == [metadata["seed"] for metadata in made]
    assert np.load(folder / "episode_metadata.pose.npy").tolist() == [metadata["pose"].tolist() for metadata in made]


@pytest.mark.parametrize("to", ["numpy", "zarr"])
def test_the_blocks_of_parts_do_not_change_the_bytes(rich, exported, to, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "BLOCK_BYTES", 1)
    export(rich[0], tmp_path / "out", to, shards=3)
    files = [path for path in exported(to).rglob("*") if path.suffix in (".npy", ".zip")]
    assert files
    for path in files:
        assert (tmp_path / "out" / path.relative_to(exported(to))).read_bytes() == path.read_bytes(), path


# SCOPE-RL


def logged(steps: int, *, terminal: bool, seed: int):
    rng = np.random.default_rng(seed)
    columns = {
        "action": rng.integers(0, 3, steps, np.int64),
        "propensity": rng.random(steps, np.float32),
        "info/click": np.arange(steps),
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
    found["reward"][0] = 7  # it is writable


def test_scope_rl_rejects_longer_episodes(tmp_path):
    episodes = [logged(steps, terminal=True, seed=steps) for steps in (4, 6, 3)]
    data = write_dataset(tmp_path / "data", episodes)
    report = export(data, tmp_path / "out", "scope_rl", step_per_trajectory=3, behavior_policy="eg")
    assert (report.items_written, report.rejected) == (2, 1)
    assert [line["detail"] for line, _ in read_rejected(tmp_path / "out")] == [
        "5 actions, but --step_per_trajectory=3",
    ]
    assert (tmp_path / "out" / "logged_dataset_discrete_eg_0.pickle").exists()


def test_scope_rl_rejects_actions_above_n_actions(tmp_path):
    data = write_dataset(tmp_path / "data", [logged(6, terminal=True, seed=seed) for seed in range(6)])
    report = export(data, tmp_path / "out", "scope_rl", n_actions=1)
    assert report.rejected > 0
    assert "but --n_actions=1" in read_rejected(tmp_path / "out")[0][0]["detail"]
    assert export(data, tmp_path / "all", "scope_rl", n_actions=9).rejected == 0


# All formats


def test_an_episode_without_a_transition_is_rejected(tmp_path):
    data = write_dataset(tmp_path / "data", [make_episode(5), make_episode(1, seed=1)])
    report = export(data, tmp_path / "out", "scope_rl")
    assert (report.items_written, report.rejected) == (1, 1)
    ((line, _),) = read_rejected(tmp_path / "out")
    assert line["rule"] == "not_representable" and "no action" in line["detail"]


# Bytes


@given(st.lists(st.tuples(st.sampled_from("?iuf"), st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=4))
def test_packed_arrays(shapes):
    dtypes = {"?": np.bool_, "i": np.int64, "u": np.uint8, "f": np.float32}
    arrays = {f"a/{i}": np.ones((rows, width), dtypes[kind]) for i, (kind, rows, width) in enumerate(shapes)}
    arrays["text"] = np.array([b"", "é".encode(), b"x" * 300, None], object)[:3]
    payload = pack(arrays)
    found = unpack(payload)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and found[name].tolist() == array.tolist()
    (size,) = struct.unpack_from("<Q", payload)  # the format of safetensors
    assert json.loads(payload[8 : 8 + size])["a/0"]["shape"] == [*arrays["a/0"].shape]
    for damaged in (b"", payload[:60], payload[:-1][::-1]):
        with pytest.raises(ValueError, match="not the arrays"):
            unpack(damaged)


LAST_ZERO, NOT_UTF8 = [b"\0", b"end\0"], [b"\xff\xfe", b"a\xed\xa0\x80"]
TEXTS = [b"plain", "é\U0001f600".encode(), b"a\0b", *LAST_ZERO, *NOT_UTF8]
PLACES = ["note", "observation/mission", "language_instruction", "episode_metadata/policy"]
OUTPUTS: dict[str, tuple[str, dict[str, Any], list[bytes], str]] = {
    "rlds": ("rlds", {}, [], ""),
    "numpy": ("numpy", {}, [], ""),
    "trajectories": ("trajectories", {"keep": PLACES}, [], ""),
    "zarr": ("zarr", {}, LAST_ZERO, "a text ends with a zero byte"),
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
    if to == "numpy":
        found = texts(output / "train", place.replace("/", "."))
        return found if "metadata" in place else found[1::3]
    episodes = read_back(output, to)
    return [bytes(e.metadata[place] if "metadata" in place else e.steps[place][1]) for e in episodes]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("output", OUTPUTS)
def test_a_text_is_kept_as_it_is_or_its_episode_is_rejected(output: str, place: str, tmp_path: Path) -> None:
    to, options, rejected, said = OUTPUTS[output]
    report = convert(tmp_path, place, to, options)
    assert stored(tmp_path / "out", to, place) == [text for text in TEXTS if text not in rejected]
    assert report.rejected == len(rejected) and not [path for path in report.left_out if place in path]
    details = [sample.detail for rule in report.rules.values() for sample in rule.samples]
    assert len(details) == len(rejected)
    for detail in details:
        assert detail.startswith(place) and any(text in detail for text in said.split("|"))
