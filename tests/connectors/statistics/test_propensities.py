"""Propensities: their rules, importance weights, and what `stats` says about off-policy evaluation."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam import connectors
from rlds_beam.checking.options import CheckOptions
from rlds_beam.checking.verdicts import find_violations
from rlds_beam.connectors.base import Batch, connect
from rlds_beam.connectors.statistics.importance import WeightSums
from rlds_beam.connectors.statistics.propensity_statistics import PropensityStatistics
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.pipelines.cli import main
from rlds_beam.testing import make_episode, write_dataset

EPSILON, ACTIONS = 0.3, 3


def recorded(propensities, target=None, actions=None, **more):
    """An episode of one more step than there are propensities; the last step's are void."""
    steps = len(propensities) + 1
    columns = {"propensity": np.append(propensities, 0.0), **more}
    if target is not None:
        columns["target_propensity"] = np.append(target, 0.0)
    episode = make_episode(steps, seed=1)
    action = np.zeros(steps, np.int64) if actions is None else np.append(actions, 0)
    return episode.replace(steps={**episode.steps, "action": action, **columns})


def behavior(steps):
    """Of an epsilon-greedy policy whose greedy action is 1."""
    return np.where(steps["action"] == 1, 1 - EPSILON + EPSILON / ACTIONS, EPSILON / ACTIONS)


def always_one(steps):
    return (steps["action"] == 1).astype(np.float64)


def wrong_shape(steps):
    return np.ones(3)


def failing(steps):
    raise KeyError("no such layer")


def logged(seed, steps=50, wrong=1.0):
    """An episode of that policy, whose recorded propensity of action 0 is `wrong` times the right one."""
    rng = np.random.default_rng(seed)
    actions = rng.choice(ACTIONS, steps, p=[EPSILON / ACTIONS, 1 - EPSILON + EPSILON / ACTIONS, EPSILON / ACTIONS])
    propensity = behavior({"action": actions}) * np.where(actions == 0, wrong, 1.0)
    return recorded(propensity, actions=actions).replace(key=make_episode(2, seed=seed).key)


