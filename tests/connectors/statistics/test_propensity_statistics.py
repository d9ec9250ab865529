"""Propensity statistics of `stats`, for off-policy evaluation."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from cases import cases
from logged_propensities import ACTIONS, EPSILON, always_one, logged, recorded

from rlds_beam.cli.main import main
from rlds_beam.connectors.statistics.propensity_statistics import PropensityStatistics
from rlds_beam.errors import UsageError
from rlds_beam.testing import make_episode, write_dataset


class TestStatistics:
    @pytest.fixture(scope="class")
    def source(self, tmp_path_factory):
        return write_dataset(tmp_path_factory.mktemp("data"), [logged(seed) for seed in range(40)], shards=2)

    def test_correct_propensities_pass(self, source, capsys):
        flags = ["--runner=FnApiRunner", f"--target_propensity_fn={always_one.__module__}:always_one"]
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
        parts = [PropensityStatistics.of(logged(seed, wrong=0.5)) for seed in range(40)]
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
            deviations.append(PropensityStatistics.of(found).to_json()["calibration"]["largest_deviation"])
        assert max(deviations) < 4

    def test_missing_support_shows(self):
        """A policy that never chooses action 2, and a target that does so every other time."""
        rng = np.random.default_rng(0)
        parts = []
        for _ in range(20):
            actions = rng.integers(0, 2, 50)
            parts.append(PropensityStatistics.of(recorded(np.full(50, 0.5), np.full(50, 0.25), actions)))
        assert PropensityStatistics.merged(parts).to_json()["support"]["mean"] == pytest.approx(0.5)

    def test_the_effective_size_of_weights_beyond_float64(self):
        """One of ten episodes weighs 1e600 and another half as much; the others weigh 1e-600."""
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

    def test_there_are_no_statistics_without_propensities(self, tmp_path, capsys):
        source = write_dataset(tmp_path, [make_episode(4, seed=0)])
        assert main(["stats", str(source), "--json", "--runner=FnApiRunner"]) == 0
        assert "propensities" not in json.loads(capsys.readouterr().out)["statistics"]
