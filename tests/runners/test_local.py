"""Jobs on this machine: the same bytes with any number of processes, their errors, their ends, and what they print."""

from __future__ import annotations

import functools
import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from directories import bytes_of
from processes import DEADLINE, end_of, members, running, wait_until

from rlds_beam.cli.main import main
from rlds_beam.errors import NeedsMappingError, RldsBeamError
from rlds_beam.processing.job import Stage, Totals
from rlds_beam.runners import local
from rlds_beam.runners.errors import WorkerTraceback
from rlds_beam.testing import make_episode, write_dataset

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # older versions of pytest give it a name of their own

JOBS = """
import logging, os, sys, warnings
import google_crc32c, numpy  # they add filters of warnings
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
assert state() == before
if workers == 1:
    rlds_beam.check(data, workers=workers, progress="none", rules=True)
    rlds_beam.stats(data, workers=workers, progress="none")
    assert state() == before
    options = {"env": "gymnasium:CartPole-v1", "policy": "random", "progress": "none"}
    rlds_beam.record("recorded", episodes=2, workers=workers, **options)
    rlds_beam.inspect(rlds_beam.example("examples", episodes=2))
    try:
        rlds_beam.check(data, workers=workers, fail="missing_is_last", progress="none", rules=True)
    except rlds_beam.FailedRuleError:
        pass
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


# The same results with any number of processes, and as a Beam pipeline.

WAYS = {"two processes": ["--workers=2"], "direct": ["--runner=direct"]}
CLEAN = """
- Normalize: {fields: [action]}
"""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record that is rejected, one that is repaired, and a duplicate."""
    episodes = [make_episode(12, seed=i, observation={"state": 3}) for i in range(9)]
    rejected = make_episode(5, seed=100, breaks=["non_finite"], observation={"state": 3})
    repaired = make_episode(6, seed=101, breaks=["missing_is_last"], observation={"state": 3})
    data = [*episodes[:4], rejected, repaired, episodes[2], *episodes[4:]]
    return write_dataset(tmp_path_factory.mktemp("mixed"), data, shards=3)


