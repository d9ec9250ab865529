"""Records with an RLlib RLModule, named by its checkpoint; its distribution gives the propensities."""

from __future__ import annotations

import gymnasium
import numpy as np
import torch
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from rlds_beam import open_dataset
from rlds_beam.jobs.convert import prepare
from rlds_beam.recording.record_options import RecordOptions


def test_a_checkpoint_of_an_rl_module_records(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # Ray itself refuses relative paths
    env = gymnasium.make("CartPole-v1")
    torch.manual_seed(0)
    module = RLModuleSpec(
        DefaultPPOTorchRLModule,
        observation_space=env.observation_space,
        action_space=env.action_space,
        model_config=DefaultModelConfig(fcnet_hiddens=[16]),
    ).build()
    module.save_to_path(str(tmp_path / "module"))
    named = "rl_module:module"
    policies = (f"ModulePolicy({named})", f"EpsilonGreedyHead({named}, epsilon=0.5)", f"SoftmaxHead({named})")
    job = prepare(RecordOptions.create(tmp_path / "out", env="gymnasium:CartPole-v1", policy=policies, episodes=3))
    job.convert_here()
    for row in open_dataset(tmp_path / "out"):
        x, actions = row["steps/observation"][:-1], row["steps/action"][:-1]
        with torch.no_grad():
            logits = module.forward_inference({"obs": torch.from_numpy(x)})["action_dist_inputs"]
        own = torch.softmax(logits, dim=1).numpy()[np.arange(len(x)), actions]
        greedy = np.where(logits.numpy().argmax(axis=1) == actions, 0.75, 0.25)
        expected = greedy if row["episode_metadata/policy"] == b"EpsilonGreedyHead" else own
        np.testing.assert_allclose(row["steps/propensity"][:-1], expected, rtol=1e-4)
        np.testing.assert_allclose(row["steps/mixture_propensity"][:-1], (greedy + 2 * own) / 3, rtol=1e-4)


def test_a_recurrent_rl_module_records(tmp_path):
    """The state is kept for each environment; running the module on whole episodes gives the same result."""
    env = gymnasium.make("CartPole-v1")
    torch.manual_seed(0)
    module = RLModuleSpec(
        DefaultPPOTorchRLModule,
        observation_space=env.observation_space,
        action_space=env.action_space,
        model_config=DefaultModelConfig(fcnet_hiddens=[8], use_lstm=True, lstm_cell_size=5, max_seq_len=20),
    ).build()
    module.save_to_path(str(tmp_path / "module"))
    named = f"rl_module:{tmp_path / 'module'}"
    policies = (f"ModulePolicy({named})", f"SoftmaxHead({named})")
    for output, environments in (("out", 16), ("again", 2)):
        given = {"env": "gymnasium:CartPole-v1", "policy": policies, "episodes": 4, "envs_per_worker": environments}
        prepare(RecordOptions.create(tmp_path / output, **given)).convert_here()
    for row, again in zip(open_dataset(tmp_path / "out"), open_dataset(tmp_path / "again"), strict=True):
        x, actions = row["steps/observation"][:-1], row["steps/action"][:-1]
        state = {name: value[None] for name, value in module.get_initial_state().items()}
        with torch.no_grad():
            outputs = module.forward_inference({"obs": torch.from_numpy(x)[None], "state_in": state})
        own = torch.softmax(outputs["action_dist_inputs"][0], dim=1).numpy()[np.arange(len(x)), actions]
        np.testing.assert_allclose(row["steps/propensity"][:-1], own, rtol=1e-4)
        np.testing.assert_allclose(row["steps/mixture_propensity"][:-1], own, rtol=1e-4)
        assert again["steps/action"].tolist() == row["steps/action"].tolist()
