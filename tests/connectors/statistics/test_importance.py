"""Importance weights."""

from __future__ import annotations

import json

import numpy as np
import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st
from logged_propensities import always_one, logged, recorded

from rlds_beam import connectors
from rlds_beam.cli.main import main
from rlds_beam.connectors.base import Batch, connect
from rlds_beam.connectors.statistics.importance import PropensityStatistics, WeightSums
from rlds_beam.errors import UsageError
from rlds_beam.testing import write_dataset


class TestWeights:
    def test_the_picture(self):
        episode = recorded([0.5, 0.8, 0.5], [0.25, 0.8, 1.0])
        (made,) = connect([connectors.AddImportanceWeights()], [episode]).episodes
        assert made.steps["importance_ratio"].tolist() == [0.5, 1.0, 2.0, 1.0]
        assert made.steps["step_wise_importance_weight"].tolist() == [0.5, 0.5, 1.0, 1.0]
        assert made.steps["trajectory_wise_importance_weight"].tolist() == [1.0] * 4

    def test_the_picture_of_self_normalized_weights(self):
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
        """The mean reward of always choosing action 1, estimated from episodes of the other policy."""
        episodes = [logged(seed, steps=4) for seed in range(4000)]
        total = 0.0
        for episode in episodes:
            target = episode.with_columns({"target_propensity": always_one(episode.steps)})
            (made,) = connect([connectors.AddImportanceWeights()], [target]).episodes
            total += made.steps["step_wise_importance_weight"][3] * (made.steps["action"][3] == 1)
        assert abs(total / len(episodes) - 1) < 0.1

    def test_propensities_without_a_valid_ratio_are_rejected(self, tmp_path, capsys):
        episodes = [recorded([0.5, 0.5], [0.5, 0.25]), recorded([0.5, 0.5], [0.5, -1.0])]
        source = write_dataset(tmp_path / "data", episodes)
        flags = ["--to=columns", f"--connectors={tmp_path / 'ope.yaml'}", "--workers=1", "--json"]
        columns = "[AddImportanceWeights, SelfNormalizeImportanceWeights, AddColumnsFromEpisodesToTrainBatch]"
        (tmp_path / "ope.yaml").write_text(columns)
        assert main(["convert", str(source), str(tmp_path / "out"), *flags]) == 3
        report = json.loads(capsys.readouterr().out)
        assert (report["records"], report["rejected"]) == (2, 1)
        assert "propensity_out_of_range" in report["rules"]
        # It is rejected even if the rule is accepted, because there is nothing to write.
        flags.append("--accept=propensity_out_of_range")
        assert main(["convert", str(source), str(tmp_path / "accepted"), *flags]) == 3
        report = json.loads(capsys.readouterr().out)
        assert (report["records"], report["rejected"]) == (2, 1)

    def test_an_overflowing_product_ends_the_job(self, tmp_path, capsys):
        episodes = [recorded([0.5], [0.5]), recorded([1e-3] * 200, [1.0] * 200)]
        source = write_dataset(tmp_path / "data", episodes)
        (tmp_path / "ope.yaml").write_text("[AddImportanceWeights, AddColumnsFromEpisodesToTrainBatch]")
        flags = ["--to=columns", f"--connectors={tmp_path / 'ope.yaml'}", "--workers=1", "--progress=none"]
        assert main(["convert", str(source), str(tmp_path / "out"), *flags]) == 2
        told = capsys.readouterr().err
        assert "step_wise_importance_weight at step 102 overflows float64" in told
        assert "testing/1.0.0" in told and "`log: true`" in told and "`clip: 1000`" in told

    def test_logarithms_and_clipping_handle_any_product(self):
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

    @given(st.lists(st.lists(st.floats(0.0, 4.0), min_size=1, max_size=6), min_size=1, max_size=5), st.randoms())
    def test_the_means_depend_only_on_the_episodes(self, weights, random):
        """However the episodes are divided, the means equal the definition."""
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

    def test_correct_propensities_pass(self, source, capsys):
        flags = ["--workers=1", f"--target_propensity_fn={always_one.__module__}:always_one"]
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

    def test_wrong_propensities_do_not_pass(self):
        parts = [PropensityStatistics.from_episode(logged(seed, wrong=0.5)) for seed in range(40)]
        found = PropensityStatistics.merged(parts).to_json()
        assert found["calibration"]["largest_deviation"] > 4.5
        assert found["calibration"]["actions"]["0"]["mean"] == pytest.approx(2, abs=0.4)

    @pytest.mark.parametrize("spread", [1, 3, 6])
    @pytest.mark.parametrize("transitions", [500, 2000])
    def test_correct_propensities_pass_even_if_they_vary_a_lot(self, spread, transitions):
        """Softmax policies of Gaussian logits: the standard error alone raises an alarm for most of the wider ones."""
        deviations = []
        for seed in range(cases(60)):
            rng = np.random.default_rng([seed, spread])
            policy = np.exp(spread * rng.normal(size=(transitions, 5)))
            policy /= policy.sum(axis=1, keepdims=True)
            actions = (policy.cumsum(axis=1) < rng.random((transitions, 1))).sum(axis=1).clip(0, 4)
            found = recorded(policy[np.arange(transitions), actions], np.ones(transitions), actions)
            deviations.append(PropensityStatistics.from_episode(found).to_json()["calibration"]["largest_deviation"])
        assert max(deviations) < 4

    def test_missing_support_shows(self):
        """A policy that never chooses action 2, and a target that does so every other time."""
        rng = np.random.default_rng(0)
        parts = []
        for _ in range(20):
            actions = rng.integers(0, 2, 50)
            parts.append(PropensityStatistics.from_episode(recorded(np.full(50, 0.5), np.full(50, 0.25), actions)))
        assert PropensityStatistics.merged(parts).to_json()["support"]["mean"] == pytest.approx(0.5)

    def test_the_effective_size_of_weights_beyond_float64(self):
        """One of ten episodes weighs 1e600 and another half as much; the others weigh 1e-600."""
        episodes = [recorded([1e-3] * 200, [1.0] * 200), recorded([1e-3] * 200, [1.0] * 199 + [0.5])]
        episodes += [recorded([1.0] * 200, [1e-3] * 200)] * 8
        sizes = PropensityStatistics.merged([PropensityStatistics.from_episode(e) for e in episodes]).to_json()
        assert sizes["effective_sample_size"]["episodes"] == pytest.approx(1.5**2 / 1.25)
        with pytest.raises(UsageError, match=r"the target_propensity at step 1, -1, is negative"):
            PropensityStatistics.from_episode(recorded([0.5, 0.5], [0.5, -1.0]))
