"""A job that is killed or interrupted at any moment can be run again and ends with the bytes of an undisturbed run.

These are the real commands, their workers, and signals; `rlds_beam.testing` kills a conversion of each source and to
each output at any change of a file (`tests/formats/test_every_source.py`).
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from checkout import SUPPORT
from directories import bytes_of
from jobs import complaints
from processes import DEADLINE, kill, running, start, stop_when
from recorded import GREEDY, WALK

import rlds_beam
from rlds_beam.cli.main import main
from rlds_beam.errors import RldsBeamError
from rlds_beam.output.files import LOCK
from rlds_beam.testing import make_episode, read_items, write_dataset

SHARDS = 6
TRIES = 10
FLAGS = (f"--shards={SHARDS}", "--repair=missing_is_last", "--max_rejected=1")
RECORDING = (f"--env={WALK}", f"--policy={GREEDY}", "--policy=random", "--episodes=400")
TO_LEROBOT = ("--to=lerobot", "--fps=10")
WORKERS = "--workers=2"


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """About 20 MB of output: a few tenths of a second of work between the first shard and the manifest."""
    episodes = [make_episode(300, seed=i, observation=400) for i in range(11)]
    broken = [
        make_episode(5, seed=100, observation=400, breaks=["non_finite"]),
        make_episode("F" + " M" * 200, seed=9, observation=400),
    ]
    directory = tmp_path_factory.mktemp("data")
    return write_dataset(directory, [*episodes[:5], *broken, *episodes[5:]], shards=2)


@pytest.fixture(scope="module")
def undisturbed(source, tmp_path_factory) -> dict[str, bytes]:
    output = tmp_path_factory.mktemp("whole") / "out"
    assert main(["convert", str(source), str(output), *FLAGS]) == 0
    return bytes_of(output)


@pytest.fixture(autouse=True)
def _environments(monkeypatch) -> None:
    """The programs can import what they record."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]))


def identity(path: Path) -> tuple[int, int]:
    return path.stat().st_ino, path.stat().st_mtime_ns


def shards_in(output: Path) -> list[Path]:
    return [p for p in sorted(output.glob("*.tfrecord-*")) if p.suffix != ".spec"]


def commits_in(output: Path) -> list[Path]:
    return sorted((output / "_commits").glob("train-*.json"))


def find_shard(commit: Path) -> Path:
    return commit.parents[1] / f"testing-{commit.stem.replace('train-', 'train.tfrecord-')}"


def temporaries_in(output: Path) -> list[Path]:
    return list(output.rglob(".*.tmp"))


def kill_when(command: list[object], output: Path, is_time: Callable[[], object]) -> None:
    """Kills the command and its workers in the given moment, before it has finished; fails if it always finishes."""
    for _ in range(TRIES):  # on a busy machine, a job may finish before it is killed
        with running([*command, "--progress=none"]) as process:
            stop_when(lambda: is_time() and not (output / "manifest.json").exists(), process)
            kill(process)
            process.communicate(timeout=DEADLINE)
        if process.returncode == -signal.SIGKILL:
            assert not (output / "manifest.json").exists()
            return
        shutil.rmtree(output)
    pytest.fail(f"the job finished before it was killed, {TRIES} times")


