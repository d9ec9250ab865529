"""Case 27: a job that is killed at any moment can be resumed and ends with the output of an undisturbed run."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from directories import bytes_of
from jobs import complaints
from processes import DEADLINE, kill, running, stop_when, wait_until

from rlds_beam.cli.main import main
from rlds_beam.testing import make_episode, read_items, write_dataset

SHARDS = 6
TRIES = 10
FLAGS = (f"--shards={SHARDS}", "--repair=missing_is_last", "--max_rejected=1")


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


def identity(path: Path) -> tuple[int, int]:
    return path.stat().st_ino, path.stat().st_mtime_ns


def shards_in(output: Path) -> list[Path]:
    return [p for p in sorted(output.glob("*.tfrecord-*")) if p.suffix != ".spec"]


def commits_in(output: Path) -> list[Path]:
    return sorted((output / "_commits").glob("train-*.json"))


def shard_of(commit: Path) -> Path:
    return commit.parents[1] / f"testing-{commit.stem.replace('train-', 'train.tfrecord-')}"


def temporaries_in(output: Path) -> list[Path]:
    return list(output.rglob(".*.tmp"))


def at_least(files: Callable[[Path], list[Path]], output: Path, count: int) -> Callable[[], bool]:
    return lambda: len(files(output)) >= count


MOMENTS: dict[str, Callable[[Path, random.Random], Callable[[], object]]] = {
    "plan": lambda out, rng: lambda: (out / "plan.json").exists(),
    "temporary": lambda out, rng: lambda: temporaries_in(out),
    "first_shard": lambda out, rng: lambda: shards_in(out),
    "third_shard": lambda out, rng: lambda: len(shards_in(out)) >= 3,
    "some_commit": lambda out, rng: at_least(commits_in, out, rng.randrange(1, SHARDS + 1)),
    "rejected": lambda out, rng: lambda: list((out / "rejected").glob("*.tfrecord")),
    "metadata": lambda out, rng: lambda: (out / "features.json").exists(),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_27_killed_and_run_again(tmp_path, source, undisturbed, moment):
    output = tmp_path / "out"
    rng = random.Random(moment)
    workers = ["--workers=2"] if moment == "third_shard" else []
    for _ in range(TRIES):  # on a busy machine, a job may finish before it is killed
        with running(["convert", source, output, *FLAGS, *workers]) as process:
            wait_until(MOMENTS[moment](output, rng), process)
            time.sleep(rng.random() * 0.01)
            kill(process)
            process.wait(DEADLINE)
        killed_in_time = not (output / "manifest.json").exists()
        if killed_in_time or moment not in ("plan", "temporary", "first_shard"):
            break
        shutil.rmtree(output)
    else:
        pytest.fail(f"the job finished before it was killed, {TRIES} times")
    finished = {path: identity(path) for path in map(shard_of, commits_in(output))}

    # Half an output is not an output.
    if killed_in_time:
        assert not (output / "dataset_info.json").exists() or moment == "metadata"

    # Another plan is refused and changes nothing.
    before = bytes_of(output)
    assert main(["convert", str(source), str(output), "--shards=4"]) == 2
    assert bytes_of(output) == before

    assert main(["convert", str(source), str(output), *FLAGS]) == 0
    assert bytes_of(output) == undisturbed
    assert temporaries_in(output) == []
    assert {path: identity(path) for path in finished} == finished


def test_27_killed_several_times(tmp_path, source, undisturbed):
    """Each run finishes at least one more range before it is killed."""
    output = tmp_path / "out"
    for life in (1, 2):
        with running(["convert", source, output, *FLAGS]) as process:
            wait_until(at_least(commits_in, output, 2 * life), process)
    assert main(["convert", str(source), str(output), *FLAGS]) == 0
    assert bytes_of(output) == undisturbed


def test_27_overwrite_replaces_everything(tmp_path, source, undisturbed, capsys):
    output = tmp_path / "out"
    with running(["convert", source, output, "--shards=4", "--items=frames", "--max_rejected=2"]) as process:
        wait_until(lambda: commits_in(output), process)
    (output / "manifest.json").unlink(missing_ok=True)  # it may finish before it is killed
    assert main(["convert", str(source), str(output), *FLAGS]) == 2
    assert "--overwrite" in capsys.readouterr().err
    (output / "notes.txt").write_text("mine")
    assert main(["convert", str(source), str(output), *FLAGS, "--overwrite"]) == 0
    assert (output / "notes.txt").read_text() == "mine"  # other files are not removed
    (output / "notes.txt").unlink()
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


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, 1), (signal.SIGINT, 2), (signal.SIGTERM, 2)])
def test_interrupted_by_the_user(tmp_path, source, undisturbed, number, workers):
    output = tmp_path / "out"
    with running(["convert", source, output, *FLAGS, f"--workers={workers}"]) as process:
        stop_when(lambda: temporaries_in(output), process)
        # A terminal sends Ctrl-C to all processes, `kill` sends SIGTERM to one.
        (kill if number == signal.SIGINT else subprocess.Popen.send_signal)(process, number)
        kill(process, signal.SIGCONT)
        out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, out) == (130, ""), err
    assert complaints(err) == ["rlds-beam: interrupted; finished work is kept, run the same command to resume"]
    if (output / "manifest.json").exists():  # the workers had finished before the signal came
        assert bytes_of(output) == undisturbed
    assert main(["convert", str(source), str(output), *FLAGS]) == 0
    assert bytes_of(output) == undisturbed
    assert len(read_items(output)) == 11 * 299 + 200
