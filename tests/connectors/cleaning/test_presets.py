"""Presets are valid configurations with a source; `inspect` suggests them by name, and they fix the fault."""

from __future__ import annotations

import json

import pytest

import rlds_beam
from rlds_beam.cli import main as cli
from rlds_beam.connectors.cleaning.presets import read_presets, suggest_presets
from rlds_beam.connectors.configuration import Configuration
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import UsageError
from rlds_beam.pipelines.convert import ConvertConfig
from rlds_beam.testing import make_episode, write_dataset


@pytest.mark.parametrize("name", read_presets())
def test_every_preset_is_valid(name):
    preset = read_presets()[name]
    config = ConvertConfig.create("in", "out", preset=name, repair="missing_is_first")
    assert config.repair == ("missing_is_first", *preset.repair)
    assert len(Configuration.from_options(config).connectors) == len(preset.connectors)
    assert preset.connectors or preset.repair
    assert preset.fault and all(source.startswith("https://") for source in preset.source)
    fields = [path for one in preset.connectors for options in one.values() for path in _named(options)]
    schema = Schema({path: Field(path, "uint8") for path in fields})
    assert all(name in suggest_presets(f"{dataset}/0.1.0", schema) for dataset in preset.datasets)
    assert not fields or name not in suggest_presets(f"{name}/0.1.0", Schema({}))  # for example DROID's raw HDF5 files


def _named(options):
    return [options["field"]] if "field" in options else options.get("fields", [])


def test_an_unknown_preset_is_refused():
    with pytest.raises(UsageError, match=r"--preset=robotur: unknown preset.*did you mean roboturk"):
        ConvertConfig.create("in", "out", preset="robotur")


def test_a_preset_runs_before_the_given_connectors(tmp_path, capsys):
    (tmp_path / "more.json").write_text('[{"MinimumLength": {"transitions": 3}}]')
    records = [make_episode(steps, seed=i) for i, steps in enumerate(["F M M M", "F M", "F M M M"])]
    path = write_dataset(tmp_path, records, name="roboturk", version="0.1.0")
    assert cli.main(["inspect", str(path)]) == 0
    assert "--preset=roboturk fixes it: no step is is_last or is_terminal" in capsys.readouterr().out
    done = rlds_beam.convert(
        path, tmp_path / "out", to="rlds", preset="roboturk", connectors=str(tmp_path / "more.json")
    )
    assert (done.report.repaired, done.report.items_written) == (3, 2)
    assert "missing_is_last" in json.loads((tmp_path / "out/provenance.json").read_text())["check"]["repair"]
