"""Dataflow jobs from the command to the report: everything is real except the service, the store and the image.

Beam's Dataflow runner submits to a job service on loopback (`cloud.py`), which acts like Dataflow: it fetches the
staged pipeline from the store and runs it in an interpreter that has only what the worker image has.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.dataflow")

from clean_environment import ROOT, beside, build, run
from cloud import EXECUTE, Cloud, content, files, serving
from jobs import result_of
from processes import DEADLINE
from pushes import look, one_table

from rlds_beam import remote
from rlds_beam.cli.main import main
from rlds_beam.testing import make_episode, write_dataset

pytestmark = [pytest.mark.install, pytest.mark.timeout(900)]

STEPS, EPISODES = (12, 8)  # equal shards; a file in a bucket is not cut, so a local copy has the same ranges


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)], out)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def image(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter that the Dockerfile's commands install."""
    return build(tmp_path_factory.mktemp("image") / "rlds-beam", wheel)


@pytest.fixture
def cloud(image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    def execute(job: str, home: Path) -> subprocess.CompletedProcess[str]:
        python = image
        staged = [name for name in served.objects if name.endswith("/workflow.tar.gz")]
        if staged:  # Beam's start program installs what was staged
            (home / "workflow.tar.gz").write_bytes(served.objects[staged[-1]])
            python = beside(image, home / "venv", home / "workflow.tar.gz")
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            [str(python), str(EXECUTE), str(home / "pipeline.pb")],
            cwd=home,
            env={**clean, "PYTHONSAFEPATH": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE,
        )

    with serving(execute, tmp_path) as served:
        for name, value in served.environment.items():
            monkeypatch.setenv(name, value)
        remote._open_bucket.cache_clear()  # the endpoint is read once in a process
        yield served


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A dataset in which one episode never ends."""
    episodes = [make_episode(STEPS, seed=i, breaks=["missing_is_last"] if i == 3 else []) for i in range(EPISODES)]
    return write_dataset(tmp_path / "data", episodes, name="toy", shards=2)


def flags(cloud: Cloud, *more: str, package: str = "--worker_container=image") -> list[str]:
    ours = ["--runner=dataflow", "--project=project", "--region=us-central1", "--temp_location=gs://bucket/tmp"]
    where = ["--", f"--dataflow_endpoint={cloud.address}"]
    if package.startswith("--worker_container"):
        return [*ours, package, *more, *where]
    return [*ours, *more, *where, package]


def test_convert_gives_the_bytes_of_a_local_run(
    cloud: Cloud, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there, options = cloud.upload(source, "bucket/toy/1.0.0"), ["--shards=2", "--max_rejected=1"]
    assert main(["convert", there, "gs://bucket/out", *options, *flags(cloud, "--json")]) == 0
    told = capsys.readouterr()
    assert main(["convert", str(source), str(tmp_path / "local"), *options]) == 0
    remote = cloud.download("bucket/out", tmp_path / "remote")
    assert content(remote) == content(tmp_path / "local")
    figures = json.loads(told.out)
    assert figures["rejected"] == 1 and figures["items_written"] == (EPISODES - 1) * (STEPS - 1)
    assert figures["steps_this_run"] == (EPISODES - 1) * STEPS, "the metrics of the job"
    assert "https://console.cloud.google.com/dataflow/jobs/us-central1/job-0?project=project" in told.err
    # The same command again has nothing to do. With another plan everything is replaced.
    assert main(["convert", there, "gs://bucket/out", *options, *flags(cloud)]) == 0
    assert len(cloud.jobs) == 1
    again = ["--items=frames", "--shards=1", "--max_rejected=1", "--overwrite"]
    assert main(["convert", there, "gs://bucket/out", *again, *flags(cloud)]) == 0
    assert main(["convert", str(source), str(tmp_path / "local"), *again]) == 0
    assert files(cloud.download("bucket/out", tmp_path / "replaced")) == files(tmp_path / "local")


def test_validate_brings_its_report_back(
    cloud: Cloud, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    there = cloud.upload(source, "bucket/toy/1.0.0")
    assert main(["check", "--rules", there, f"--report={report}", *flags(cloud, "--json")]) == 3
    told = result_of(capsys.readouterr().out)
    assert main(["check", "--rules", str(source), "--json"]) == 3
    local = result_of(capsys.readouterr().out)
    assert told == local == json.loads(report.read_text())
    assert not [name for name in cloud.objects if "/rlds-beam-" in name and not name.endswith("pipeline.pb")]


def test_the_package_that_beam_stages_runs_push(
    cloud: Cloud,
    source: Path,
    table: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = table(*one_table())
    server = server.replace("127.0.0.1", "0.0.0.0")  # refused otherwise; the worker is on this machine here
    monkeypatch.chdir(ROOT)
    there = cloud.upload(source, "bucket/toy/1.0.0")
    command = ["push", there, f"--reverb={server}", "--table=t", "--max_rejected=1", "--rejected=gs://bucket/kept"]
    assert main([*command, *flags(cloud, "--json", package="--setup_file=./setup.py")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert look(server).current_size == told["tables"][0]["size"] == (EPISODES - 1) * (STEPS - 1)
    assert [name for name in cloud.objects if name.startswith("bucket/kept/rejected/")]


def test_a_job_that_fails_says_why(cloud: Cloud, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = cloud.upload(source, "bucket/toy/1.0.0")
    assert main(["convert", there, "gs://bucket/out", "--fail=missing_is_last", *flags(cloud)]) == 1
    err = capsys.readouterr().err.splitlines()
    assert "missing_is_last" in err[-1] and "toy/1.0.0, split train, shard 0" in err[-1], err


def test_ctrl_c_cancels_the_job(cloud: Cloud, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, go_on = cloud.upload(source, "bucket/toy/1.0.0"), threading.Event()

    def wait(*_: Any) -> subprocess.CompletedProcess[str]:
        go_on.wait(60)
        return subprocess.CompletedProcess([], 0, "[]", "")

    monkeypatch.setattr(cloud, "_execute", wait)
    monkeypatch.setattr(cloud, "looked_at", once(lambda: os.kill(os.getpid(), signal.SIGINT)))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    try:
        assert main(["check", "--rules", there, *flags(cloud)]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert cloud.jobs["job-0"]["state"] == "JOB_STATE_CANCELLED"
    go_on.set()


def once(action: Callable[[], object]) -> Callable[[], None]:
    left = [action]
    return lambda: left.pop()() and None if left else None  # type: ignore[func-returns-value]