MOMENTS: dict[str, Callable[[Path], object]] = {
    "plan": lambda out: (out / "plan.json").exists(),
    "temporary": lambda out: (out / "plan.json").exists() and temporaries_in(out),
    "first_shard": shards_in,
    "third_shard": lambda out: len(shards_in(out)) >= 3,
    "rejected": lambda out: list((out / "rejected").glob("*.tfrecord")),
    "metadata": lambda out: (out / "features.json").exists(),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_27_killed_and_run_again(tmp_path, source, undisturbed, moment):
    output = tmp_path / "out"
    workers = [WORKERS] if moment == "third_shard" else []
    kill_when(["convert", source, output, *FLAGS, *workers], output, lambda: MOMENTS[moment](output))
    finished = {path: identity(path) for path in map(find_shard, commits_in(output))}

    # Half an output is not an output.
    assert not (output / "dataset_info.json").exists() or moment == "metadata"

    # Another plan is refused, and changes nothing. (It takes the lock, so it removes that of the killed command.)
    (output / LOCK).unlink(missing_ok=True)
    before = bytes_of(output)
    assert main(["convert", str(source), str(output), "--shards=4"]) == 2
    assert bytes_of(output) == before

    assert main(["convert", str(source), str(output), *FLAGS]) == 0
    assert bytes_of(output) == undisturbed
    assert temporaries_in(output) == []
    assert {path: identity(path) for path in finished} == finished


def test_27_overwrite_replaces_everything(tmp_path, source, undisturbed, capsys):
    output = tmp_path / "out"
    other = ["--shards=4", "--items=frames", "--max_rejected=2"]
    kill_when(["convert", source, output, *other], output, lambda: commits_in(output))
    assert main(["convert", str(source), str(output), *FLAGS]) == 2
    assert "--overwrite" in capsys.readouterr().err
    (output / "notes.txt").write_text("a directory with a plan is an output with all its content")
    assert main(["convert", str(source), str(output), *FLAGS, "--overwrite"]) == 0
    assert bytes_of(output) == undisturbed


def test_27_a_finished_job_is_not_done_again(tmp_path, source, undisturbed, capsys):
    output = tmp_path / "out"
    assert main(["convert", str(source), str(output), *FLAGS]) == 0
    files = {p: identity(p) for p in output.rglob("*") if p.is_file()}
    capsys.readouterr()
    assert main(["convert", str(source), str(output), *FLAGS]) == 0
    assert "nothing to do: " in capsys.readouterr().out
    assert {p: identity(p) for p in output.rglob("*") if p.is_file()} == files
    # A shard that was lost or truncated since is written again, and no other.
    lost, torn = shards_in(output)[1], shards_in(output)[4]
    lost.unlink()
    torn.write_bytes(torn.read_bytes()[:-1])
    assert main(["convert", str(source), str(output), *FLAGS]) == 0
    assert bytes_of(output) == undisturbed
    assert [identity(p) == files[p] for p in shards_in(output)] == [True, False, True, True, False, True]


@pytest.mark.parametrize(("moment", "to"), [("temporary", ()), ("commit", ()), ("commit", TO_LEROBOT)])
def test_a_recording_is_killed_and_run_again(tmp_path, moment, to):
    output, after = tmp_path / "out", random.Random(moment).randrange(1, 9)
    assert main(["record", str(tmp_path / "undisturbed"), *RECORDING, *to]) == 0
    moments = {"temporary": lambda: temporaries_in(output), "commit": lambda: len(commits_in(output)) >= after}
    workers = [WORKERS] if moment == "commit" else []
    kill_when(["record", output, *RECORDING, *to, *workers], output, moments[moment])
    finished = {path: path.stat().st_mtime_ns for path in commits_in(output)}
    assert main(["record", str(output), *RECORDING, *to]) == 0
    assert bytes_of(output) == bytes_of(tmp_path / "undisturbed")
    if not to:  # LeRobot commits its ranges a second time, with their global indices
        assert {path: path.stat().st_mtime_ns for path in finished} == finished


@pytest.mark.parametrize("moment", ["commit", "rename"])
def test_an_append_is_killed_and_run_again(tmp_path, source, moment):
    """With workers, while it writes or while it renames; the old output is there until the new one is."""
    first, _ = sorted(source.glob("*tfrecord-0*"))
    begun, flags = tmp_path / "begun", (*FLAGS[1:], "--append", "--shards=3")
    assert main(["convert", str(first), str(begun), *flags]) == 0
    before = bytes_of(begun)
    outputs = [Path(shutil.copytree(begun, tmp_path / name)) for name in ("whole", "out")]
    whole, out = outputs
    inputs = ",".join(map(str, sorted(source.glob("*tfrecord-0*"))))
    assert main(["convert", inputs, str(whole), *flags]) == 0
    moments = {
        "commit": lambda: list((out / "_append" / "_commits").glob("*.json")),
        "rename": lambda: (out / "plan.json").read_bytes() != before["plan.json"],
    }
    for _ in range(TRIES):
        with running(["convert", inputs, out, *flags, WORKERS, "--progress=none"]) as process:
            stop_when(moments[moment], process)
            kill(process)
            process.communicate(timeout=DEADLINE)
        if (out / "_append").exists():
            break
        shutil.rmtree(out)
        shutil.copytree(begun, out)
    else:
        pytest.fail(f"the append finished before it was killed, {TRIES} times")
    assert len(read_items(out)) in (len(read_items(begun)), len(read_items(whole)))
    assert all((out / name).read_bytes() == content for name, content in before.items() if "tfrecord" in name)
    assert main(["convert", inputs, str(out), *flags]) == 0
    assert bytes_of(out) == bytes_of(whole)


INTERRUPTED = [
    ("convert", signal.SIGINT, (), ()),
    ("convert", signal.SIGINT, (), (WORKERS,)),
    ("convert", signal.SIGTERM, (), (WORKERS,)),
    ("convert", signal.SIGINT, TO_LEROBOT, (WORKERS,)),
    ("record", signal.SIGINT, (), ()),
]


@pytest.mark.parametrize(("job", "number", "to", "workers"), INTERRUPTED)
def test_interrupted_by_the_user(tmp_path, source, job, number, to, workers):
    """Exit code 130, and one line, by Ctrl-C or SIGTERM while it writes."""
    output, whole = tmp_path / "out", tmp_path / "whole"
    given = ["convert", str(source)] if job == "convert" else ["record"]
    flags = [*(FLAGS if job == "convert" else RECORDING), *to]
    with running([*given, output, *flags, *workers]) as process:
        stop_when(lambda: temporaries_in(output) and not (output / "manifest.json").exists(), process)
        # A terminal sends Ctrl-C to all processes, `kill` sends SIGTERM to one.
        (kill if number == signal.SIGINT else subprocess.Popen.send_signal)(process, number)
        kill(process, signal.SIGCONT)
        out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, out) == (130, ""), err
    assert complaints(err) == ["rlds-beam: interrupted; finished work is kept, run the same command to resume"]
    for directory in (output, whole):
        assert main([*given, str(directory), *flags]) == 0
    assert bytes_of(output) == bytes_of(whole)
    if job == "convert" and not to:
        assert len(read_items(output)) == 11 * 299 + 200


