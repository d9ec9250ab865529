"""What a process notes of its work, what remains of one that dies, and how a job learns of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from processes import DEADLINE

from rlds_beam import at_work
from rlds_beam.at_work import read_notes
from rlds_beam.errors import RldsBeamError
from rlds_beam.runners import watching
from rlds_beam.testing import make_episode, write_dataset

CHILD = """
import os, sys
from rlds_beam.at_work import at_work, keep_note
keep_note(sys.argv[1])
{body}
"""


def child(home, body: str, *flags: str) -> int:
    """The exit code of a process that keeps its note in `home`."""
    return subprocess.run(
        [sys.executable, "-c", CHILD.format(body=body), str(home), *flags], check=False, timeout=DEADLINE
    ).returncode


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """The current directory: modules in it have the names of installed ones, and end whatever imports them."""
    for name in ("apache_beam", "json", "logging", "numpy", "runpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the current directory')")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_process_of_ours_imports_nothing_from_the_current_directory(hostile):
    program = "import json, sys; print(__name__, sys.argv[1:], all(sys.path))"
    (hostile / "path").mkdir()
    (hostile / "path" / "its_module.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(hostile / "path")}
    command = at_work.command("its_module", "a", "-b")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=DEADLINE)
    assert done.stdout == "__main__ ['a', '-b'] True\n"


def test_worker_processes_import_nothing_from_the_current_directory(hostile, convert):
    source = write_dataset(hostile / "data", [make_episode(5, seed=i) for i in range(4)], shards=2)
    ran = convert(source, "--workers=2")
    assert ran.code == 0, ran.err


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    monkeypatch.setattr(at_work, "_notebook", None)
    at_work.keep_note(str(tmp_path))
    return tmp_path


def test_blocks_lie_within_each_other(notebook):
    (note,) = read_notes(str(notebook))
    assert note == (os.getpid(), (), 0.0)
    with at_work.at_work("a range with a long name, so that what is behind the next line is rubbish"):
        with at_work.at_work("a file"):
            assert read_notes(str(notebook))[0].at[1:] == ("a file",)
        assert len(read_notes(str(notebook))[0].at) == 1
    (note,) = read_notes(str(notebook))
    assert note.at == () and note.seconds > 0


def test_an_error_ends_the_block(notebook):
    with pytest.raises(ValueError), at_work.at_work("a range"):  # noqa: PT011
        raise ValueError
    assert read_notes(str(notebook))[0].at == ()


def test_nothing_is_noted_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(at_work, "_notebook", None)
    monkeypatch.chdir(tmp_path)
    with at_work.at_work("a range"):
        assert list(tmp_path.iterdir()) == []


def test_the_note_of_a_process_that_was_killed_is_left(tmp_path):
    body = "with at_work('range'):\n with at_work('file, bytes 0 to 9'):\n  os.kill(os.getpid(), 9)"
    assert child(tmp_path, body) == -signal.SIGKILL
    (note,) = read_notes(str(tmp_path))
    assert note.at == ("range", "file, bytes 0 to 9")
    assert watching._dead(str(tmp_path)) == [note]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(watching, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(watching, "_GRACE_SECONDS", 0.2)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # put back, whatever the job does to it


def raise_in_thread(error: Exception, name: str) -> None:
    """As Beam's thread does that waits for a worker process."""

    def target() -> None:
        raise error

    threading.Thread(target=target, name=name).start()


@pytest.mark.parametrize(
    ("code", "words"),
    [(-9, "killed by SIGKILL, as a system that runs out of memory does"), (-11, "killed by SIGSEGV"), (3, "code 3")],
)
def test_a_worker_that_dies_ends_the_job(tmp_path, impatient, code, words):
    end = f"os.kill(os.getpid(), {-code})" if code < 0 else f"os._exit({code})"
    assert child(tmp_path, f"with at_work('range'):\n with at_work('file'):\n  {end}") == code

    def job():
        raise_in_thread(RuntimeError(f"Worker subprocess exited with return code {code}"), "run_worker")
        threading.Event().wait(60)

    with pytest.raises(RldsBeamError) as raised:
        watching.watched(job, str(tmp_path))
    text = str(raised.value)
    assert text.startswith("a worker process died at range, file (") and text.endswith("run again")
    assert words in text


def test_a_worker_that_leaves_without_an_error_ends_the_job(tmp_path, impatient):
    assert child(tmp_path, "with at_work('range'):\n os._exit(0)") == 0
    with pytest.raises(RldsBeamError, match=r"died at range \(it ended of itself\)"):
        watching.watched(lambda: threading.Event().wait(60), str(tmp_path))


def test_a_worker_that_is_through_is_no_error(tmp_path, impatient):
    assert child(tmp_path, "with at_work('range'): pass") == 0

    def job():
        time.sleep(0.1)
        return {"done": 1}

    assert watching.watched(job, str(tmp_path)) == {"done": 1}


def test_the_last_line_of_the_dead_ones_log_is_said(tmp_path, impatient):
    body = "open(os.path.join(sys.argv[1], f'{os.getpid()}.log'), 'w').write('a\\nno more memory\\n')\nos._exit(1)"
    assert child(tmp_path, body) == 1
    (tmp_path / "1.log").write_text("of one that lives\n")

    def job():
        raise_in_thread(RuntimeError("Worker subprocess exited with return code 1"), "run_worker")
        threading.Event().wait(60)

    with pytest.raises(RldsBeamError, match=r"between two ranges \(exit code 1: no more memory\)"):
        watching.watched(job, str(tmp_path))
