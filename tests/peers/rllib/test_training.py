"""RLlib trains from column files with the same batches, losses and modules as from its own data."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import ray
import rllib_peer as peer
import rllib_training as training
import torch
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.algorithms.marwil import MARWILConfig
from ray.rllib.policy.sample_batch import SampleBatch

import rlds_beam
from rlds_beam import connectors as ours
from rlds_beam.episodes.columns import flatten
from rlds_beam.errors import UsageError
from rlds_beam.rllib import ColumnsOfflineData, ColumnsPreLearner, offline_data

STATELESS = [
    ours.AddObservationsFromEpisodesToBatch(),
    ours.AddNextObservationsFromEpisodesToTrainBatch(),
    ours.AddColumnsFromEpisodesToTrainBatch(),
    ours.BatchIndividualItems(),
    ours.NumpyToTensor(),
]
SEQUENCES = [
    *STATELESS[:3],
    ours.AddTimeDimToBatchAndZeroPad(training.MAX_SEQ_LEN),
    ours.AddStatesFromEpisodesToBatch(),
    *STATELESS[3:],
]


@pytest.fixture(scope="module", autouse=True)
def _ray():
    ray.shutdown()  # another test may have started Ray with other settings
    # Logical CPUs: a learner in its own process takes one, and Ray Data's readers take others.
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


@pytest.fixture
def built():
    """Builds algorithms and stops them at the end."""
    algorithms: list[Any] = []

    def build(config: Any) -> Any:
        algorithms.append(config.build_algo())
        return algorithms[-1]

    yield build
    for algorithm in algorithms:
        algorithm.stop()


def their_batch(algorithm: Any, lessons: list[peer.Recorded], states: Any = None) -> dict[str, torch.Tensor]:
    """Runs RLlib's learner pipeline on the recorded episodes."""
    config = algorithm.config
    pipeline = config.build_learner_connector(peer.OBSERVATION, peer.ACTION)
    episodes = []
    for lesson, state in zip(lessons, states or [None] * len(lessons), strict=True):
        episode = lesson.theirs(as_numpy=False)
        if state is not None:
            outs = [{name: values[t] for name, values in state.items()} for t in range(len(lesson))]
            episode.extra_model_outputs["state_out"] = type(episode.rewards)(outs)
        episodes.append(episode.to_numpy())
    module = algorithm.learner_group._learner.module
    batch = pipeline(rl_module=module, batch={}, episodes=episodes, shared_data={}, metrics=None)
    return {path: leaf for name, v in batch["default_policy"].items() for path, leaf in flatten(v, name).items()}


def our_batch(algorithm: Any, rows: int) -> dict[str, Any]:
    found = algorithm.offline_data.sample(rows).policy_batches["default_policy"]
    return {path: leaf for name, value in dict(found).items() for path, leaf in flatten(value, name).items()}


def test_behavior_cloning(tmp_path, built):
    lessons = training.lessons(40)
    path = training.write_columns(tmp_path / "columns", STATELESS, [lesson.ours() for lesson in lessons], shards=1)
    config = training.configured(BCConfig()).offline_data(**offline_data(path))
    algorithm = built(config)
    rows = sum(map(len, lessons))
    made, theirs = our_batch(algorithm, rows), their_batch(algorithm, lessons)
    peer.assert_equal(made, {name: value.numpy() for name, value in theirs.items()})
    found = training.losses(algorithm, 20)
    assert np.isfinite(found).all()
    assert found[-1] < 0.7 * found[0]


def recorded_states(lessons: list[peer.Recorded]) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [
        {name: rng.standard_normal((len(lesson), 1, training.CELLS)).astype(np.float32) for name in ("c", "h")}
        for lesson in lessons
    ]


def with_states(lesson: peer.Recorded, states: dict[str, np.ndarray]) -> Any:
    return lesson.ours().with_columns({f"state_out/{name}": peer.with_void(s) for name, s in states.items()})