class TestRules:
    def rules(self, episode, **options):
        return [v.rule for v in find_violations(episode, CheckOptions(**options))]

    def test_what_is_right_breaks_none(self):
        assert self.rules(recorded([0.1, 1.0, 0.8])) == []
        assert self.rules(logged(0), propensity_fn=behavior) == []

    @pytest.mark.parametrize("bad", [0.0, -0.1, 1.2])
    def test_out_of_range(self, bad):
        (violation,) = find_violations(recorded([0.5, bad, 0.5]), CheckOptions())
        assert (violation.rule, violation.field, violation.step) == ("propensity_out_of_range", "propensity", 1)
        assert f"{bad:g}" in violation.detail

    def test_a_density_may_be_above_1(self):
        episode = recorded([0.5, 7.0])
        continuous = episode.with_columns({"action": np.zeros((3, 2), np.float32)})
        assert self.rules(continuous) == []

    def test_the_void_one_of_the_last_step_is_judged_where_it_is_asked_for(self):
        assert self.rules(recorded([0.5]), check_unused=True) == ["propensity_out_of_range"]

    def test_the_logarithm_has_to_agree(self):
        p = np.array([0.5, 0.25])
        assert self.rules(recorded(p, log_propensity=np.append(np.log(p), 0.0))) == []
        assert self.rules(recorded(p, log_propensity=np.append(np.log(p[::-1]), 0.0))) == ["propensity_mismatch"]

    def test_a_named_policy_has_to_agree(self):
        (violation,) = find_violations(logged(0, wrong=1.5), CheckOptions(propensity_fn=behavior))
        assert violation.rule == "propensity_mismatch"
        assert f"{__name__}:behavior gives 0.1" in violation.detail
        assert self.rules(logged(0), propensity_fn=always_one) == ["propensity_mismatch"]

    @pytest.mark.parametrize(("function", "error"), [(wrong_shape, UsageError), (failing, RldsBeamError)])
    def test_what_a_function_does_wrong_is_said(self, function, error):
        with pytest.raises(error, match=f"--propensity_fn=.*{function.__name__}"):
            find_violations(logged(0), CheckOptions(propensity_fn=function))

    def test_a_policy_without_anything_to_compare_is_refused(self):
        with pytest.raises(UsageError, match="the steps have no propensity"):
            find_violations(make_episode(4, seed=0), CheckOptions(propensity_fn=behavior))

    @pytest.mark.parametrize(
        ("column", "told"),
        [
            (np.full((3, 2), 0.5), "float64 of shape (2,)"), (np.ones(3, np.int64), "int64"),
            (np.array([b"a", b"b", b"c"], object), "text"),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("field", ["propensity", "pscore", "log_propensity"])
    def test_what_is_not_one_float_is_judged_by_name(self, field, column, told):
        episode = make_episode(3, seed=0).with_columns({field: column})
        (violation,) = find_violations(episode, CheckOptions())
        assert (violation.rule, violation.field) == ("propensity_out_of_range", field)
        assert violation.detail.startswith(told) and "one float is expected" in violation.detail

    def test_both_names_are_looked_at(self):
        (violation,) = find_violations(recorded([0.5, 0.5], pscore=np.array([0.5, 2.0, 0.0])), CheckOptions())
        assert (violation.field, violation.step) == ("pscore", 1)

    def test_a_rejected_episode_is_kept(self, tmp_path, capsys):
        source = write_dataset(tmp_path / "data", [logged(0), logged(1, wrong=0.0)])
        assert main(["validate", str(source), "--json", "--runner=FnApiRunner"]) == 3
        assert json.loads(capsys.readouterr().out)["rules"]["propensity_out_of_range"]["rejected"] == 1


class TestWeights:
    def test_the_picture(self):
        episode = recorded([0.5, 0.8, 0.5], [0.25, 0.8, 1.0])
        (made,) = connect([connectors.AddImportanceWeights()], [episode]).episodes
        assert made.steps["importance_ratio"].tolist() == [0.5, 1.0, 2.0, 1.0]
        assert made.steps["step_wise_importance_weight"].tolist() == [0.5, 0.5, 1.0, 1.0]
        assert made.steps["trajectory_wise_importance_weight"].tolist() == [1.0] * 4

    def test_the_picture_of_self_normalized_ones(self):
        episodes = recorded([1.0] * 3, [0.5, 1.0, 2.0]), recorded([1.0] * 2, [1.5, 2 / 3])
        weighted = [connect([connectors.AddImportanceWeights()], [e]).episodes[0] for e in episodes]
        sums = WeightSums()
        for episode in weighted:
            sums.add(Batch((episode,)))
        fitted = connectors.SelfNormalizeImportanceWeights().fit(sums.finish())
        normalized = [fitted(Batch((e,))).episodes[0].steps for e in weighted]
        step_wise = "self_normalized_step_wise_importance_weight"
        np.testing.assert_allclose(normalized[0][step_wise][:3], [0.5, 2 / 3, 1.0])
        np.testing.assert_allclose(normalized[1][step_wise][:2], [1.5, 4 / 3])
        whole = [one["self_normalized_trajectory_wise_importance_weight"][0] for one in normalized]
        np.testing.assert_allclose(np.mean(whole), 1.0)

    def test_an_expectation_is_reweighted_without_bias(self):
        """The mean reward of always choosing action 1, from episodes of the other policy."""
        episodes = [logged(seed, steps=4) for seed in range(4000)]
        total = 0.0
        for episode in episodes:
            target = episode.with_columns({"target_propensity": always_one(episode.steps)})
            (made,) = connect([connectors.AddImportanceWeights()], [target]).episodes
            total += made.steps["step_wise_importance_weight"][3] * (made.steps["action"][3] == 1)
        assert abs(total / len(episodes) - 1) < 0.1

    def test_what_gives_no_ratio_is_rejected(self, tmp_path, capsys):
        episodes = [recorded([0.5, 0.5], [0.5, 0.25]), recorded([0.5, 0.5], [0.5, -1.0])]
        source = write_dataset(tmp_path / "data", episodes)
        flags = ["--to=columns", f"--connectors={tmp_path / 'ope.yaml'}", "--runner=FnApiRunner", "--json"]
        columns = "[AddImportanceWeights, SelfNormalizeImportanceWeights, AddColumnsFromEpisodesToTrainBatch]"
        (tmp_path / "ope.yaml").write_text(columns)
        assert main(["convert", str(source), str(tmp_path / "out"), *flags]) == 3
        report = json.loads(capsys.readouterr().out)
        assert (report["records"], report["rejected"]) == (2, 1)
        assert "propensity_out_of_range" in report["rules"]
        # Nor is it left out without a word where the rule is accepted: nothing can be written of it.
        flags.append("--accept=propensity_out_of_range")
        assert main(["convert", str(source), str(tmp_path / "accepted"), *flags]) == 3
        report = json.loads(capsys.readouterr().out)
        assert (report["records"], report["rejected"]) == (2, 1)

    def test_a_product_that_overflows_ends_the_job(self, tmp_path, capsys):
        episodes = [recorded([0.5], [0.5]), recorded([1e-3] * 200, [1.0] * 200)]
        source = write_dataset(tmp_path / "data", episodes)
        (tmp_path / "ope.yaml").write_text("[AddImportanceWeights, AddColumnsFromEpisodesToTrainBatch]")
        flags = ["--to=columns", f"--connectors={tmp_path / 'ope.yaml'}", "--runner=FnApiRunner", "--progress=none"]
        assert main(["convert", str(source), str(tmp_path / "out"), *flags]) == 2
        told = capsys.readouterr().err
        assert "step_wise_importance_weight at step 102 is more than float64 holds" in told
        assert "testing/1.0.0" in told and "`log: true`" in told and "`clip: 1000`" in told

    def test_logarithms_and_bounds_hold_any_product(self):
        episode = recorded([1e-3] * 200 + [1.0] * 300, [1.0] * 200 + [1e-2] * 300)
        (logs,) = connect([connectors.AddImportanceWeights(log=True)], [episode]).episodes
        step_wise = logs.steps["log_step_wise_importance_weight"]
        np.testing.assert_allclose(step_wise[[0, 199, 499, 500]], np.log(10) * np.array([3, 600, 0, 0]), atol=1e-9)
        assert logs.steps["log_importance_ratio"][-1] == 0
        (bound,) = connect([connectors.AddImportanceWeights(clip=100)], [episode]).episodes
        weights = bound.steps["step_wise_importance_weight"]
        assert weights[:300].tolist() == [100.0] * 300 and abs(weights[-1] - 1) < 1e-9
        assert bound.steps["importance_ratio"][0] == 100
        (never,) = connect([connectors.AddImportanceWeights(log=True)], [recorded([0.5, 0.5], [0.0, 0.5])]).episodes
        assert never.steps["log_trajectory_wise_importance_weight"].tolist() == [-np.inf] * 3

    def test_a_sum_that_overflows_is_said(self):
        sums = WeightSums()
        (episode,) = connect([connectors.AddImportanceWeights()], [recorded([1e-300], [1.0])]).episodes
        huge = episode.replace(steps={**episode.steps, "step_wise_importance_weight": np.full(2, 1e308)})
        for _ in range(3):
            sums.add(Batch((huge,)))
        with pytest.raises(UsageError, match="the sum of step_wise_importance_weight at step 0 over 3 episodes"):
            sums.finish()

    @pytest.mark.parametrize(
        ("column", "told"), [(np.full((2, 2), 0.5), r"shape \(2,\)"), (np.array([b"x", b"y"], object), "object")]
    )
    def test_propensities_that_are_no_numbers_are_refused(self, column, told):
        episode = recorded([0.5], [0.5])
        wrong = episode.replace(steps={**episode.steps, "propensity": column})
        with pytest.raises(UsageError, match=f"AddImportanceWeights: propensity is .*{told}"):
            connect([connectors.AddImportanceWeights()], [wrong])

    def test_fields_that_are_not_recorded_are_named(self):
        with pytest.raises(UsageError, match="no target_propensity, only"):
            connect([connectors.AddImportanceWeights()], [recorded([0.5])])
        with pytest.raises(UsageError, match="AddImportanceWeights comes before"):
            connectors.SelfNormalizeImportanceWeights({})(Batch((recorded([0.5]),)))

    @given(st.lists(st.lists(st.floats(0.0, 4.0), min_size=1, max_size=6), min_size=1, max_size=5), st.randoms())
    def test_the_means_follow_from_the_episodes_alone(self, weights, random):
        """However they are divided; against the definition."""
        parts = []
        for values in weights:
            (episode,) = connect([connectors.AddImportanceWeights()], [recorded([1.0] * len(values), values)]).episodes
            sums = WeightSums()
            sums.add(Batch((episode,)))
            parts.append(sums)
        random.shuffle(parts)
        means = parts[0].merge(*parts[1:]).finish()["step_wise_importance_weight"]
        longest = max(map(len, weights))
        cumulative = [np.cumprod(values) for values in weights]
        expected = np.mean([np.pad(c, (0, longest - len(c)), mode="edge") for c in cumulative], axis=0)
        np.testing.assert_allclose(means, expected, rtol=1e-9, atol=1e-12)


class TestStatistics:
    @pytest.fixture(scope="class")
    def source(self, tmp_path_factory):
        return write_dataset(tmp_path_factory.mktemp("data"), [logged(seed) for seed in range(40)], shards=2)

    def test_right_propensities_fit(self, source, capsys):
        flags = ["--runner=FnApiRunner", f"--target_propensity_fn={__name__}:always_one"]
        assert main(["stats", str(source), "--json", *flags]) == 0
        found = json.loads(capsys.readouterr().out)["statistics"]["propensities"]
        assert found["transitions"] == 40 * 50
        assert found["calibration"]["largest_deviation"] < 4
        assert found["calibration"]["actions"].keys() == {"0", "1", "2"}
        support = found["support"]
        assert abs(support["mean"] - 1) < 4 * support["error"]
        sizes = found["effective_sample_size"]
        assert 0 <= sizes["episodes"] <= sizes["of_episodes"] == 40
        # Every ratio is 0 or 1 / 0.8, so the effective size is the number of transitions with action 1.
        assert sizes["transitions"] == pytest.approx(found["calibration"]["actions"]["1"]["count"])
        assert main(["stats", str(source), *flags]) == 0
        printed = capsys.readouterr().out
        assert "propensities fit how often actions occur" in printed
        assert "effective size" in printed

    def test_wrong_ones_do_not(self):
        parts = [PropensityStatistics.of(logged(seed, wrong=0.5)) for seed in range(40)]
        found = PropensityStatistics.merged(parts).to_json()
        assert found["calibration"]["largest_deviation"] > 4.5
        assert found["calibration"]["actions"]["0"]["mean"] == pytest.approx(2, abs=0.4)

    @pytest.mark.parametrize("spread", [1, 3, 6])
    @pytest.mark.parametrize("transitions", [500, 2000])
    def test_right_propensities_fit_also_if_they_vary_a_lot(self, spread, transitions):
        """Softmax policies of Gaussian logits: the standard error alone raises an alarm for most of the wider ones."""
        deviations = []
        for seed in range(60):
            rng = np.random.default_rng([seed, spread])
            policy = np.exp(spread * rng.normal(size=(transitions, 5)))
            policy /= policy.sum(axis=1, keepdims=True)
            actions = (policy.cumsum(axis=1) < rng.random((transitions, 1))).sum(axis=1).clip(0, 4)
            found = recorded(policy[np.arange(transitions), actions], np.ones(transitions), actions)
            deviations.append(PropensityStatistics.of(found).to_json()["calibration"]["largest_deviation"])
        assert max(deviations) < 4

    def test_missing_support_shows(self):
        """A policy that never chooses action 2, and a target that does so every other time."""
        rng = np.random.default_rng(0)
        parts = []
        for _ in range(20):
            actions = rng.integers(0, 2, 50)
            parts.append(PropensityStatistics.of(recorded(np.full(50, 0.5), np.full(50, 0.25), actions)))
        assert PropensityStatistics.merged(parts).to_json()["support"]["mean"] == 0.5

    def test_the_effective_size_of_weights_beyond_float64(self):
        """Of ten episodes, one weighs 1e600 and another half of it; the others 1e-600."""
        episodes = [recorded([1e-3] * 200, [1.0] * 200), recorded([1e-3] * 200, [1.0] * 199 + [0.5])]
        episodes += [recorded([1.0] * 200, [1e-3] * 200)] * 8
        sizes = PropensityStatistics.merged([PropensityStatistics.of(e) for e in episodes]).to_json()
        assert sizes["effective_sample_size"]["episodes"] == pytest.approx(1.5**2 / 1.25)
        with pytest.raises(UsageError, match=r"the target_propensity at step 1, -1, is negative"):
            PropensityStatistics.of(recorded([0.5, 0.5], [0.5, -1.0]))

    def test_merging_is_adding(self):
        one, two = (PropensityStatistics.of(logged(seed)) for seed in (1, 2))
        merged = PropensityStatistics.merged([one, two])
        assert merged.total == one.total + two.total
        assert sum(m.count for m in merged.actions.values()) == merged.total
        assert math.isclose(merged.smallest, EPSILON / ACTIONS)
        assert PropensityStatistics.merged([]) is None
        assert PropensityStatistics.merged([one, dataclasses.replace(two, actions=None)]).actions is None

    def test_nothing_is_said_without_propensities(self, tmp_path, capsys):
        source = write_dataset(tmp_path, [make_episode(4, seed=0)])
        assert main(["stats", str(source), "--json", "--runner=FnApiRunner"]) == 0
        assert "propensities" not in json.loads(capsys.readouterr().out)["statistics"]
