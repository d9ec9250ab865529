"""Records with saved models of Stable-Baselines3, named by their zip files; PPO and A2C give the propensities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.envs import IdentityEnvMultiDiscrete

from rlds_beam import UsageError, open_dataset
from rlds_beam.jobs.convert import ConvertJob, prepare
from rlds_beam.recording.record_options import RecordOptions


class Choices(IdentityEnvMultiDiscrete):
    """An environment with two choices."""

    def __init__(self) -> None:
        super().__init__(3, ep_length=10)


def save(path: Path, algorithm: str, env: Any, **arguments: Any) -> Any:
    """Saves an untrained model as a zip file and returns it."""
    small = {"policy_kwargs": {"net_arch": [8]}, "seed": 0, "device": "cpu", **arguments}
    model = getattr(stable_baselines3, algorithm)("MlpPolicy", env, **small)
    model.save(path)
    return model


def record(output: Path, env: str, *policies: str, **options: Any) -> ConvertJob:
    given = {"env": env, "policy": policies, "episodes": 3, "max_episode_steps": 30, **options}
    job = prepare(RecordOptions.create(output, **given))
    job.convert_here()
    return job


@pytest.mark.parametrize("algorithm", ["PPO", "A2C"])
@pytest.mark.parametrize("env", ["gymnasium:CartPole-v1", "gymnasium:Pendulum-v1", f"{__name__}:Choices"])
def test_an_on_policy_model_samples_and_gives_propensities(tmp_path, algorithm, env):
    model = save(tmp_path / "saved.zip", algorithm, env.partition(":")[2] if "gym" in env else Choices())
    record(tmp_path / "out", env, f"sb3:{tmp_path / 'saved.zip'}")
    record(tmp_path / "again", env, f"sb3:{tmp_path / 'saved.zip'}", envs_per_worker=1)
    chosen = []
    for row, again in zip(open_dataset(tmp_path / "out"), open_dataset(tmp_path / "again"), strict=True):
        assert row["episode_metadata/policy"] == b"saved"
        x, actions = (row[f"steps/{name}"][:-1].copy() for name in ("observation", "action"))
        np.testing.assert_allclose(actions, again["steps/action"][:-1], rtol=1e-3, atol=1e-5)
        with torch.no_grad():
            expected = model.policy.get_distribution(model.policy.obs_to_tensor(x)[0]).log_prob(torch.tensor(actions))
        np.testing.assert_allclose(row["steps/log_propensity"][:-1], expected.numpy(), rtol=1e-4, atol=1e-5)
        chosen.append(np.array_equal(actions, model.predict(x, deterministic=True)[0]))
    assert not all(chosen)


@pytest.mark.parametrize(
    ("algorithm", "env"),
    [("DQN", "CartPole-v1"), ("SAC", "Pendulum-v1"), ("TD3", "Pendulum-v1"), ("DDPG", "Pendulum-v1")],
)
def test_an_off_policy_model_acts_greedily_without_propensities(tmp_path, algorithm, env):
    model = save(tmp_path / "saved.zip", algorithm, env, buffer_size=10)
    job = record(tmp_path / "out", f"gymnasium:{env}", f"sb3:{tmp_path / 'saved.zip'}")
    assert job.source.describe().endswith("without propensities")
    for row in open_dataset(tmp_path / "out"):
        assert "steps/propensity" not in row
        expected = model.predict(row["steps/observation"][:-1], deterministic=True)[0]
        np.testing.assert_allclose(row["steps/action"][:-1], expected, rtol=1e-5, atol=1e-6)


def test_q_values_and_logits_are_values_for_heads(tmp_path):
    models = {name: save(tmp_path / f"{name}.zip", name, "CartPole-v1") for name in ("DQN", "PPO")}
    policies = [f"SoftmaxHead(sb3:{tmp_path / name}.zip, name={name})" for name in models]
    greedy = f"EpsilonGreedyHead(sb3:{tmp_path / 'DQN.zip'}, epsilon=0.5, name=greedy)"
    record(tmp_path / "out", "gymnasium:CartPole-v1", *policies, greedy)
    for row in open_dataset(tmp_path / "out"):
        name = row["episode_metadata/policy"].decode()
        x, actions = (row[f"steps/{part}"][:-1].copy() for part in ("observation", "action"))
        policy = models.get(name, models["DQN"]).policy
        given = torch.tensor(x)
        with torch.no_grad():
            values = policy.get_distribution(given).distribution.logits if name == "PPO" else policy.q_net(given)
        expected = torch.softmax(values, dim=1).numpy()[np.arange(len(x)), actions]
        if name == "greedy":
            expected = np.where(values.numpy().argmax(axis=1) == actions, 0.75, 0.25)
        np.testing.assert_allclose(row["steps/propensity"][:-1], expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("algorithm", "trained_on", "arguments", "policy", "env", "message"),
    [
        ("A2C", "Pendulum-v1", {"use_sde": True}, "sb3:{}", "Pendulum-v1", "records its greedy actions"),
        ("PPO", "Pendulum-v1", {}, "sb3:{}", "CartPole-v1", "trained for other observations"),
        ("DQN", "CartPole-v1", {}, "sb3:{}", "Pendulum-v1", "trained for other observations"),
        ("DQN", "CartPole-v1", {}, "ModulePolicy(sb3:{})", "CartPole-v1", "has no distribution of actions"),
        ("DQN", "CartPole-v1", {"cut": True}, "sb3:{}", "CartPole-v1", "cannot be loaded as DQN"),
    ],
)
def test_a_model_that_cannot_act_is_refused(tmp_path, algorithm, trained_on, arguments, policy, env, message):
    path = tmp_path / "saved.zip"
    save(path, algorithm, trained_on, **{name: value for name, value in arguments.items() if name != "cut"})
    if "cut" in arguments:
        content = path.read_bytes()
        middle = content.index(b"policy.pth") + 2000
        path.write_bytes(content[:middle] + bytes(500) + content[middle + 500 :])
    with pytest.raises(UsageError, match=message):
        record(tmp_path / "out", f"gymnasium:{env}", policy.format(path))