def bytes_and_output(command: list[str], output: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """What a command writes and prints, without what differs between two runs."""
    code = main(command)
    printed = capsys.readouterr()
    assert code in (0, 3), printed.err
    lines = [line for line in printed.out.splitlines() if not line.startswith(("took", "repair"))]
    files = bytes_of(output) if output.is_dir() else {output.name: output.read_bytes()} if output.exists() else {}
    return code, files, [line.replace(str(output), "OUTPUT") for line in lines]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "command",
    [
        ["convert", "DATA", "OUT", "--shards=5", "--repair=missing_is_last", "--connectors=CLEAN"],
        ["convert", "DATA", "OUT", "--shards=5", "--to=lerobot", "--fps=10"],
        ["check", "DATA", "--output=OUT"],
        ["check", "DATA", "--rules", "--report=OUT", "--expect=episodes=9"],
        ["stats", "DATA", "--output=OUT", "--by=is_last"],
        ["compare", "DATA", "DATA"],
        ["record", "OUT", "--env=recorded_environments:walk", "--policy=random", "--episodes=12"],
    ],
    ids=lambda command: " ".join(command[:1] + [word for word in command if word.startswith(("--to", "--rules"))]),
)
def test_every_way_gives_the_same_bytes(
    way: str, command: list[str], mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (clean := tmp_path / "clean.yaml").write_text(CLEAN)
    ending = {"check": ".xml" if "--rules" in command else ".parquet", "stats": ".json"}.get(command[0], "")
    results = []
    for name, flags in (("one", ["--workers=1"]), ("other", WAYS[way])):
        (home := tmp_path / name).mkdir()
        output = home / f"out{ending}"
        places = {"DATA": str(mixed), "OUT": str(output), "CLEAN": str(clean)}
        words = [functools.reduce(lambda text, place: text.replace(*place), places.items(), word) for word in command]
        results.append(bytes_and_output([*words, *flags, "--progress=none"], output, capsys))
    assert results[0] == results[1]


def test_a_local_job_imports_no_beam(data: str, tmp_path: Path) -> None:
    program = f"""
import sys, rlds_beam
rlds_beam.convert({data!r}, "out", progress="none")
rlds_beam.check({data!r}, progress="none")
rlds_beam.stats({data!r}, progress="none")
assert not {{"apache_beam", "grpc"}} & sys.modules.keys()
"""
    assert python(program, tmp_path) == ""


# Worker processes.


class Squares(Stage):
    """The sum of the squares of numbers."""

    name = "squares"

    def __init__(self, count: int, do: Callable[[], object] | None = None):
        self.count, self.do = count, do

    def ranges(self, totals: Totals) -> range:
        return range(self.count)

    def process(self, work: int, totals: Totals) -> int:
        if self.do is not None and work == 5:
            self.do()
        return work * work

    def merge(self, partials: Iterable[int]) -> int:
        return sum(partials)


class Order(Stage):
    """The order in which partial results come."""

    name = "order"

    def ranges(self, totals: Totals) -> range:
        return range(totals["squares"])

    def process(self, work: int, totals: Totals) -> list[int]:
        return [work]

    def merge(self, partials: Iterable[list[int]]) -> list[int]:
        return [number for part in partials for number in part]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_stages_run_one_after_the_other(workers: int) -> None:
    found, _ = local.run_here((Squares(9), Order()), workers)
    assert found == list(range(sum(i * i for i in range(9))))


def test_a_thread_that_is_late_sends_no_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other worker has finished the ranges of its stage before it began, and both work on the next stage."""
    go, gone, held, work = threading.Event(), threading.Event(), iter([True]), local._Worker.work

    def work_late(worker: local._Worker, content: bytes, works: range, *arguments: Any) -> None:
        is_late = works == range(9) and next(held, False)
        if is_late:
            go.wait()
        work(worker, content, works, *arguments)
        if is_late:
            gone.set()

    monkeypatch.setattr(local._Worker, "work", work_late)
    with local.Workers(2) as pool:
        assert [*pool.process(Squares(9), {})] == [i * i for i in range(9)]
        numbers = pool.process(Order(), {"squares": 40})
        assert next(numbers) == [0]
        go.set()
        gone.wait()
        assert [*numbers] == [[i] for i in range(1, 40)]


def _need_a_mapping() -> None:
    raise NeedsMappingError("give a mapping", propose=lambda: "")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("do", "said"), [(_need_a_mapping, "give a mapping"), (sys.exit, "SystemExit")])
def test_an_error_is_an_error_of_ours(workers: int, do: Callable[[], object], said: str) -> None:
    if workers == 1 and do is sys.exit:
        pytest.skip("it ends this process")
    with pytest.raises(RldsBeamError, match=said) as raised:
        local.run_here((Squares(20, do),), workers)
    if workers == 2:
        assert isinstance(raised.value.__cause__, WorkerTraceback) and "self.do()" in str(raised.value.__cause__)


@pytest.mark.parametrize(
    ("do", "why"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "killed by SIGKILL, probably because the system ran out"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "killed by SIGSEGV"),
        (lambda: os._exit(3), "exit code 3"),
        (lambda: os._exit(0), "exit code 0"),
    ],
)
def test_a_dead_worker_ends_the_job(do: Callable[[], object], why: str) -> None:
    with pytest.raises(RldsBeamError, match=rf"a worker process died at 5 \({why}"):
        local.run_here((Squares(20, do),), 2)


def test_a_script_without_a_main_guard_runs_once(data: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import rlds_beam\nprint('once')\n"
        "def double(batch):\n    return batch\n"
        f"print(rlds_beam.convert({data!r}, 'out', workers=2, connectors=[double], progress='none').report.records)\n"
    )
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert (done.returncode, done.stdout) == (0, "once\n4\n"), done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    episodes = [make_episode(300, seed=i, observation=400) for i in range(12)]
    data, output = write_dataset(tmp_path / "data", episodes, shards=2), tmp_path / "out"
    (temporary := tmp_path / "tmp").mkdir()
    command = ["convert", data, output, "--shards=6", "--workers=2"]
    with running(command, env={**os.environ, "TMPDIR": str(temporary)}) as process:
        wait_until(lambda: list(output.glob("*.tfrecord-*")), process)
        os.killpg(process.pid, number)
        code, out, err = end_of(process)
        assert members(process.pid) == []
    if code == 0:  # it finished before the signal
        return
    assert (code, out) == (130, ""), err
    assert err == "rlds-beam: interrupted; finished work is kept, run the same command to resume\n"
    assert list(temporary.iterdir()) == []
    assert main(["convert", str(data), str(output), "--shards=6"]) == 0


def test_workers_end_with_a_command_that_is_killed(tmp_path: Path) -> None:
    episodes = [make_episode(300, seed=i, observation=400) for i in range(12)]
    data, output = write_dataset(tmp_path / "data", episodes, shards=2), tmp_path / "out"
    with running(["convert", data, output, "--shards=6", "--workers=2"]) as process:
        wait_until(lambda: len(members(process.pid, "rlds_beam.runners.local")) == 2, process)
        process.kill()
        process.wait(DEADLINE)
        wait_until(lambda: members(process.pid) == [])
    assert main(["convert", str(data), str(output), "--shards=6"]) == 0