PROGRAM = """
import sys, time
import numpy as np
import rlds_beam

def episodes():
    for i in range(20):
        rng = np.random.default_rng(i)
        yield {"observation": rng.normal(size=(50, 20)), "action": rng.normal(size=(50, 3)), "terminated": True}
        if i > 10 and "wait" in sys.argv:
            time.sleep(600)

rlds_beam.write_rlds(sys.argv[1], episodes(), num_shards=9)
"""


def test_write_rlds_is_killed_and_run_again(tmp_path: Path) -> None:
    """The program that is killed leaves no dataset."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    whole, out = tmp_path / "whole" / "toy" / "1.0.0", tmp_path / "out" / "toy" / "1.0.0"
    command = [sys.executable, str(program)]
    with start([*command, str(whole)]) as process:
        assert process.wait(DEADLINE) == 0
    with start([*command, str(out), "wait"]) as process:
        stop_when(lambda: any(path.is_file() and path.stat().st_size > 10_000 for path in out.rglob("*")), process)
        kill(process)
        assert process.wait(DEADLINE) == -signal.SIGKILL
    assert not (out / "dataset_info.json").exists()
    with pytest.raises(RldsBeamError):
        rlds_beam.check(out, rules=True)
    with start([*command, str(out)]) as process:
        assert process.wait(DEADLINE) == 0
    assert bytes_of(out) == bytes_of(whole)
