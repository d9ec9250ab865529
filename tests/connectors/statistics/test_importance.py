"""Importance weights."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logged_propensities import always_one, logged, recorded

from rlds_beam import connectors
from rlds_beam.cli.main import main
from rlds_beam.connectors.base import Batch, connect
from rlds_beam.connectors.statistics.importance import WeightSums
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
        flags = ["--to=columns", f"--connectors={tmp_path / 'ope.yaml'}", "--runner=FnApiRunner", "--json"]
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
        flags = ["--to=columns", f"--connectors={tmp_path / 'ope.yaml'}", "--runner=FnApiRunner", "--progress=none"]
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

    def test_an_overflowing_sum_is_reported(self):
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
    def test_propensities_that_are_not_numbers_are_refused(self, column, told):
        episode = recorded([0.5], [0.5])
        wrong = episode.replace(steps={**episode.steps, "propensity": column})
        with pytest.raises(UsageError, match=f"AddImportanceWeights: propensity is .*{told}"):
            connect([connectors.AddImportanceWeights()], [wrong])

    def test_missing_fields_are_named(self):
        with pytest.raises(UsageError, match="no target_propensity, only"):
            connect([connectors.AddImportanceWeights()], [recorded([0.5])])
        with pytest.raises(UsageError, match="put AddImportanceWeights before it"):
            connectors.SelfNormalizeImportanceWeights({})(Batch((recorded([0.5]),)))

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
