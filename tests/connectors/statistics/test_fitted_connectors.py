"""Fitted connectors, compared with numpy on the whole dataset, however it is divided."""

from __future__ import annotations

import itertools
import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_beam.connectors import (
    AddOneTsToEpisodesAndTruncate,
    AddTimeDimToBatchAndZeroPad,
    Batch,
    FittedConnector,
    GeneralAdvantageEstimation,
    MeanStdFilter,
    Normalize,
    StandardizeAdvantages,
    StepFields,
    connect,
)
from rlds_beam.connectors.statistics.episode_statistics import DatasetStatistics
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import UsageError

DTYPES = {np.dtype(np.float16): 1e-3, np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-12}


def episode(position: int, transitions: int, *, dtype=np.float32, **fields: object) -> Episode:
    """Random numbers; the void last action is an outlier, and the action's third dimension is constant."""
    rng, count = np.random.default_rng(position), transitions + 1
    flags = {name: np.zeros(count, bool) for name in ("is_first", "is_last", "is_terminal")}
    flags["is_first"][0] = flags["is_last"][-1] = True
    action = rng.normal(3, 2, (count, 3)).astype(dtype)
    action[:, 2], action[-1] = 0.1, 1e3
    steps = {
        "observation/state": rng.normal(-1, 5, (count, 2)).astype(dtype),
        "observation/room": rng.integers(0, 4, count),
        "observation/text": np.full(count, b"a room", object),
        "action": action,
        "reward": rng.normal(size=count),
        "vf_preds": rng.normal(size=count).astype(np.float32),
        **flags,
        **fields,
    }
    return Episode(EpisodeKey("d/1.0.0", "train", 0, position), steps)


EPISODES = [episode(i, 3 + 4 * i) for i in range(5)]
ACTIONS = np.concatenate([e.steps["action"][:-1] for e in EPISODES]).astype(np.float64)
STATES = np.concatenate([e.steps["observation/state"] for e in EPISODES]).astype(np.float64)


def fitted(connector, episodes, *before, parts: int = 1, fields: StepFields | None = None):
    """Fits the connector as a job does: merges the accumulators of several workers, with the result as JSON."""
    accumulators = [connector.accumulator() for _ in range(parts)]
    for i, one in enumerate(episodes):
        accumulators[i % parts].add(connect(before, [one], fields))
    first, *others = pickle.loads(pickle.dumps(accumulators))
    made = connector.fit(json.loads(json.dumps(first.merge(*others).finish())))
    assert not connector.fitted
    assert made.fitted
    return pickle.loads(pickle.dumps(made))


def whole(connector, episodes, path: str) -> np.ndarray:
    """A field of all episodes after the connector, without the void last actions."""
    edited = [connect([connector], [e]).episodes[0] for e in episodes]
    rows = slice(None) if path.startswith("observation") else slice(-1)
    return np.concatenate([e.steps[path][rows] for e in edited])


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("mode", ["normal", "bounds", "bounds_q99"])
def test_normalize_is_the_formula_on_the_whole_dataset(mode, parts):
    normalize = fitted(Normalize(["action", "observation"], mode), EPISODES, parts=parts)
    for path, x in (("action", ACTIONS), ("observation/state", STATES)):
        q01, q99 = np.quantile(x, [0.01, 0.99], axis=0)
        bounds = {"min": x.min(axis=0), "max": x.max(axis=0), "q01": q01, "q99": q99}
        stats = {"mean": x.mean(axis=0), "std": x.std(axis=0), **bounds}
        expected = openvla(x, stats, mode, np.True_)
        expected[:, stats["min"] == stats["max"]] = 0
        np.testing.assert_allclose(whole(normalize, EPISODES, path), expected, rtol=1e-5, atol=1e-6)
    edited = connect([normalize], EPISODES[:1]).episodes[0].steps
    assert edited["observation/text"] is EPISODES[0].steps["observation/text"]
    assert edited["observation/room"].dtype == edited["action"].dtype == np.float32


