"""The rules for propensities."""

from __future__ import annotations

import json

import numpy as np
import pytest
from logged_propensities import always_one, behavior, logged, recorded

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.validation import find_violations
from rlds_beam.cli.main import main
from rlds_beam.testing import make_episode, write_dataset


class TestRules:
    def rules(self, episode, **options):
        return [v.rule for v in find_violations(episode, CheckOptions(**options))]

    def test_valid_propensities_break_no_rule(self):
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

    def test_the_logarithm_must_agree(self):
        p = np.array([0.5, 0.25])
        assert self.rules(recorded(p, log_propensity=np.append(np.log(p), 0.0))) == []
        assert self.rules(recorded(p, log_propensity=np.append(np.log(p[::-1]), 0.0))) == ["propensity_mismatch"]

    def test_a_named_policy_must_agree(self):
        (violation,) = find_violations(logged(0, wrong=1.5), CheckOptions(propensity_fn=behavior))
        assert violation.rule == "propensity_mismatch"
        assert f"{behavior.__module__}:behavior gives 0.1" in violation.detail
        assert self.rules(logged(0), propensity_fn=always_one) == ["propensity_mismatch"]

    @pytest.mark.parametrize(
        ("column", "told"),
        [
            (np.full((3, 2), 0.5), "float64 of shape (2,)"),
            (np.ones(3, np.int64), "int64"),
            (np.array([b"a", b"b", b"c"], object), "text"),
        ],
    )
    @pytest.mark.parametrize("field", ["propensity", "pscore", "log_propensity"])
    def test_fields_other_than_one_float_are_found_by_name(self, field, column, told):
        episode = make_episode(3, seed=0).with_columns({field: column})
        (violation,) = find_violations(episode, CheckOptions())
        assert (violation.rule, violation.field) == ("propensity_out_of_range", field)
        assert violation.detail.startswith(told) and "expected one float" in violation.detail

    def test_a_rejected_episode_is_kept(self, tmp_path, capsys):
        source = write_dataset(tmp_path / "data", [logged(0), logged(1, wrong=0.0)])
        assert main(["check", "--rules", str(source), "--json", "--workers=1"]) == 3
        assert json.loads(capsys.readouterr().out)["rules"]["propensity_out_of_range"]["rejected"] == 1
