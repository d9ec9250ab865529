"""The command line: flags, output, and exit codes; and the same jobs from Python."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import complaints
from processes import DEADLINE

from rlds_beam.cli.functions import JOBS
from rlds_beam.cli.main import main
from rlds_beam.testing import make_episode, read_items, shard_paths, write_dataset


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data", [make_episode(5, seed=i) for i in range(6)], shards=2)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Two of ten episodes never end."""
    episodes = [make_episode("F M M" if i < 2 else "F M L", seed=i) for i in range(10)]
    return write_dataset(tmp_path / "broken", episodes)


@pytest.fixture
def run(capsys):
    def command(*arguments: object) -> tuple[int, str, str]:
        code = main([str(a) for a in arguments])
        return code, *capsys.readouterr()

    return command


def process(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command as a user starts it."""
    script = Path(sys.executable).with_name("rlds-beam")
    return subprocess.run(
        [script, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, check=False, timeout=DEADLINE
    )


def refused(result: tuple[int, str, str], *mentioned: str) -> None:
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("rlds-beam: ")
    assert len(err.splitlines()) == 1
    for text in mentioned:
        assert text in err


# Flags


def test_version(run):
    code, out, _ = run("--version")
    assert code == 0
    assert out.startswith("rlds-beam ")


@pytest.mark.parametrize(
    ("flags", "mentioned"),
    [
        (["--sequence_length=3"], "--items=sequences"),
        (["--items=sequences", "--tile_end_of_episodes"], "--pad_end_of_episodes"),
        (["--repair=non_finite"], "cannot be repaired"),
        (["--fail=no_such_rule"], "unknown rule"),
        (["--max_rejected=-1"], "--max_rejected"),
        (["--split=trian"], "has the splits train"),
        (["--observation_fields=camera"], "--observation_fields"),
        (["--policy_info_fn=no_such_module:f"], "no_such_module"),
        (["--features=nowhere.json"], "nowhere.json"),
        (["--runner=NoSuchRunner"], "NoSuchRunner"),
        (["extra"], "no such file or directory"),  # as the output, after two inputs
    ],
)
def test_wrong_values_are_refused(run, source, tmp_path, flags, mentioned):
    refused(run("convert", source, tmp_path / "out", *flags), mentioned)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [["check", "--rules"], ["inspect"], ["convert", "out"]])
def test_wrong_path(run, tmp_path, command):
    name, *output = command
    refused(run(name, tmp_path / "nowhere", *(tmp_path / o for o in output)), "nowhere: no such file or directory")
    (tmp_path / "empty").mkdir()
    code, out, err = run(name, tmp_path / "empty", *(tmp_path / o for o in output))
    assert (code, out) == (2, "") and "empty is not a dataset in a known format" in err and "features.json" in err
    assert not (tmp_path / "out").exists()


# Output


@pytest.mark.parametrize("flags", [(), ("--workers=2",)])
def test_stdout_is_only_json(source, tmp_path, flags):
    done = process("convert", source, tmp_path / "out", "--json", *flags)
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    report = json.loads(done.stdout)
    assert report["records"] == report["valid"] == 6
    assert report["items_written"] == 24
    assert report["shards"] == {"train:00000": 3, "train:00001": 3}
    assert report["steps_this_run"] == 30
    assert report["output"] == str(tmp_path / "out")


def test_a_failing_worker_is_one_line(broken, tmp_path):
    done = process("convert", broken, tmp_path / "out", "--fail=missing_is_last", "--workers=2")
    assert (done.returncode, done.stdout) == (1, "")
    (said,) = complaints(done.stderr)
    assert "missing_is_last" in said
    assert not (tmp_path / "out" / "manifest.json").exists()


# Beam's flags, dry runs, --max_rejected


def test_flags_of_beam_after_the_dashes(run, source, tmp_path):
    flags = ["--", "--direct_num_workers=1", "--job_name=mine"]
    refused(run("convert", source, tmp_path / "out", *flags), "--direct_num_workers=1 is a flag of Beam")
    code, _, err = run("convert", source, tmp_path / "out", "--runner=direct", *flags)
    assert (code, complaints(err)) == (0, [])
    assert len(read_items(tmp_path / "out")) == 24


def test_dry_run_writes_nothing(run, source, tmp_path):
    code, out, err = run("convert", source, tmp_path / "out", "--dry_run")
    assert (code, err) == (0, "")
    assert "6 episodes" in out
    assert "\n  observation     float32(3)\n" in out
    assert "nothing was written" in out
    assert not (tmp_path / "out").exists()


def test_dry_run_fails_if_the_job_would(run, source, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("")
    refused(run("convert", source, tmp_path / "taken", "--dry_run"), "taken is not empty")
    shard_paths(source)[0].unlink()
    refused(run("convert", source, tmp_path / "out", "--dry_run"), "missing_shard")
    assert not (tmp_path / "out").exists()
    assert [p.name for p in (tmp_path / "taken").iterdir()] == ["thesis.tex"]


def test_max_rejected(run, broken, tmp_path):
    for allowed, code in (("1", 3), ("2", 0), ("0", 3), ("0.0", 3), ("0.1", 3), ("0.2", 0)):
        out = tmp_path / ("strict" if allowed == "1" else "out")  # all but the first two find a finished output
        assert run("convert", broken, out, f"--max_rejected={allowed}")[0] == code, allowed
        assert len(read_items(out)) == 8 * 2  # everything else was written


# Verbosity, errors as JSON, outputs that cannot be written to


def test_errors_are_json_too(run, tmp_path):
    code, out, err = run("convert", tmp_path / "nowhere", tmp_path / "out", "--json")
    assert code == 2 and len(err.splitlines()) == 1
    error = json.loads(out)["error"]
    assert (error["type"], error["exit_code"]) == ("UsageError", 2)
    assert err == f"rlds-beam: {error['message']}\n"


def test_an_internal_error_is_one_line_with_its_place(run, source, monkeypatch):
    def fail(*_: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr("rlds_beam.jobs.inspect.survey", fail)
    code, out, err = run("inspect", source, "-v")
    assert (code, out) == (1, "") and "Traceback" in err
    code, out, err = run("inspect", source)
    assert (code, out, err.splitlines()[-1:]) == (1, "", err.splitlines())
    assert err.startswith("rlds-beam: raised KeyError: 'lost' (") and err.endswith("; -v shows the traceback\n")


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_closed_pipe_ends_quietly(source, flags):
    """Simulates `rlds-beam inspect ... | head -1`."""
    script = Path(sys.executable).with_name("rlds-beam")
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [script, "inspect", str(source), *flags],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=DEADLINE,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


UNKNOWN = [["--splt=a"], ["--splt", "a b"], ["-z", "a b"], ["--split", "--splt=a"]]


@pytest.mark.parametrize("command", JOBS)
def test_a_mistyped_flag_is_no_path(command, source, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = [] if command in ("record", "example") else [str(source)]
    for words in UNKNOWN:
        assert main([command, *before, *words]) == 2, words
        assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
        out, err = capsys.readouterr()
        assert out == "" and len(err.splitlines()) == 1, words
