"""Options belong to a format, ours or a user's: flags, help, functions, JSON and plans."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from own_options import HeadSource, ScaledOutput
from small_datasets import DATASETS

import rlds_beam
from rlds_beam.cli.main import main
from rlds_beam.errors import UsageError
from rlds_beam.formats.format_options import LerobotOptions, TrajectoryOptions
from rlds_beam.formats.registry import (
    OUTPUTS,
    SOURCES,
    output_class,
    output_options,
    source_class,
    source_options,
)
from rlds_beam.pipelines.convert import ConvertConfig
from rlds_beam.testing import make_episode, write_dataset

Run = Callable[..., tuple[int, str, str]]


OUTPUT, SOURCE = "--to=own_options:ScaledOutput", "--from=own_options:HeadSource"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return command


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data", [make_episode(5, seed=i) for i in range(6)], name="toy", shards=3)


@pytest.mark.parametrize("name", SOURCES)
def test_the_registry_names_the_options_of_sources(name: str) -> None:
    assert source_options(name) is source_class(name).options_class


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_registry_names_the_options_of_outputs(name: str) -> None:
    assert output_options(name) is output_class(name).options_class


def test_the_help_lists_the_options_of_the_chosen_formats(run: Run) -> None:
    def help_of(*arguments: str) -> str:
        code, out, err = run(*arguments, "--help")
        assert (code, err) == (0, "")
        return out

    plain = help_of("convert")
    assert "--items {pairs,sequences,episodes,frames}" in plain and "--topics" in plain
    assert "--fps" not in plain and "--limit" not in plain
    lerobot = help_of("convert", "--to", "lerobot")
    assert "--fps N" in lerobot and "LeRobot output:" in lerobot
    assert "--items {" not in lerobot
    own = help_of("convert", OUTPUT, SOURCE)
    assert "How values are scaled:" in own and "--gamma N" in own
    assert "Which files are read:" in own and "--limit N" in own
    for command in ("check", "push", "inspect", "stats"):
        assert "--limit N" in help_of(command, SOURCE) and "--limit" not in help_of(command)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--fps=3"], "--fps is an option of --to=lerobot"),
        (["--to=numpy", "--format=parquet"], "--format is an option of --to=rlds and --to=columns"),
        (["--to=rlds", "--format=parquet"], "argument --format: invalid choice: 'parquet'"),
        ([OUTPUT, "--fps=3"], "--fps is an option of --to=lerobot"),
        ([OUTPUT, "--gamma=-1"], "--gamma=-1.0: must be at least 0"),
        ([OUTPUT, "--gamma=2"], "--gamma=2.0: it must be at most 1"),
        (["--to=npz"], "--to=npz: there is no such output; choose rlds, "),
        (["--from=columns"], "--from=columns: there is no such source; choose rlds, "),
        (["--to=json:JSONDecoder"], "not a subclass of rlds_beam.output.Output"),
    ],
)
def test_an_option_of_another_format_is_refused_by_name(
    run: Run, given: list[str], said: str, dataset: Path, tmp_path: Path
) -> None:
    code, out, err = run("convert", dataset, tmp_path / "out", *given)
    assert (code, out) == (2, "")
    assert said in err and len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_users_options_are_flags_keywords_and_json_and_in_the_plan(run: Run, dataset: Path, tmp_path: Path) -> None:
    code, *_ = run("convert", dataset, tmp_path / "flags", OUTPUT, SOURCE, "--gamma=0.5", "--limit=2", "--shards=2")
    assert code == 0
    given: dict[str, Any] = {"to": ScaledOutput, "from_": HeadSource, "shards": 2}
    outcome = rlds_beam.convert(dataset, tmp_path / "keywords", gamma=0.5, limit=2, **given)
    assert outcome.report.records == 4
    plans = [json.loads((tmp_path / name / "plan.json").read_text())["plan"] for name in ("flags", "keywords")]
    assert plans[0] == plans[1]
    assert plans[0]["to_options"] == {"gamma": 0.5, "unit": "points"} and plans[0]["from_options"] == {"limit": 2}
    assert rlds_beam.convert(dataset, tmp_path / "flags", gamma=0.5, limit=2, **given).run is None  # nothing left to do
    with pytest.raises(UsageError, match=r"to_options.gamma was 0.5 and is now 0.75"):
        rlds_beam.convert(dataset, tmp_path / "flags", gamma=0.75, limit=2, **given)
    assert rlds_beam.check(dataset, from_=HeadSource, limit=1, rules=True).report.records == 2


def test_a_config_is_json_and_pickles() -> None:
    config = ConvertConfig.create("in", "out", to="lerobot", fps=10, map="task=note", workers=2)
    assert config == ConvertConfig(
        "in", "out", to="lerobot", to_options=LerobotOptions(fps=10, map=("task=note",)), workers=2
    )
    assert pickle.loads(pickle.dumps(config)) == config
    assert ConvertConfig(**json.loads(json.dumps(dataclasses.asdict(config)))) == config
    assert ConvertConfig("in", "out").to_options == TrajectoryOptions()
    with pytest.raises(UsageError, match="unknown option --fsp; did you mean --fps"):
        ConvertConfig("in", "out", to="lerobot", to_options={"fsp": 10})


@pytest.mark.parametrize("format", ["hdf5", "ros2"])
def test_options_of_a_recognized_format_work_in_python(format: str, tmp_path: Path) -> None:
    """As in the command, and also if the value is the default."""
    dataset = DATASETS["hdf5_robomimic" if format == "hdf5" else format]
    dataset.make(tmp_path / "data")
    data = Path(dataset.argv(tmp_path / "data")[0])
    for value in ("png", "raw"):
        config = ConvertConfig.create(data, tmp_path / "out", raw_images=value)
        assert config.source_format == format
        assert config.from_options == source_options(format)(raw_images=value)
    with pytest.raises(UsageError, match=r"^--fps is an option of --to=lerobot$"):
        ConvertConfig.create(data, tmp_path / "out", fps=10)
