"""Messages are true and do not suggest what was already done."""

from __future__ import annotations

import errno
import json
import os

import ml_dtypes
import numpy as np
import pytest

import rlds_beam
from rlds_beam.cli.main import main
from rlds_beam.errors import DiskError
from rlds_beam.runners.errors import plain
from rlds_beam.testing import make_episode, write_dataset


def test_all_dtypes_that_cannot_be_read_are_named_at_once(tmp_path, capsys):
    columns = {
        "observation/open": np.zeros(4, bool),
        "observation/half": np.zeros((4, 2), ml_dtypes.bfloat16),
        "reward": np.zeros(4, np.uint32),
    }
    source = write_dataset(tmp_path / "data", [make_episode(4, observation={"state": 3}, columns=columns)])
    command = ["convert", str(source), str(tmp_path / "out")]
    assert main(command) == 2
    err = capsys.readouterr().err
    casts = "--cast=observation/half=float32,observation/open=uint8,reward=int64"
    assert casts in err
    assert "--observation_fields" in err
    assert main([*command, casts]) == 0


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("check", {}),
        ("stats", {}),
        ("convert", {}),
        ("convert", {"to": "scope_rl"}),
        ("record", {"env": "recorded_environments:walk", "policy": "random", "episodes": 3}),
    ],
)
def test_print_shows_what_the_command_shows(tmp_path, capsys, name, options):
    """Compares the lines without the duration."""
    given = [] if name == "record" else [str(write_dataset(tmp_path, [make_episode(n, seed=n) for n in (5, 3)]))]
    output = [str(tmp_path / "out/toy/1.0.0")] if name in ("convert", "record") else []
    result = str(getattr(rlds_beam, name)(*given, *output, **options, workers=1))
    flags = [f"--{option}={value}" for option, value in {**options, "workers": 1}.items()]
    assert main([name, *given, *output, *flags, *["--overwrite"][: len(output)]]) == 0
    printed = capsys.readouterr().out
    first, second = ([line for line in text.splitlines() if "took " not in line] for text in (result, printed))
    assert first == second and len(first) > 1


def test_exit_code_3_says_why_and_what_accepts_it(tmp_path, capsys):
    broken = [make_episode(5, seed=1), *(make_episode(5, seed=i, breaks=["missing_is_last"]) for i in (2, 3))]
    source = str(write_dataset(tmp_path, [*broken, make_episode(5, seed=4, breaks=["non_finite"])]))
    commands = (["check", "--rules", source], ["stats", source], ["convert", source, str(tmp_path / "out")])
    for command in commands:
        assert main(command) == 3
        last = capsys.readouterr().out.splitlines()[-1]
        place = f"written, but incomplete (exit code 3): 1 of 4 episodes is in {tmp_path / 'out'}"
        told = place if command[0] == "convert" else "failed with exit code 3: 3 of 4 records were rejected"
        assert last == f"{told}; --max_rejected=3 accepts that"
    assert main(["check", "--rules", source, "--max_rejected=2"]) == 3
    assert "were rejected; --max_rejected=3 (now 2) accepts that" in capsys.readouterr().out
    for remedies in (["--max_rejected=3"], ["--repair=missing_is_last", "--accept=non_finite"]):
        assert main(["check", "--rules", source, *remedies]) == 0
        assert "failed" not in capsys.readouterr().out
    assert main(["check", "--rules", source, "--progress=none"]) == 3
    quiet = capsys.readouterr()
    assert quiet.err[:41] == "rlds-beam: failed with exit code 3: 3 of "
    assert main(["check", "--rules", source, "--json"]) == 3
    as_json = capsys.readouterr()
    assert json.loads(as_json.out)["rejected"] == 3
    assert as_json.err == quiet.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--max_rejected=many", "argument --max_rejected: invalid float value: 'many'"),
        ("--workers=x", "argument --workers: invalid int value: 'x'"),
        ("--split", "argument --split: expected one argument"),
        ("--shards=-3", "--shards=-3: must be at least 1"),
        ("--sequence_length=0", "--sequence_length=0: must be at least 1"),
    ],
)
def test_a_wrong_value_is_reported_in_the_terms_of_the_option(tmp_path, capsys, flags, said):
    assert main(["convert", "in", str(tmp_path / "out"), flags]) == 2
    assert capsys.readouterr().err == f"rlds-beam: {said}\n"


def test_an_unquoted_pattern_is_several_inputs(tmp_path, capsys, monkeypatch):
    source = write_dataset(tmp_path, [make_episode(5, seed=i) for i in range(4)], shards=2)
    shards = sorted(map(str, source.glob("*.tfrecord*")))
    for command in (["check", "--rules"], ["stats"], ["inspect"]):
        assert main([*command, *shards]) == 0
        assert "checked   4 episodes" in capsys.readouterr().out
    assert main(["convert", *shards, str(tmp_path / "out")]) == 0
    assert "written   16 items" in capsys.readouterr().out
    assert main(["convert", shards[0], "--items=frames", *shards[1:], "--json", str(tmp_path / "frames")]) == 0
    assert json.loads(capsys.readouterr().out)["items_written"] == 20
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    assert main(["convert", *shards]) == 2
    assert "File exists" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before
    assert main(["example", str(tmp_path / "a"), "b"]) == 2
    assert "unexpected argument 'b'" in capsys.readouterr().err


def test_output_of_convert_is_named_if_a_dataset_is_expected(tmp_path, capsys):
    source = str(write_dataset(tmp_path, [make_episode(5, seed=1)]))
    pairs, columns = str(tmp_path / "pairs"), str(tmp_path / "columns")
    rlds_beam.convert(source, pairs)
    rlds_beam.convert(source, columns, to="columns")
    capsys.readouterr()
    for command in (["check", "--rules"], ["stats"], ["inspect"]):
        assert main([*command, pairs]) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"rlds-beam: {pairs} holds 4 items (trajectories) written by rlds-beam convert")
        assert "'rlds-beam show' and rlds_beam.open_dataset read" in err and len(err.splitlines()) == 1
    assert main(["check", "--rules", columns]) == 2
    assert "holds 4 items (columns) written by rlds-beam convert" in capsys.readouterr().err
    (tmp_path / "pairs/manifest.json").unlink()
    assert main(["convert", pairs, str(tmp_path / "new")]) == 2
    assert "holds the unfinished output of rlds-beam convert" in capsys.readouterr().err
    assert main(["convert", source, columns]) == 2
    assert capsys.readouterr().err.endswith("Choose another directory, or replace it with --overwrite.\n")
    assert main(["convert", source, pairs, "--items=sequences"]) == 2
    assert 'items.items was "pairs" and is now "sequences"' in capsys.readouterr().err
    assert main(["convert", source, pairs, "--repair=missing_is_last"]) == 2
    assert "holds the output of another plan (check.repair was [] and is now" in capsys.readouterr().err
    assert main(["check", "--rules", source, source, "--from=rlds"]) == 2
    assert f"{source} is a directory: pass one directory, or several files" in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EMFILE])
def test_a_disk_error_is_reported_without_beams_wrappers(number):
    cause = OSError(number, os.strerror(number), "/data/out/x")
    error = plain(RuntimeError(f"{type(cause).__name__}: {cause} [while running 'ConvertRanges/Convert']"))
    assert str(error) == f"/data/out/x cannot be written: {os.strerror(number)}"
    assert isinstance(error, DiskError)