def octo(x: np.ndarray, stats: dict, mode: str, mask: np.ndarray) -> np.ndarray:
    """`normalize_action_and_proprio` of Octo's octo/data/utils/data_utils.py, whose BOUNDS are p01 and p99."""
    if mode == "normal":
        return np.where(mask, (x - stats["mean"]) / (stats["std"] + 1e-8), x)
    low, high = (stats["min"], stats["max"]) if mode == "bounds" else (stats["q01"], stats["q99"])
    return np.where(mask, np.clip(2 * (x - low) / (high - low + 1e-8) - 1, -1, 1), x)


def openvla(x: np.ndarray, stats: dict, mode: str, mask: np.ndarray) -> np.ndarray:
    """`normalize_action_and_proprio` of prismatic/vla/datasets/rlds/utils/data_utils.py of OpenVLA and OpenVLA-OFT."""
    y = octo(x, stats, mode, mask)
    return y if mode == "normal" else np.where(stats["min"] == stats["max"], 0.0, y)


@pytest.mark.parametrize(("constant", "theirs"), [("zero", openvla), ("low", octo)])
@pytest.mark.parametrize("mode", ["normal", "bounds", "bounds_q99"])
def test_every_mode_with_every_mask_matches_the_project(mode, constant, theirs):
    """Dimensions: free, 1 everywhere, 0 everywhere, one outlier (so that q01 is q99), and free ones of other scales."""
    rng = np.random.default_rng(0)
    x = np.stack(
        [rng.normal(size=400), np.ones(400), np.zeros(400), np.arange(400) == 7, 1e-4 * rng.random(400)], axis=1
    )
    one = episode(0, 400, action=np.concatenate([x, x[:1]]))
    stats = {
        name: np.array(values)
        for name, values in DatasetStatistics.from_episodes([one]).to_json()["fields"]["action"].items()
    }
    for mask in itertools.product([True, False], repeat=5):
        normalize = fitted(Normalize("action", mode, mask={"action": mask}, constant=constant), [one])
        made = whole(normalize, [one], "action")
        np.testing.assert_allclose(made, theirs(x, stats, mode, np.array(mask)), rtol=1e-6, atol=1e-9)
        inside = np.abs(made) < 1
        back = normalize.inverse(made)
        np.testing.assert_allclose(back[inside], x[inside], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(back[:, [1, 2]], x[:, [1, 2]], atol=1e-7)


def test_statistics_from_a_file_equal_those_of_the_data(tmp_path):
    content = DatasetStatistics.from_episodes(EPISODES).to_json()
    file = tmp_path / "stats.json"
    file.write_text(json.dumps(content))
    own = fitted(Normalize(["action"]), EPISODES)
    for statistics in (str(file), content):
        given_ = Normalize(["action"], statistics=statistics)
        assert given_.fitted
        assert given_.statistics == own.statistics  # the plan holds the numbers, not the file name
    filtered = fitted(MeanStdFilter(), EPISODES)
    of_file = MeanStdFilter(statistics=str(file))
    np.testing.assert_allclose(
        whole(filtered, EPISODES, "observation/state"), whole(of_file, EPISODES, "observation/state"), rtol=1e-6
    )


def test_a_connector_that_is_not_fitted_does_not_run():
    with pytest.raises(ValueError, match="fitted to the dataset first"):
        connect([Normalize(["action"])], EPISODES)


def test_filter_is_rllibs_formula_with_statistics_of_all_observations():
    made = whole(fitted(MeanStdFilter(), EPISODES, parts=2), EPISODES, "observation/state")
    expected = (STATES - STATES.mean(axis=0)) / (STATES.std(axis=0, ddof=1) + 1e-8)
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)
    rooms = whole(fitted(MeanStdFilter(), EPISODES), EPISODES, "observation/room")
    np.testing.assert_array_equal(rooms, np.concatenate([e.steps["observation/room"] for e in EPISODES]))
    one = episode(0, 2, **{"observation/state": np.array([[2.0], [4.0], [9.0]])})
    worked = whole(fitted(MeanStdFilter(), [one]), [one], "observation/state")[:, 0]
    np.testing.assert_allclose(worked, np.array([-3, -1, 4]) / 3.6055512, rtol=1e-6)  # n=3: mean 5, std 3.6056
    clipped = whole(fitted(MeanStdFilter(clip_by_value=0.5, de_mean_to_zero=False), [one]), [one], "observation/state")
    np.testing.assert_allclose(clipped[:, 0], [0.5, 0.5, 0.5])


