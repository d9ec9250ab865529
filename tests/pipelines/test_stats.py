"""`rlds-beam stats`: equals numpy on the whole data, for any number of workers; files for other projects."""

from __future__ import annotations

import json

import numpy as np
import pytest
from exchanging import read_back

from rlds_beam.cli.main import main
from rlds_beam.connectors.statistics.episode_statistics import DatasetStatistics
from rlds_beam.connectors.statistics.statistics_formats import statistics_in
from rlds_beam.testing import make_episode, write_dataset


@pytest.fixture(scope="module")
def episodes():
    tasks = ["push", "pull", "lift"]
    return [
        make_episode(4 + i % 7, seed=i, metadata={"task": tasks[i % 3]}, observation={"state": 4}) for i in range(30)
    ]


@pytest.fixture(scope="module")
def source(tmp_path_factory, episodes):
    directory = tmp_path_factory.mktemp("data")
    write_dataset(directory, episodes[:20], shards=3)
    return write_dataset(directory, episodes[20:], split="test", shards=2)


def run(source, tmp_path, *flags: str) -> dict:
    path = tmp_path / "stats.json"
    assert main(["stats", str(source), f"--output={path}", "--workers=1", *flags]) == 0
    return json.loads(path.read_text())


def test_it_equals_numpy_on_the_whole_data(source, episodes, tmp_path):
    found = run(source, tmp_path, "--by=episode_metadata/task")
    for name, chosen in {"all": episodes, "train": episodes[:20], "push": episodes[::3]}.items():
        content = {"all": found, "train": found["splits"].get("train"), "push": found["groups"].get("push")}[name]
        actions = np.concatenate([e.steps["action"][:-1] for e in chosen]).astype(np.float64)
        states = np.concatenate([e.steps["observation/state"] for e in chosen]).astype(np.float64)
        for path, values in {"action": actions, "observation/state": states}.items():
            leaf = content["fields"][path]
            np.testing.assert_allclose(leaf["mean"], values.mean(axis=0), rtol=1e-12, atol=1e-15)
            np.testing.assert_allclose(leaf["std"], values.std(axis=0), rtol=1e-12)
            np.testing.assert_allclose(leaf["q01"], np.quantile(values, 0.01, axis=0), rtol=1e-12)
            assert leaf["count"] == len(values)
        assert content["episodes"] == len(chosen)
        assert content["transitions"] == len(actions)
    assert found["groups"].keys() == {"push", "pull", "lift"}
    assert found["splits"].keys() == {"train", "test"}


def test_formats_of_other_projects(source, tmp_path):
    own = run(source, tmp_path)
    flags = ("--proprio=observation/state",)
    openvla = run(source, tmp_path, "--format=openvla", *flags)["testing"]
    assert openvla["action"].keys() == {"mean", "std", "max", "min", "q01", "q99", "mask"}
    assert openvla["action"]["q01"] == own["fields"]["action"]["q01"]
    assert (openvla["num_transitions"], openvla["num_trajectories"]) == (own["transitions"], 30)
    octo = run(source, tmp_path, "--format=octo", *flags)
    assert octo["proprio"]["p99"] == own["fields"]["observation/state"]["q99"]
    openpi = run(source, tmp_path, "--format=openpi", *flags)["norm_stats"]
    assert openpi["state"].keys() == openpi["actions"].keys() == {"mean", "std", "q01", "q99"}
    lerobot = run(source, tmp_path, "--format=lerobot")
    assert lerobot["next.reward"]["count"] == [own["transitions"]]
    assert {len(np.shape(value)) for leaf in lerobot.values() for value in leaf.values()} == {1}
    assert "proprio" not in statistics_in("octo", own)
    assert statistics_in("openvla", own)["testing"]["proprio"]["q99"] == [0.0, 0.0]


@pytest.fixture(scope="module")
def all_broken(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("broken"), [make_episode(5, breaks=["missing_is_last"])] * 3)


def test_the_file_is_the_same_to_the_last_byte_on_every_run(tmp_path):
    """The result is the same for any number of workers; other parts of the data change at most its last bits."""
    rng = np.random.default_rng(0)
    episodes = []
    for i in range(60):
        length = int(rng.integers(1, 40))
        actions, state = rng.integers(0, 2, length), rng.normal(size=(length, 3)) * 10.0 ** rng.integers(-6, 7)
        columns = {"action": actions, "observation": state, "reward": state[:, 0]}
        columns |= {"propensity": rng.uniform(0.01, 1, length), "target_propensity": rng.uniform(0, 1, length)}
        episodes.append(make_episode(length, seed=i, columns=columns))
    data = write_dataset(tmp_path, episodes, shards=7)
    found = set()
    for i, workers in enumerate((1, 2)):
        path = tmp_path / f"{i}.json"
        flags = [f"--output={path}", f"--workers={workers}"]
        assert main(["stats", str(data), *flags]) == 0
        found.add(path.read_bytes())
    assert len(found) == 1
    content = json.loads(found.pop())
    assert content.pop("dataset") == "testing/1.0.0"
    checked = read_back(data, "rlds")
    for _ in range(5):
        parts = np.array_split(rng.permutation(len(checked)), rng.integers(1, 9))
        every = [DatasetStatistics.from_episodes(checked[i] for i in part) for part in parts]
        other = every[0].merge(*every[1:]).to_json()
        np.testing.assert_allclose(numbers(other), numbers(content), rtol=1e-9)


def numbers(content):
    """All numbers in JSON, in order."""
    if isinstance(content, dict):
        content = list(content.values())
    return [number for value in content for number in numbers(value)] if isinstance(content, list) else [content]


def test_fields_are_chosen(source, tmp_path, capsys):
    path = tmp_path / "stats.json"
    arguments = ["stats", str(source), "--workers=1", "--fields=observation/*,episode_length"]
    assert main([*arguments, f"--output={path}"]) == 0
    printed = capsys.readouterr().out
    assert "observation/state[3]" in printed and "episode_length" in printed
    assert "action" not in printed and "episode_return" not in printed
    assert "action" in json.loads(path.read_text())["fields"]
    assert main(["stats", str(source), "--fields=observations"]) == 2
    assert "no field with statistics has this name; did you mean observation/state?" in capsys.readouterr().err