def test_behavior_cloning_of_a_recurrent_module(tmp_path, built):
    lessons = training.lessons(30)
    states = recorded_states(lessons)
    episodes = [with_states(lesson, state) for lesson, state in zip(lessons, states, strict=True)]
    path = training.write_columns(tmp_path / "columns", SEQUENCES, episodes, shards=1)
    algorithm = built(training.configured(BCConfig(), lstm=True, batch=16).offline_data(**offline_data(path)))
    rows = sum(-(-len(lesson) // training.MAX_SEQ_LEN) for lesson in lessons)
    made, theirs = our_batch(algorithm, rows), their_batch(algorithm, lessons, states)
    peer.assert_equal(made, {name: value.numpy() for name, value in theirs.items()})
    found = training.losses(algorithm, 25)
    assert np.isfinite(found).all()
    assert found[-1] < 0.7 * found[0]


def test_marwil_with_recorded_values(tmp_path, built):
    """Value targets and loss equal RLlib's over whole episodes."""
    lessons = training.lessons(20)
    gamma, lambda_ = 0.9, 0.5

    def config() -> Any:
        configured = training.configured(MARWILConfig(), batch=10_000, beta=1.0, gamma=gamma)
        configured.lambda_ = lambda_
        return configured

    empty = training.write_columns(tmp_path / "first", STATELESS, [lessons[0].ours()], shards=1)
    algorithm = built(config().offline_data(**offline_data(empty)))
    module = algorithm.learner_group._learner.module["default_policy"]

    def values(lesson: peer.Recorded) -> np.ndarray:
        with torch.no_grad():
            return module.compute_values({"obs": torch.from_numpy(lesson.observations)}).numpy()

    episodes = [lesson.ours().with_columns({"vf_preds": values(lesson)}) for lesson in lessons]
    advantages = ours.GeneralAdvantageEstimation(gamma=gamma, lambda_=lambda_)
    path = training.write_columns(tmp_path / "columns", [advantages, *STATELESS], episodes, shards=1)
    algorithm.offline_data = type(algorithm.offline_data)(config().offline_data(**offline_data(path)))
    rows = sum(map(len, lessons))
    theirs = their_batch(algorithm, lessons)
    made = our_batch(algorithm, rows)
    valid = theirs["loss_mask"]
    for name in ("obs", "actions", "rewards", "terminateds", "truncateds", "value_targets"):
        np.testing.assert_allclose(made[name], theirs[name][valid].numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
    learner = algorithm.learner_group._learner

    def loss(batch: dict[str, Any]) -> float:
        tensors = {name: torch.as_tensor(np.asarray(value)) for name, value in batch.items()}
        learner.moving_avg_sqd_adv_norms_per_module["default_policy"] = torch.tensor(100.0)
        forward = learner.module.forward_train({"default_policy": SampleBatch(tensors)})
        return float(learner.compute_losses(fwd_out=forward, batch={"default_policy": tensors})["default_policy"])

    assert loss(made) == pytest.approx(loss(theirs), rel=1e-4)
    found = training.losses(algorithm, 15)
    assert np.isfinite(found).all()
    assert found[-1] < found[0]


def test_two_modules_one_of_them_recurrent(tmp_path, built):
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec

    lessons = training.lessons(30)
    agents = {"walker": "lstm", "talker": "mlp"}
    states = recorded_states(lessons)
    connectors = [
        ours.SplitAgents(
            {
                name: {
                    field: f"{field}/{name}" for field in ("observation", "action", "reward", "state_out")[: 3 + lstm]
                }
                for name, lstm in (("walker", True), ("talker", False))
            }
        ),
        ours.AgentToModuleMapping(agents),
        ours.AddObservationsFromEpisodesToBatch(),
        ours.AddColumnsFromEpisodesToTrainBatch(),
        ours.AddTimeDimToBatchAndZeroPad(training.MAX_SEQ_LEN, modules=["lstm"]),
        ours.AddStatesFromEpisodesToBatch(),
        ours.BatchIndividualItems(),
        ours.NumpyToTensor(),
    ]
    path = training.write_columns(
        tmp_path / "columns",
        connectors,
        [two_agents(lesson, state) for lesson, state in zip(lessons, states, strict=True)],
    )
    specs = {
        name: RLModuleSpec(
            observation_space=peer.OBSERVATION,
            action_space=peer.ACTION,
            model_config=training.model(lstm=name == "lstm"),
        )
        for name in agents.values()
    }
    spaces = {
        "observation_space": gym.spaces.Dict(dict.fromkeys(agents, peer.OBSERVATION)),
        "action_space": gym.spaces.Dict(dict.fromkeys(agents, peer.ACTION)),
    }
    config = training.configured(BCConfig(), batch=32).environment(**spaces)
    config = config.multi_agent(policies=set(specs), policy_mapping_fn=lambda agent, *_, **__: agents[agent])
    config = config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))
    algorithm = built(config.offline_data(**offline_data(path)))
    first = last = {}
    for iteration in range(25):
        results = algorithm.train()["learners"]
        last = {name: float(results[name]["total_loss"]) for name in specs}
        first = first or last
        assert np.isfinite(list(last.values())).all(), iteration
    assert all(last[name] < 0.7 * first[name] for name in specs), (first, last)


def two_agents(lesson: peer.Recorded, states: dict[str, np.ndarray]) -> Any:
    """Two agents with the same observations and actions."""
    episode = with_states(lesson, states)
    steps = {name: episode.steps[name] for name in ("is_first", "is_last", "is_terminal")}
    for field in ("observation", "action", "reward"):
        steps |= {f"{field}/{agent}": episode.steps[field] for agent in ("walker", "talker")}
    steps |= {f"state_out/walker/{name}": episode.steps[f"state_out/{name}"] for name in ("c", "h")}
    return episode.replace(steps=steps)


def test_through_ray_data(tmp_path):
    """RLlib's plain OfflineData with our PreLearner: each row once, in the shape of its columns."""
    lessons = training.lessons(10)
    states = recorded_states(lessons)
    episodes = [with_states(lesson, state) for lesson, state in zip(lessons, states, strict=True)]
    path = training.write_columns(tmp_path / "columns", SEQUENCES, episodes)
    arguments = offline_data(path)
    config = training.configured(BCConfig(), lstm=True).offline_data(**arguments)
    data = ray.data.read_parquet(arguments["input_"]).map_batches(
        ColumnsPreLearner,
        fn_constructor_kwargs={"config": config},
        batch_size=16,
        concurrency=1,
        **arguments["map_batches_kwargs"],
    )
    (batch,) = data.iter_batches(batch_size=1000, batch_format="numpy")
    assert batch["default_policy/obs"].shape[1:] == (training.MAX_SEQ_LEN, 3)
    assert batch["default_policy/state_in/h"].shape[1:] == (1, training.CELLS)
    valid = batch["default_policy/loss_mask"]
    assert sorted(batch["default_policy/action_logp"][valid]) == sorted(np.concatenate([e.logp for e in lessons]))


def test_a_learner_in_its_own_process(tmp_path, built):
    """`num_learners=1`: Ray Data reads the files and the learner actor trains."""
    lessons = training.lessons(30)
    path = training.write_columns(tmp_path / "columns", STATELESS, [lesson.ours() for lesson in lessons])
    config = training.configured(BCConfig()).learners(num_learners=1, num_cpus_per_learner=1)
    algorithm = built(config.offline_data(**offline_data(path)))
    assert algorithm.learner_group.is_remote
    found = training.losses(algorithm, 12)
    assert np.isfinite(found).all()
    assert found[-1] < 0.9 * found[0]


def test_missing_modules_and_files_are_reported(tmp_path):
    with pytest.raises(UsageError, match=r"manifest\.json"):
        offline_data(str(tmp_path))
    episodes = [lesson.ours() for lesson in training.lessons(2)]
    path = training.write_columns(tmp_path / "columns", STATELESS, episodes)
    with pytest.raises(UsageError, match="has no module nobody"):
        offline_data(path, modules=["nobody"])
    with pytest.raises(UsageError, match="no rows for the module default_policy in the split test"):
        offline_data(path, "test")
    dataset = tmp_path / "columns-rlds" / "lessons" / "1.0.0"
    rlds_beam.convert(dataset, tmp_path / "records", to="columns", connectors=STATELESS, workers=1)
    with pytest.raises(UsageError, match="expected Parquet files"):
        offline_data(str(tmp_path / "records"))
    config = training.configured(BCConfig()).offline_data(**offline_data(path))
    config = config.multi_agent(policies={"a", "b"}, policy_mapping_fn=lambda agent, *_, **__: "a")
    with pytest.raises(UsageError, match="columns of the module default_policy, but the configuration has a, b"):
        ColumnsOfflineData(config)


def test_an_epoch_has_each_row_once_also_shuffled(tmp_path):
    lessons = training.lessons(12)
    logp = sorted(np.concatenate([lesson.logp for lesson in lessons]))
    path = training.write_columns(tmp_path / "columns", STATELESS, [lesson.ours() for lesson in lessons], shards=3)
    for shuffled, held in ((False, False), (True, False), (True, True)):
        config = training.configured(BCConfig()).offline_data(
            **offline_data(path),
            materialize_data=held,
            materialize_mapped_data=False,
            iter_batches_kwargs={"local_shuffle_buffer_size": 100} if shuffled else {},
        )
        data = ColumnsOfflineData(config)
        epochs = []
        for _ in range(2):
            batches = [data.sample(20).policy_batches["default_policy"] for _ in range(-(-len(logp) // 20))]
            epochs.append(np.concatenate([batch["action_logp"] for batch in batches]).tolist())
            assert sorted(epochs[-1]) == logp
        assert (epochs[0] != epochs[1]) == shuffled