def test_each_agent_has_its_own_filter():
    agents = [e.replace(metadata={"agent_id": name}) for e, name in zip(EPISODES, "ababa", strict=True)]
    made = fitted(MeanStdFilter(), agents)
    for name in "ab":
        own = [e for e in agents if e.metadata["agent_id"] == name]
        states = whole(made, own, "observation/state").astype(np.float64)
        np.testing.assert_allclose(states.mean(axis=0), 0, atol=1e-6)
        np.testing.assert_allclose(states.std(axis=0, ddof=1), 1, atol=1e-6)
    with pytest.raises(UsageError, match="for agent c"):
        connect([made], [EPISODES[0].replace(metadata={"agent_id": "c"})])


def test_advantages_are_standardized_over_valid_steps_only():
    before = (AddOneTsToEpisodesAndTruncate(), GeneralAdvantageEstimation(0.9, 0.8))
    standardize = fitted(StandardizeAdvantages(), EPISODES, *before, parts=2)
    raw = [connect(before, [e]).columns[0]["advantages"] for e in EPISODES]
    made = [connect([*before, standardize], [e]).columns[0]["advantages"] for e in EPISODES]
    valid = np.concatenate([a[:-1] for a in raw]).astype(np.float64)
    np.testing.assert_allclose(
        np.concatenate([a[:-1] for a in made]), (valid - valid.mean()) / valid.std(), rtol=1e-5, atol=1e-6
    )
    assert all(a[-1] == 0 and a.dtype == np.float32 for a in made)
    with pytest.raises(ValueError, match="before AddTimeDim"):
        connect([*before, AddTimeDimToBatchAndZeroPad(4), standardize], EPISODES)


def test_each_module_has_its_own_statistics():
    modules = [e.replace(metadata={"module_id": name}) for e, name in zip(EPISODES, "pqpqp", strict=True)]
    made = fitted(StandardizeAdvantages(), modules, GeneralAdvantageEstimation())
    assert list(made.statistics) == ["p", "q"]
    for name in "pq":
        columns = connect([GeneralAdvantageEstimation(), made], [e for e in modules if e.metadata["module_id"] == name])
        values = np.concatenate([c["advantages"] for c in columns.columns]).astype(np.float64)
        np.testing.assert_allclose([values.mean(), values.std()], [0, 1], atol=1e-6)


@pytest.mark.parametrize(
    "connector",
    [Normalize(["action", "observation"]), MeanStdFilter(), StandardizeAdvantages()],
    ids=lambda c: type(c).__name__,
)
def test_zeros_and_an_empty_dataset_work(connector: FittedConnector):
    zeros = EPISODES[0].replace(
        steps={k: c if c.dtype == object else np.zeros_like(c) for k, c in EPISODES[0].steps.items()}
    )
    before = [GeneralAdvantageEstimation()] if isinstance(connector, StandardizeAdvantages) else []
    made = connect([*before, fitted(connector, [zeros], *before)], [zeros])
    for values in (*made.episodes[0].steps.values(), *made.columns[0].values()):
        assert values.dtype == object or np.isfinite(values).all()
    assert connector.fit(connector.accumulator().finish()).fitted
    connector.fit(connector.accumulator().finish())(Batch(()))


@settings(deadline=None, max_examples=30)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    order=st.randoms(use_true_random=False),
    parts=st.integers(1, 4),
)
def test_neither_order_nor_division_matters(lengths, order, parts):
    episodes = [episode(i, length) for i, length in enumerate(lengths)]
    shuffled = list(episodes)
    order.shuffle(shuffled)
    one = fitted(Normalize(["action"]), episodes).statistics["fields"]["action"]
    other = fitted(Normalize(["action"]), shuffled, parts=parts).statistics["fields"]["action"]
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-12)
