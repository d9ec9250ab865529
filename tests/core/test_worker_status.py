"""Notes of processes about their current work, and how a job detects and reports dead workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from processes import DEADLINE

from rlds_beam import worker_status
from rlds_beam.errors import RldsBeamError
from rlds_beam.runners import worker_processes
from rlds_beam.runners.local import run_watched
from rlds_beam.runners.worker_processes import WorkerProcesses
from rlds_beam.testing import make_episode, write_dataset
from rlds_beam.worker_status import Done, read_notes

CHILD = """
import os, sys
from rlds_beam.worker_status import working_on, keep_note
keep_note(sys.argv[1])
{body}
"""


def child(home, body: str, *flags: str) -> int:
    """Runs a process that keeps its note in `home`; returns its exit code."""
    return subprocess.run(
        [sys.executable, "-c", CHILD.format(body=body), str(home), *flags], check=False, timeout=DEADLINE
    ).returncode


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """A current directory whose modules have the names of installed ones, and exit on import."""
    for name in ("apache_beam", "json", "logging", "numpy", "runpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the current directory')")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_our_processes_import_nothing_from_the_current_directory(hostile):
    program = "import json, sys; print(__name__, sys.argv[1:], all(sys.path))"
    (hostile / "path").mkdir()
    (hostile / "path" / "its_module.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(hostile / "path")}
    command = worker_status.command("its_module", "a", "-b")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=DEADLINE)
    assert done.stdout == "__main__ ['a', '-b'] True\n"


def test_worker_processes_import_nothing_from_the_current_directory(hostile, convert):
    source = write_dataset(hostile / "data", [make_episode(5, seed=i) for i in range(4)], shards=2)
    ran = convert(source, "--workers=2")
    assert ran.code == 0, ran.err


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_status, "_notebook", worker_status._Notebook())
    worker_status.keep_note(str(tmp_path))
    return tmp_path


def test_nested_blocks(notebook):
    (note,) = read_notes(str(notebook))
    assert note[:3] == (os.getpid(), (), 0.0)
    with worker_status.working_on("a range with a long name, so that leftovers after the next line are garbage"):
        with worker_status.working_on("a file"):
            assert read_notes(str(notebook))[0].at[1:] == ("a file",)
        assert len(read_notes(str(notebook))[0].at) == 1
    (note,) = read_notes(str(notebook))
    assert note.at == () and note.seconds > 0


def test_an_error_ends_the_block(notebook):
    with pytest.raises(ValueError), worker_status.working_on("a range"):  # noqa: PT011
        raise ValueError
    assert read_notes(str(notebook))[0].at == ()


def test_nothing_is_noted_by_default(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_status, "_notebook", worker_status._Notebook())
    monkeypatch.chdir(tmp_path)
    with worker_status.working_on("a range"):
        assert list(tmp_path.iterdir()) == [] and worker_status.note().at == ("a range",)


def test_the_note_of_a_killed_process_remains(tmp_path):
    body = "with working_on('range'):\n with working_on('file, bytes 0 to 9'):\n  os.kill(os.getpid(), 9)"
    assert child(tmp_path, body) == -signal.SIGKILL
    (note,) = read_notes(str(tmp_path))
    assert note.at == ("range", "file, bytes 0 to 9")


@pytest.fixture
def workers(tmp_path, monkeypatch):
    """Starts a fake worker process, which keeps its note in the same place as a worker."""
    monkeypatch.setattr(worker_processes, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(worker_processes, "_END_SECONDS", 0.2)
    (tmp_path / "home").mkdir()
    found = WorkerProcesses(str(tmp_path / "home"))

    def start(body: str) -> WorkerProcesses:
        program = [sys.executable, "-c", CHILD.format(body=body), found.home]
        monkeypatch.setattr(worker_processes, "command", lambda *_: program)
        found.start("worker", "unix:/nowhere")
        return found

    yield start
    found.end()


def hang() -> dict[str, Any]:
    """A job that waits for its worker forever."""
    threading.Event().wait(60)
    return {}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-9, "killed by SIGKILL, probably because the system ran out of memory"),
        (-11, "killed by SIGSEGV"),
        (3, "code 3"),
    ],
)
def test_a_worker_that_dies_ends_the_job(workers, code, words):
    end = f"os.kill(os.getpid(), {-code})" if code < 0 else f"os._exit({code})"
    started = workers(f"with working_on('range'):\n with working_on('file'):\n  {end}")
    with pytest.raises(RldsBeamError) as raised:
        run_watched(hang, started.error)
    text = str(raised.value)
    assert text.startswith("a worker process died at range, file (") and text.endswith("run the same command to resume")
    assert words in text


def test_a_worker_that_leaves_without_an_error_ends_the_job(workers):
    with pytest.raises(RldsBeamError, match=r"died at range \(it ended without an error\)"):
        run_watched(hang, workers("with working_on('range'):\n os._exit(0)").error)


def test_a_finished_worker_is_no_error(workers, monkeypatch):
    monkeypatch.setattr(worker_processes, "GRACE_SECONDS", 60.0)
    started = workers("with working_on('range'): pass")
    assert run_watched(lambda: {"code": started._processes["worker"].wait(DEADLINE)}, started.error) == {"code": 0}


def test_the_error_quotes_the_last_line_of_the_log(workers):
    write = "open(os.path.join(sys.argv[1], f'{os.getpid()}.log'), 'w').write('a\\nno more memory\\n')"
    started = workers(f"{write}\nos._exit(1)")
    Path(started.home, "1.log").write_text("from a live worker\n")
    with pytest.raises(RldsBeamError, match=r"between two ranges \(exit code 1: no more memory\)"):
        run_watched(hang, started.error)


def test_a_worker_that_does_not_end_is_killed(workers, monkeypatch):
    monkeypatch.setattr(worker_processes, "_STOP_SECONDS", 0.2)
    started = workers("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)")
    started.end()
    assert started._processes["worker"].returncode == -signal.SIGKILL


def test_a_cause_found_after_the_job_failed(workers):
    """Beam reports a lost connection just before the process is known to have died."""
    started = workers("os._exit(7)")

    def job():
        raise RuntimeError("connection lost")

    with pytest.raises(RldsBeamError, match="exit code 7"):
        run_watched(job, started.error)


def test_progress_is_counted_and_noted(notebook, monkeypatch):
    monkeypatch.setattr(worker_status, "_UPDATE_SECONDS", 0.0)
    before = worker_status.done()
    worker_status.count(records=1, bytes=100, steps=5)
    worker_status.count(records=1, bytes=50, rejected=1)
    worker_status.count(ranges=1)
    expected = Done(ranges=1, records=2, bytes=150, steps=5, rejected=1)
    assert worker_status.done() - before == expected
    assert read_notes(str(notebook))[0].done - before == expected


def test_a_note_is_not_written_for_each_episode(notebook, monkeypatch):
    monkeypatch.setattr(worker_status, "_UPDATE_SECONDS", 3600.0)
    noted = read_notes(str(notebook))[0].done
    for _ in range(100):
        worker_status.count(records=1)
    assert read_notes(str(notebook))[0].done == noted
    with worker_status.working_on("a range"):
        assert (read_notes(str(notebook))[0].done - noted).records == 100
