"""`rlds-beam record`: the recorded episodes, and the same bytes for every way to run it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checkout import SUPPORT
from directories import bytes_of
from recorded import GREEDY, WALK, Q, get_episodes, recorded
from recorded_environments import LENGTH, q_function, walk

from rlds_beam import UsageError, check, open_source
from rlds_beam.cli.main import main
from rlds_beam.jobs.convert import prepare
from rlds_beam.pipelines.record import RecordConfig
from rlds_beam.recording.record_options import RecordOptions
from rlds_beam.recording.rollout import Address, environment_seed

FLAGS = (f"--env={WALK}", f"--policy={GREEDY}", "--policy=random", "--episodes=40", "--progress=none")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("recorded") / "walks"
    assert main(["record", str(output), *FLAGS]) == 0
    return output


def test_the_episodes_are_those_of_the_environment(undisturbed):
    """Replays each episode by hand from its seed and actions."""
    episodes = get_episodes(undisturbed)
    assert [e["policy"].decode() for e in episodes] == ["greedy"] * 40 + ["random"] * 40
    assert [e["trajectory_id"] for e in episodes] == [*range(40), *range(40)]
    env, ends = walk(), set()
    for episode in episodes:
        observation, _ = env.reset(seed=environment_seed(0, Address(episode["policy_id"], 0, episode["trajectory_id"])))
        steps = len(episode["steps/reward"])
        for t in range(steps - 1):
            np.testing.assert_array_equal(episode["steps/observation"][t], observation)
            observation, reward, terminated, truncated, _ = env.step(int(episode["steps/action"][t]))
            assert episode["steps/reward"][t] == np.float32(reward)
            assert (terminated or truncated) == (t == steps - 2)
        np.testing.assert_array_equal(episode["steps/observation"][-1], observation)  # the final observation is kept
        mark = np.arange(steps)
        np.testing.assert_array_equal(episode["steps/is_first"], mark == 0)
        np.testing.assert_array_equal(episode["steps/is_last"], mark == steps - 1)
        np.testing.assert_array_equal(episode["steps/is_terminal"], (mark == steps - 1) & terminated)
        np.testing.assert_array_equal(
            episode["steps/discount"], np.where(mark == steps - 1, 0, np.where((mark == steps - 2) & terminated, 0, 1))
        )
        assert episode["end"] == (b"terminated" if terminated else b"truncated")
        ends.add(episode["end"])
    assert ends == {b"terminated", b"truncated"}


def test_each_action_has_its_propensity(undisturbed):
    for episode in get_episodes(undisturbed):
        actions = episode["steps/action"][:-1]
        greedy = q_function(episode["steps/observation"][:-1]).argmax(axis=1) == actions
        of_greedy, of_random = np.where(greedy, 1 - 0.3 + 0.3 / 3, 0.3 / 3), np.full(len(actions), 1 / 3)
        own = of_greedy if episode["policy"] == b"greedy" else of_random
        for name, expected in (("", own), ("mixture_", (of_greedy + of_random) / 2)):
            np.testing.assert_allclose(episode[f"steps/{name}propensity"][:-1], expected, rtol=1e-12)
            np.testing.assert_allclose(episode[f"steps/log_{name}propensity"][:-1], np.log(expected), rtol=1e-12)
            assert episode[f"steps/{name}propensity"][-1] == 0  # the last step has no action


def test_the_same_bytes_with_workers_and_on_a_second_run(tmp_path, undisturbed, capsys, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    assert main(["record", str(tmp_path / "out"), *FLAGS, "--workers=2"]) == 0
    assert bytes_of(tmp_path / "out") == bytes_of(undisturbed)
    capsys.readouterr()
    assert main(["record", str(tmp_path / "out"), *FLAGS]) == 0
    assert "nothing to do: " in capsys.readouterr().out
    (tmp_path / "out" / "manifest.json").unlink()
    lost = sorted((tmp_path / "out").glob("*.tfrecord-*"))[3]
    lost.write_bytes(lost.read_bytes()[:-1])
    assert main(["record", str(tmp_path / "out"), *FLAGS]) == 0
    assert bytes_of(tmp_path / "out") == bytes_of(undisturbed)


def test_in_a_users_pipeline(tmp_path, undisturbed):
    import apache_beam as beam

    from rlds_beam.transforms.stages import RunStages

    config = RecordConfig.create(
        str(tmp_path / "out"), env=WALK, policy=(GREEDY, "random"), episodes=40, progress="none"
    )
    with beam.Pipeline("FnApiRunner") as root:
        root | RunStages(prepare(config).stages())
    assert bytes_of(tmp_path / "out") == bytes_of(undisturbed)


@pytest.mark.parametrize(
    ("env", "package", "options"),
    [
        ("dm_control:cartpole/balance", "dm_control", {"steps": 60, "maximum_rollout_length": 5}),
        ("gym:CartPole-v1", "gym", {"episodes": 6}),
        ("gymnasium:CartPole-v1", "gymnasium", {"episodes": 6}),
        ("gymnasium:Pendulum-v1", "gymnasium", {"episodes": 2, "step_per_trajectory": 20}),
    ],
)
def test_environments_of_other_packages_are_seeded(tmp_path, env, package, options):
    """Episodes do not depend on earlier episodes of the environment."""
    pytest.importorskip(package)
    for name, beside in (("one", 1), ("several", 4)):
        recorded(tmp_path / name, "random", env=env, envs_per_worker=beside, **options)
    one, several = get_episodes(tmp_path / "one"), get_episodes(tmp_path / "several")
    for episode, other in zip(one, several, strict=True):
        assert all(np.array_equal(values, other[path]) for path, values in episode.items())
    assert len({next(v for p, v in e.items() if p.startswith("steps/obs")).tobytes() for e in one}) == len(one)


def test_a_factory_with_a_seed_is_called_for_each_episode(tmp_path):
    recorded(tmp_path / "out", "random", env="recorded_environments:seeded", episodes=4)
    starts = {float(episode["steps/observation"][0, 0]) for episode in get_episodes(tmp_path / "out")}
    expected = {float(environment_seed(0, Address(0, 0, i)) % 1000) for i in range(4)}
    assert starts == expected


def test_another_plan_is_refused(tmp_path, undisturbed, capsys):
    before = bytes_of(undisturbed)
    assert main(["record", str(undisturbed), *FLAGS, "--seed=1"]) == 2
    assert "settings.seed was 0 and is now 1" in capsys.readouterr().err
    assert bytes_of(undisturbed) == before


@pytest.mark.parametrize("options", [{"envs_per_worker": 1}, {"shards": 1}, {"shards": 20}])
def test_an_episode_does_not_depend_on_parallel_episodes(tmp_path, options):
    for name, other in (("a", {}), ("b", options)):
        recorded(tmp_path / name, "random", **other)
    for one, other in zip(get_episodes(tmp_path / "a"), get_episodes(tmp_path / "b"), strict=True):
        assert all(np.array_equal(values, other[path]) for path, values in one.items())


def test_the_output_is_an_ordinary_dataset(undisturbed):
    source = open_source(str(undisturbed))
    assert source.dataset == "walk/1.0.0"
    assert source.episodes == 80
    report = check(undisturbed, rules=True, progress="none").report
    assert (report.records, report.rejected) == (80, 0)
    metadata = json.loads((undisturbed / "metadata.json").read_text())
    assert (metadata["environment"], metadata["seed"]) == (WALK, 0)
    assert metadata["policies"] == ["greedy", "random"]
    assert {"rlds-beam", "numpy", "python"} <= metadata["versions"].keys()


def test_tfds_reads_it(undisturbed):
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(undisturbed))
    assert builder.info.splits["train"].num_examples == 80
    ours = get_episodes(undisturbed)[30:50]  # of both policies
    for episode, own in zip(tfds.as_numpy(builder.as_dataset(split="train[30:50]")), ours, strict=True):
        steps = list(episode["steps"])
        assert episode["episode_metadata"]["policy"] == own["policy"]
        for name in ("observation", "action", "reward", "propensity", "log_propensity", "is_terminal"):
            np.testing.assert_array_equal(np.array([step[name] for step in steps]), own[f"steps/{name}"])
        assert steps[0]["propensity"].dtype == np.float64


def test_every_kind_of_observation_and_action(tmp_path):
    """Unclipped actions are stored; the environment asserts that it gets actions in its action space."""
    for images in ("png", "raw"):
        recorded(tmp_path / images, "random", env="recorded_environments:everything", episodes=5, image_encoding=images)
    for png, raw in zip(get_episodes(tmp_path / "png"), get_episodes(tmp_path / "raw"), strict=True):
        assert png.keys() == raw.keys()
        assert all(np.array_equal(values, raw[path]) for path, values in png.items())
        assert png["steps/observation/image"].shape == (5, 4, 5, 3)
        assert png["steps/observation/task"].tolist() == [f"step {t}".encode() for t in range(5)]
        assert png["steps/action/grip"].tolist()[-1] == 0
        assert set(png["steps/action/grip"][:-1]) <= {5, 6}
        arm, pair = png["steps/action/arm"][:-1], png["steps/action/pair/1"]
        assert pair.dtype == np.int32
        normal = np.exp(-(arm[:, 2] ** 2) / 2) / np.sqrt(2 * np.pi)
        expected = 1 / 2 * np.exp(-arm[:, 1]) * normal / 2 / (2 * 3 * 4) / 2**2 / 8**2
        np.testing.assert_allclose(png["steps/propensity"][:-1], expected, rtol=1e-9)
        assert png["end"] == b"terminated"


def test_datasets_are_splits(tmp_path):
    recorded(tmp_path / "out", datasets=2, episodes=10)
    first, second = (get_episodes(tmp_path / "out", f"train_{i}") for i in range(2))
    assert [e["dataset_id"] for e in (*first, *second)] == [0] * 10 + [1] * 10
    assert not np.array_equal(first[0]["steps/observation"][0], second[0]["steps/observation"][0])


def test_info_is_that_of_the_step(tmp_path):
    recorded(tmp_path / "out", obtain_info=True, info_keys=("age", "side", "place"))
    for episode in get_episodes(tmp_path / "out"):
        steps = len(episode["steps/reward"])
        assert episode["steps/info/age"].tolist() == [*range(1, steps), 0]
        np.testing.assert_array_equal(episode["steps/info/place"][:-1], episode["steps/observation"][1:, 0])
        sides = [b"left" if place < 0 else b"right" for place in episode["steps/observation"][1:, 0]]
        assert episode["steps/info/side"].tolist() == [*sides, b""]


def find_windows(output: Path) -> dict[int, list[dict]]:
    windows: dict[int, list[dict]] = {}
    for episode in get_episodes(output):
        windows.setdefault(int(episode["trajectory_id"]), []).append(episode)
    return windows


def test_windows_have_a_fixed_length_across_episode_boundaries(tmp_path):
    recorded(tmp_path / "out", "random", steps=300, step_per_trajectory=15, maximum_rollout_length=9)
    windows = find_windows(tmp_path / "out")
    assert list(windows) == [*range(20)]
    ages = [window[0]["start_step"] for window in windows.values()]
    assert len(set(ages)) > 2
    for window in windows.values():
        assert sum(len(episode["steps/reward"]) - 1 for episode in window) == 15
        assert [episode["part"] for episode in window] == [*range(len(window))]
        assert all(episode["end"] != b"cut" for episode in window[:-1])
        assert all(episode["start_step"] == 0 for episode in window[1:])
        for episode in window:
            age = episode["start_step"] + len(episode["steps/reward"]) - 1
            assert episode["steps/observation"][0, 1] == episode["start_step"]
            assert (episode["end"] == b"truncated") == (age == LENGTH and not episode["steps/is_terminal"][-1])
    assert check(tmp_path / "out", rules=True, progress="none").report.rejected == 0


def test_windows_of_a_single_interaction_continue_from_the_previous_one(tmp_path):
    job = recorded(tmp_path / "out", steps=60, step_per_trajectory=4, single_interaction=True)
    assert len(job.ranges) == 1
    before = None
    for window in find_windows(tmp_path / "out").values():
        first, last = window[0], window[-1]
        if before is not None and before["end"] == b"cut":
            np.testing.assert_array_equal(first["steps/observation"][0], before["steps/observation"][-1])
            assert first["start_step"] > 0
        elif before is not None:
            assert first["start_step"] == 0
        before = last


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"env": "gymnasium:NoSuchThing-v9"}, "NoSuchThing"),
        ({"env": "recorded_environments:endless"}, "--max_episode_steps or --step_per_trajectory"),
        ({"episodes": None}, "either --episodes=N or --steps=N"),
        ({"episodes": None, "steps": 15}, "multiple of --step_per_trajectory=10"),
        ({"single_interaction": True}, "--single_interaction needs --steps"),
        ({"episodes": None, "steps": 20, "single_interaction": True, "shards": 2}, "one file per policy"),
        ({"policy": ("random", "random")}, "2 policies are called random"),
        ({"policy": (f"EpsilonGreedyHead({Q}, n_actions=2)",)}, "the environment has 3"),
        ({"policy": (f"GaussianHead({Q})",)}, "needs an environment with one action that is a list of numbers"),
        ({"policy": (GREEDY, f"OnlineHead({Q}, name=online)")}, "the propensities of online are unknown"),
        ({"obtain_info": True, "info_keys": ("depth",)}, "it has age, place, side"),
    ],
)
def test_what_cannot_be_recorded_is_refused(tmp_path, options, message):
    given = {"env": WALK, "policy": (GREEDY,), "episodes": 2, **options}
    with pytest.raises(UsageError, match=message):
        prepare(RecordOptions.create(tmp_path / "out", **given))
    assert not (tmp_path / "out").exists()
