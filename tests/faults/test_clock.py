"""Commands while the clock jumps forward and back by a year: same bytes, correct waits.

The clock is Python's `time.time` in the command and its workers. Waits use `time.monotonic`, which cannot be set.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkout import SUPPORT
from directories import bytes_of
from processes import DEADLINE, run
from recorded import GREEDY, WALK

from rlds_beam.testing import make_episode, write_dataset

CLOCK = """
import itertools
import sys
import time

_time, _calls = time.time, itertools.count()

def _jumping():
    if sys._getframe(1).f_globals.get("__name__") == "grpc._utilities":
        return _time()
    return _time() + (0, 366, -366)[next(_calls) // 5 % 3] * 86400

time.time = _jumping
time.time_ns = lambda: int(_jumping() * 1e9)
"""
"""A `sitecustomize` that changes the year at every fifth call.

gRPC is excluded: it waits for a connection by `time.time`, so a jump while a worker connects to its command would end
the worker. The command would then fail in one line and could be run again, as after any death of a worker.
"""


@pytest.fixture
def jumping(tmp_path: Path) -> dict[str, str]:
    """The environment of a command whose clock jumps."""
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(CLOCK)
    paths = [str(tmp_path / "clock"), str(SUPPORT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    columns = {"propensity": np.full(20, 0.5), "action": np.arange(20) % 3}
    return write_dataset(tmp_path / "data", [make_episode(20, seed=i, columns=columns) for i in range(40)], shards=4)


def result(command: list[Any], environment: dict[str, str], code: int = 0) -> Any:
    """Runs a command and returns its JSON; asserts that its times are plausible."""
    found, out, err = run([*command, "--json", "--progress=none"], env=environment)
    assert (found, err) == (code, ""), err
    content = json.loads(out)
    if content.get("steps_per_second") is not None:
        assert 0 < content["working_seconds"] <= content["seconds"]
        assert content["steps_per_second"] > 0
    assert 0 <= content["seconds"] < 1000
    return content


@pytest.mark.parametrize("flags", [[], ["--to=rlds"], ["--to=lerobot", "--fps=10"]], ids=str)
def test_a_conversion(tmp_path: Path, data: Path, jumping: dict[str, str], flags: list[str]) -> None:
    command = ["convert", data, tmp_path / "out", "--workers=2", "--shards=4", *flags]
    report = result(command, jumping)
    assert report["valid"] == 40
    assert result(command, jumping)["steps_this_run"] == 0, "it was not recognized as finished"
    command[2] = tmp_path / "whole"
    result(command, dict(os.environ))
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")


@pytest.mark.parametrize("command", ["check", "stats"])
def test_a_job_that_only_reads(data: Path, jumping: dict[str, str], command: str) -> None:
    found, wanted = (result([command, data, "--workers=2"], env) for env in (jumping, dict(os.environ)))
    times = dict.fromkeys(("seconds", "start", "end"))
    assert {**found, **times} == {**wanted, **times}


def test_a_recording(tmp_path: Path, jumping: dict[str, str]) -> None:
    flags = [f"--env={WALK}", f"--policy={GREEDY}", "--episodes=40", "--workers=2"]
    result(["record", tmp_path / "out", *flags], jumping)
    result(["record", tmp_path / "whole", *flags], {**jumping, "PYTHONPATH": str(SUPPORT)})
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")


def test_a_push_and_a_missing_server(data: Path, jumping: dict[str, str]) -> None:
    reverb = pytest.importorskip("reverb")
    from servers import free_port

    limiter = reverb.rate_limiters.MinSize(1)
    table = reverb.Table("t", reverb.selectors.Uniform(), reverb.selectors.Fifo(), 10_000, limiter)
    server = reverb.Server([table])
    try:
        pushed = result(["push", data, f"--reverb=127.0.0.1:{server.port}", "--table=t", "--workers=2"], jumping)
        assert pushed["items_written"] == 40 * 19
        assert reverb.Client(f"127.0.0.1:{server.port}").server_info(timeout=60)["t"].current_size == 40 * 19
    finally:
        server.stop()
    nowhere = f"127.0.0.1:{free_port()}"
    code, _, err = run(["push", data, f"--reverb={nowhere}", "--table=t", "--timeout=2"], env=jumping)
    assert code == 2 and f"{nowhere}: no Reverb server answers" in err


def test_the_clock_jumps(jumping: dict[str, str]) -> None:
    """Checks that the fixture works."""
    import subprocess

    program = "import time; years = {int(time.time() / 31e6) for _ in range(20)}; print(len(years))"
    done = subprocess.run(
        [sys.executable, "-c", program], env=jumping, capture_output=True, text=True, check=True, timeout=DEADLINE
    )
    assert done.stdout == "3\n"
