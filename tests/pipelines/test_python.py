"""The jobs from Python: results and errors."""

from __future__ import annotations

import dataclasses
import importlib
import inspect as introspection
import json
from pathlib import Path
from typing import Any

import pytest

from rlds_beam.cli.main import JOBS, main
from rlds_beam.errors import FailedRuleError, UsageError
from rlds_beam.pipelines.convert import ConvertConfig, convert
from rlds_beam.pipelines.inspect import InspectConfig, inspect
from rlds_beam.pipelines.validate import ValidateConfig, validate
from rlds_beam.testing import make_episode, read_items, write_dataset


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data", [make_episode(5, seed=i) for i in range(6)], shards=2)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Two of ten episodes never end."""
    episodes = [make_episode("F M M" if i < 2 else "F M L", seed=i) for i in range(10)]
    return write_dataset(tmp_path / "broken", episodes)


def test_convert_from_python(source, tmp_path):
    config = ConvertConfig.create(str(source), str(tmp_path / "out"), items="sequences", sequence_length=3)
    done = convert(config)
    assert done.report.items_written == 6 * 3 == len(read_items(tmp_path / "out"))
    assert done.figures()["steps_this_run"] == 30
    again = convert(config)
    assert again.metrics == {}
    assert again.report == done.report


def test_validate_and_inspect_from_python(broken):
    report = validate(ValidateConfig(str(broken)))
    assert report.rules["missing_is_last"].rejected == 2
    assert inspect(InspectConfig.create(str(broken), items="frames")).items == 8 * 3


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"output": "/dev/null"}, UsageError),
        ({"input": "/no/where"}, UsageError),
        ({"fail": ("missing_is_last",)}, FailedRuleError),
        ({"shards": 0}, UsageError),
    ],
)
def test_errors_from_python(broken, tmp_path, changes, error):
    arguments: dict[str, Any] = {"input": str(broken), "output": str(tmp_path / "out"), **changes}
    with pytest.raises(error):
        convert(ConvertConfig.create(**arguments))


@pytest.mark.parametrize(
    "options", [{"items": "sequences", "sequence_length": 0}, {"repair": ("non_finite",)}, {"max_sequence_length": 3}]
)
def test_options_are_checked_on_creation(options):
    with pytest.raises(UsageError):
        ConvertConfig.create("in", "out", **options)


def test_inspect_takes_no_beam_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "anything", "--", "--direct_num_workers=2"]) == 2
    assert "it takes no flags after --" in capsys.readouterr().err


@pytest.mark.parametrize("command", JOBS)
def test_every_job_keeps_the_contract(command):
    """`pipelines.base.Job`: a frozen config, its usage, `main`, and the job itself as a function."""
    module = importlib.import_module(f"rlds_beam.pipelines.{command}")
    config = getattr(module, JOBS[command][0])
    assert config.__dataclass_params__.frozen
    positional = [f.name.upper() for f in dataclasses.fields(config) if f.metadata.get("positional")]
    assert [word.strip("[]").removesuffix("...") for word in module.USAGE.split()[: len(positional)]] == positional
    assert callable(module.main)
    assert callable(getattr(module, command))
    if "beam_options" in config.__dataclass_fields__:
        assert [*introspection.signature(module.define_pipeline).parameters][:2] == ["root", "config"]


@pytest.mark.parametrize("flags", [(), ("--accept=duplicate_episode",), ("--items=episodes",), ("--split=train[1:7]",)])
def test_inspect_predicts_what_convert_writes_with_duplicates(tmp_path, capsys, flags):
    """Four episodes occur four times each; the three copies of each give no items."""
    episodes = [make_episode(2, seed=i % 4) for i in range(16)]
    path = str(write_dataset(tmp_path / "twice", episodes, shards=3))
    assert main(["inspect", path, "--json", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    main(["convert", path, str(tmp_path / "out"), *flags])
    capsys.readouterr()
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert found["complete"] and found["items"] == report["items_written"]
    assert found["sampled"]["rules"] == report["rules"]


def test_inspect_says_that_it_did_not_look_for_duplicates_in_a_sample(source, capsys):
    assert main(["inspect", str(source), "--sample_bytes=1"]) == 0
    assert "a sample was read; duplicates were not checked" in capsys.readouterr().out
