"""Exact counts of what connectors did: the same for every command, any number of workers, and resumed runs."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

import rlds_beam
from rlds_beam.cli.main import main
from rlds_beam.connectors import MinimumLength
from rlds_beam.connectors.counts import Connected
from rlds_beam.errors import NotVerifiedError
from rlds_beam.processing.report import Report
from rlds_beam.testing import make_episode, write_dataset

LENGTHS = (5, 12, 3, 20, 8, 30)
CONNECTORS = """
- MinimumLength: {transitions: 7}
- SubsampleSteps: {every: 2}
- BinarizeGripper: {index: 0}
- Normalize: {fields: [observation]}
"""
KEPT = [12, 20, 8, 30]
HALVED = [len({*range(0, n, 2), n - 1}) for n in KEPT]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    """Six valid episodes, a rejected one, and one that a repair splits."""
    episodes = [make_episode(length, seed=length) for length in LENGTHS]
    path = tmp_path_factory.mktemp("data")
    broken = make_episode(9, seed=1, breaks=["non_finite"])
    (path / "c.yaml").write_text(CONNECTORS)
    return str(write_dataset(path, [*episodes, broken], name="toy", shards=3))


def connectors_of(data: str) -> str:
    return f"{data.partition('/toy')[0]}/c.yaml"


def check(counts: list[dict]) -> None:
    edited = {"episodes_in": 4, "episodes_out": 4, "listed": 0}
    assert counts == [
        {
            "name": "MinimumLength",
            "episodes_in": 6,
            "episodes_out": 4,
            "steps_in": sum(LENGTHS),
            "steps_out": sum(KEPT),
            "listed": 0,
        },
        {"name": "SubsampleSteps", **edited, "steps_in": sum(KEPT), "steps_out": sum(HALVED)},
        {"name": "BinarizeGripper", **edited, "steps_in": sum(HALVED), "steps_out": sum(HALVED)},
        {"name": "Normalize", **edited, "steps_in": sum(HALVED), "steps_out": sum(HALVED)},
    ]


@pytest.mark.parametrize(("command", "workers"), [("convert", 2), ("convert --to=rlds", 1), ("check", 1), ("stats", 1)])
def test_every_command_counts_the_same(data, tmp_path, capsys, command, workers):
    name, *flags = command.split()
    output = [str(tmp_path / "out/toy/1.0.0")] if name == "convert" else []
    command_line = [name, data, *output, *flags, f"--connectors={connectors_of(data)}", "--max_rejected=1"]
    assert main([*command_line, f"--workers={workers}", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    check(report["connectors"])
    assert report["dropped"] == {"MinimumLength": {"records": 2, "episodes": 2}}
    assert (report["records"], report["rejected"], report["episodes"]) == (7, 1, 6)
    if output:
        check(json.loads((tmp_path / "out/toy/1.0.0/report.json").read_text())["connectors"])


def test_the_summary_has_a_line_per_connector_with_the_keys_of_its_list(data, tmp_path, capsys):
    keys = [f"toy/1.0.0:train:00000@{position}" for position in (0, 7)]  # the second one is no record
    (tmp_path / "exclude.txt").write_text("\n".join(keys))
    assert main(["check", "--rules", data, f"--exclude={tmp_path / 'exclude.txt'}", "--max_rejected=1"]) == 0
    out = capsys.readouterr().out
    assert "connector DropListedEpisodes: 6 -> 5 episodes, " in out and "steps; its list has 2 keys\n" in out
    assert "dropped   1 record by DropListedEpisodes" in out


def test_a_resumed_run_counts_earlier_results(data, tmp_path):
    output = tmp_path / "out"
    options = {"connectors": connectors_of(data), "shards": 3, "items": "episodes"}
    whole = msgspec.to_builtins(rlds_beam.convert(data, output, **options).report)["connectors"]
    (output / "manifest.json").unlink()
    (output / "_commits/train-00001-of-00003.json").unlink()
    again = msgspec.to_builtins(rlds_beam.convert(data, output, **options).report)["connectors"]
    assert again == whole


def test_counts_that_do_not_add_up_are_an_error():
    first = Connected("A", episodes_in=3, episodes_out=2, steps_in=9, steps_out=6)
    second = Connected("B", episodes_in=2, episodes_out=2, steps_in=5, steps_out=5)
    Report(records=3, valid=3, episodes=3, steps=9, connectors=(first,)).check()
    with pytest.raises(NotVerifiedError, match=r"B received 2 episodes with 5 steps, expected 2 .* 6 steps"):
        Report(records=3, valid=3, episodes=3, steps=9, connectors=(first, second)).check()
    with pytest.raises(NotVerifiedError, match="3 records were read, but 2 are valid"):
        Report(records=3, valid=2).check()


def test_an_unwritable_record_is_rejected_and_not_counted(tmp_path):
    source = write_dataset(tmp_path / "data", [make_episode(n, seed=n) for n in (4, 6, 8)])
    limits = {"items": "episodes", "max_sequence_length": 6, "connectors": [MinimumLength(1)]}
    report = rlds_beam.convert(source, tmp_path / "out", **limits).report
    assert report.rejected == 1
    assert (report.episodes, report.connectors[0].episodes_in, report.connectors[0].steps_in) == (2, 2, 10)


def test_a_suggested_preset_works_in_every_command_that_checks(tmp_path, capsys):
    bridge = [make_episode(n, seed=n) for n in (4, 6)]
    ends = {"is_last": np.zeros, "is_terminal": np.zeros}
    episodes = [e.with_columns({path: of(len(e), bool) for path, of in ends.items()}) for e in bridge]
    source = str(write_dataset(tmp_path / "data", episodes, name="roboturk"))
    for command in (["check", "--rules", source], ["stats", source], ["convert", source, str(tmp_path / "o")]):
        assert main([*command, "--preset=roboturk"]) == 0
        assert "2 repaired, 0 rejected" in capsys.readouterr().out
    assert main(["inspect", source, "--preset=robotur"]) == 2
    assert "did you mean roboturk" in capsys.readouterr().err
    assert main(["check", "--rules", source]) == 3
    assert "--repair=missing_is_last" in capsys.readouterr().out
