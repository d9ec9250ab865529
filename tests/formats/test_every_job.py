"""Every job on a dataset of every source, and every output on the datasets whose fields differ most."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from serving import a_table
from small_datasets import DATASETS

from rlds_beam.cli.main import main
from rlds_beam.formats.inputs import open_input
from rlds_beam.formats.registry import FORMATS
from rlds_beam.jobs.options import ConvertOptions
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader

NAMES = ["d4rl", "hdf5_aloha", "lerobot_foreign", "minari", "npz", "ros2", "zarr"]
OUTPUTS = [name for name, known in FORMATS.items() if known.output]
REFUSED = {"scope_rl": "states must be vectors|image"}
"""Outputs that need more than some of these datasets have, and what."""
ONCE = "--accept=duplicate_episode"
"""Skips the search for duplicates, half of a tiny job; `test_every_job_reads_it` has it."""


class Data(NamedTuple):
    """The arguments that name a dataset, its options, the steps of each episode, and whether its rate is unknown."""

    arguments: list[str]
    options: dict[str, str]
    steps: list[int]
    needs_fps: bool


@pytest.fixture(scope="module")
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Data:
    directory = tmp_path_factory.mktemp("data") / request.param
    DATASETS[request.param].make(directory)
    (directory / "plan.json").unlink(missing_ok=True)  # of a conversion without a report
    given, *flags = DATASETS[request.param].argv(directory)
    arguments = [given, *(flag for flag in flags if not flag.startswith("--from="))]  # it is recognized
    options = dict(flag.removeprefix("--").split("=") for flag in arguments[1:])
    source = open_input(ConvertOptions.create(given, "unused", **options))
    reader = EpisodeReader(source)
    read = [e for work in plan_ranges(source) for s in work.segments for e in reader.read(work.split, s)]
    return Data(arguments, options, [len(episode) for episode in read], source.fps is None)


every_dataset = functools.partial(pytest.mark.parametrize, "data", indirect=True)


@every_dataset(NAMES)
def test_every_job_reads_it(data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(job: str, *flags: str) -> str:
        code = main([job, *data.arguments, *flags])
        out, err = capsys.readouterr()
        assert code == 0 or (job == "check" and code == 3), (job, out, err)
        assert "Traceback" not in out + err
        return out

    count = len(data.steps)
    assert sum(split["episodes"] for split in json.loads(run("inspect", "--json"))["splits"].values()) == count
    assert json.loads(run("check", "--rules", "--json", "--workers=1"))["valid"] == count
    assert json.loads(run("check", "--json", "--workers=1"))["records"] == count
    assert "is_last" in run("show", f"--episode={count - 1}")
    run("stats", "--workers=1", f"--output={tmp_path / 'stats.json'}")
    assert '"action"' in (tmp_path / "stats.json").read_text()
    run("report", "--workers=1", f"--output={tmp_path / 'report.html'}")
    assert "observation" in (tmp_path / "report.html").read_text()


@every_dataset(NAMES)
def test_the_browser_shows_it(data: Data) -> None:
    browsing = pytest.importorskip("browsing")
    with browsing.browsing(data.arguments[0], **data.options) as browser:
        keys = browser.list_keys()
        assert len(keys) == len(data.steps)
        shown = [browser.json("/api/episode", key=key) for key in keys]
        assert [episode["steps"] for episode in shown] == data.steps
        assert [episode["rejected"] for episode in shown] == [None] * len(shown)
        assert not [mark for episode in shown for mark in episode["marks"] if mark["kind"] == "rule"]


@every_dataset(["ros2"])  # what is pushed is what `test_every_output_takes_it` writes as trajectories
def test_its_pairs_are_pushed(data: Data, table: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("reverb")
    flags = [f"--reverb={table(a_table())}", "--table=replay", "--workers=1"]
    assert main(["push", *data.arguments, *flags]) == 0, capsys.readouterr().err
    found = re.search(r"(\d+) items", capsys.readouterr().out)
    assert found and int(found[1]) == sum(data.steps)  # the last action is real, so each step is a transition


@pytest.mark.parametrize("to", OUTPUTS)
@every_dataset(["hdf5_aloha", "ros2"])
def test_every_output_takes_it(data: Data, to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out" / "1.0.0")
    flags = [ONCE, "--fps=20"] if to == "lerobot" and data.needs_fps else [ONCE]
    code = main(["convert", data.arguments[0], out, *data.arguments[1:], f"--to={to}", "--workers=1", *flags])
    err = capsys.readouterr().err
    assert "Traceback" not in err
    if to in REFUSED:
        assert code == 2 and re.search(REFUSED[to], err), err
        return
    assert code == 0, err
    assert main(["check", "--rules", out, "--workers=1", ONCE]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err
