"""Jobs called from Python: logs, and what ends the wait for a job that runs in a thread."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from processes import DEADLINE

from rlds_beam import interrupts
from rlds_beam.runners.local import run_watched
from rlds_beam.testing import make_episode, write_dataset

JOBS = """
import logging, os, sys, warnings
import rlds_beam

def state():
    root = logging.getLogger()
    beam = logging.getLogger("apache_beam").level
    environment = [os.environ.get(name) for name in ("TF_CPP_MIN_LOG_LEVEL", "GRPC_VERBOSITY", "PYTHONWARNINGS")]
    return root.handlers[:], root.filters[:], root.level, beam, warnings.filters[:], environment

before, data, workers = state(), sys.argv[1], int(sys.argv[2])
rlds_beam.convert(data, f"pairs{workers}", workers=workers, progress="none")
assert state() == before
if len(sys.argv) > 3:
    rlds_beam.push(data, reverb=sys.argv[3], table="t", workers=workers, progress="none")
if workers == 1:
    rlds_beam.check(data, workers=workers, progress="none", rules=True)
    rlds_beam.stats(data, workers=workers, progress="none")
    options = {"env": "gymnasium:CartPole-v1", "policy": "random", "progress": "none"}
    rlds_beam.record("recorded", episodes=2, workers=workers, **options)
    rlds_beam.inspect(rlds_beam.example("examples", episodes=2))
    try:
        rlds_beam.check(data, workers=workers, fail="missing_is_last", progress="none", rules=True)
    except rlds_beam.FailedRuleError:
        pass
assert state() == before
"""

MINE = """
import logging
from rlds_beam.connectors.base import EpisodeConnector

class Log(EpisodeConnector):
    def edit(self, episode, fields):
        logging.warning("root of %s", episode.key.position)
        logging.getLogger("mine").warning("seen %s", episode.key.position)
        logging.getLogger("mine").info("unseen")
        return episode
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    episodes = [make_episode(5, seed=i, breaks=["missing_is_last"] if i == 3 else []) for i in range(4)]
    return str(write_dataset(tmp_path_factory.mktemp("data"), episodes, shards=2))


def python(program: str, home: Path, *arguments: str) -> str:
    """Runs a program, which must succeed; returns its output."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL", "GRPC_VERBOSITY", "TF_ENABLE_ONEDNN_OPTS", "PYTHONWARNINGS"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=home,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env={name: value for name, value in os.environ.items() if name not in quiet},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stdout
    return done.stderr


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_is_printed(workers: int, data: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("reverb") is None:
        assert python(JOBS, tmp_path, data, str(workers)) == ""
        return
    from reverb import Server, Table, rate_limiters, selectors

    server = Server([Table("t", selectors.Fifo(), selectors.Fifo(), 1000, rate_limiters.MinSize(1))])
    try:
        assert python(JOBS, tmp_path, data, str(workers), f"127.0.0.1:{server.port}") == ""
    finally:
        server.stop()


@pytest.mark.parametrize("workers", [1, 2])
def test_what_the_users_code_logs_is_printed(workers: int, data: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "mine.yaml").write_text("- mine:Log\n")
    options = f"connectors='mine.yaml', workers={workers}, progress='none'"
    program = f"import rlds_beam; rlds_beam.convert({data!r}, 'out', {options})"
    said = python(program, tmp_path)
    for start in ("seen", "root of"):  # each of two shards begins at 0
        assert re.search(rf"{start} 0\b", said) and re.search(rf"{start} [1-9]", said), said
    assert "unseen" not in said and "semi_persistent" not in said and "direct_num_workers" not in said


def test_a_user_who_sets_the_level_of_beams_logger_sees_its_logs(data: str, tmp_path: Path) -> None:
    program = f"""
import logging, rlds_beam
logging.basicConfig()
logging.getLogger("apache_beam").setLevel(logging.INFO)
rlds_beam.check({data!r}, workers=1, progress="none", rules=True).report
"""
    assert "INFO:apache_beam" in python(program, tmp_path)


# A job that runs in a thread, and what ends the wait for it.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_a_library_drops_ends_the_wait(number: signal.Signals) -> None:
    finish = threading.Event()

    def job() -> dict[str, Any]:
        assert finish.wait(DEADLINE)
        return {}

    def library() -> None:
        with contextlib.suppress(KeyboardInterrupt):  # as a bare `except` does
            os.kill(os.getpid(), number)
            finish.wait(DEADLINE)

    before = interrupts.on_interrupt(signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_watched(job, library)
    finally:
        finish.set()
        for given, handler in before.items():
            signal.signal(given, handler)
