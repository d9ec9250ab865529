"""Several commands write to one output at once: exit code 0 means that the output matches its plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from own_formats import options
from processes import DEADLINE, kill, run, running, wait_until

from rlds_beam.errors import NotVerifiedError, UsageError
from rlds_beam.output import directory
from rlds_beam.pipelines.convert import ConvertConfig
from rlds_beam.processing.job import Stage, Totals, run_stages
from rlds_beam.testing import make_episode, write_dataset

FLAGS = ("--to=test_own_output:ReturnsOutput", "--shards=5", "--workers=1")
HOLD = "OWN_OUTPUT_HOLDS"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data", [make_episode(6, seed=i) for i in range(20)], shards=4)


@pytest.fixture
def held(source, tmp_path):
    """A conversion that pauses when two of its ranges are finished."""
    output = tmp_path / "out"
    with running(["convert", source, output, *FLAGS], **options(**{HOLD: "2"})) as process:
        wait_until(lambda: len(list(output.glob("_commits/*.json"))) >= 2, process)
        assert process.poll() is None
        yield process, output


@pytest.mark.parametrize("flags", [FLAGS, (*FLAGS, "--overwrite"), ("--overwrite",), ()])
def test_the_second_is_refused(source, held, flags):
    _, output = held
    before = sorted(path.name for path in output.rglob("[!.]*"))
    code, out, err = run(["convert", source, output, *flags], **options())
    assert (code, out) == (2, "")
    assert "another rlds-beam is writing into" in err or "holds the output of another plan" in err
    assert len(err.splitlines()) == 1
    assert sorted(path.name for path in output.rglob("[!.]*")) == before


@pytest.mark.parametrize("flags", [FLAGS, ("--overwrite",)])
def test_a_command_that_was_killed_leaves_no_lock(source, held, flags):
    process, output = held
    kill(process)
    process.wait(DEADLINE)
    assert run(["convert", source, output, *flags], **options())[0] == 0
    assert (output / "manifest.json").exists()
    assert not list(output.glob(".*"))


def test_only_one_command_holds_the_lock(tmp_path):
    with directory.lock_output(str(tmp_path / "new")):
        with (
            pytest.raises(UsageError, match="another rlds-beam is writing into"),
            directory.lock_output(str(tmp_path / "new")),
        ):
            pass
        assert [path.name for path in (tmp_path / "new").iterdir()] == [".rlds-beam.lock"]
    assert not (tmp_path / "new").exists()  # nothing was written
    with directory.lock_output(str(tmp_path / "new/a/b")):
        pass
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    with directory.lock_output(str(tmp_path / "old")):
        pass
    assert not list((tmp_path / "old").iterdir())


def test_a_plan_that_was_replaced_meanwhile_is_not_committed(source, tmp_path):
    """Without a lock: in a user's pipeline, a bucket, or a network file system without locks."""
    from rlds_beam.jobs.convert import prepare

    output = tmp_path / "out"
    *stages, commit = prepare(ConvertConfig.create(str(source), str(output))).stages()
    with pytest.raises(NotVerifiedError, match="was replaced by another command"):
        run_stages([*stages, _Replace(output / "plan.json"), commit])


class _Replace(Stage):
    name = "replace"

    def __init__(self, path: Path):
        self.path = path

    def finish(self, total: object, totals: Totals) -> None:
        content = json.loads(self.path.read_text())
        content["plan"]["items"]["items"] = "frames"
        self.path.write_text(json.dumps(content))


def test_a_commit_of_a_killed_job_of_another_plan_does_not_count(source, tmp_path):
    """A worker of the killed job commits to the same directory after the next job has begun."""
    from rlds_beam.jobs.convert import prepare

    other = prepare(ConvertConfig.create(str(source), str(tmp_path / "out"), items="frames", shards=2))
    job = prepare(ConvertConfig.create(str(source), str(tmp_path / "out"), shards=2))
    work, *_ = job.open()
    other.converter.convert_range(work, {})
    assert (tmp_path / "out" / "_commits" / f"{work}.json").exists()
    assert len(job.find_pending()) == 2
    assert job.converter.convert_range(work, {}).items == 10 * 5
    assert len(job.find_pending()) == 1
