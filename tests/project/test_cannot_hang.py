"""Tests cannot hang on any machine: no forks, waits have deadlines, stuck tests fail, no test measures time."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from checkout import ROOT, parse
from processes import end_of, start

FOLDERS = ("benchmarks", "examples", "pipelines", "runners", "src", "tests", "transforms")
FILES = [*ROOT.glob("*.py"), *(file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py")))]

# A fork copies one thread but the locks of all threads: if gRPC or TensorFlow has threads, the child may wait forever
# for a lock. `subprocess` and multiprocessing's "spawn" use vfork instead (CPython 3.11 to 3.14 on Linux),
# which runs no Python or library code before the new program, unless `subprocess` is given one of these.
FORKING_ARGUMENTS = {"preexec_fn", "user", "group", "extra_groups"}
FORKING_FUNCTIONS = {"fork", "forkpty", "set_forkserver_preload"}
# These fork by default.
NEEDS_CONTEXT = {"ProcessPoolExecutor", *(f"multiprocessing.{name}" for name in ("Manager", "Pool", "Process"))}

STARTS_AND_WAITS = {"call", "check_call", "check_output", "run"}


# Only files with these words are walked: walking all of them takes seconds.
MAY_FORK = re.compile(
    r"fork|preexec_fn|extra_groups|\b(user|group) *=|get_context|set_start_method|ProcessPool|multiproc"
)


def calls(file: Path, words: re.Pattern[str]) -> Iterator[tuple[ast.Call, str, str]]:
    """Yields each call in a file that has one of the words, its dotted name, and its location."""
    for node in ast.walk(parse(file)) if words.search(file.read_text()) else ():
        if isinstance(node, ast.Call):
            yield node, dotted(node.func), f"{file.relative_to(ROOT)}:{node.lineno}"


def dotted(function: ast.expr) -> str:
    """`a.b.c`; `().c` if c is an attribute of anything but a name."""
    attributes = []
    while isinstance(function, ast.Attribute):
        attributes.append(function.attr)
        function = function.value
    return ".".join([function.id if isinstance(function, ast.Name) else "()", *reversed(attributes)])


def forks(node: ast.Call, name: str) -> bool:
    keywords = {keyword.arg for keyword in node.keywords}
    literals = {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
    last = name.rpartition(".")[2]
    return (
        "preexec_fn" in keywords
        or (last in {"Popen", *STARTS_AND_WAITS} and bool(keywords & FORKING_ARGUMENTS))
        or last in FORKING_FUNCTIONS
        or (last in {"get_context", "set_start_method"} and "spawn" not in literals)
        or (bool({last, name} & NEEDS_CONTEXT) and "mp_context" not in keywords)
    )


def test_nothing_forks() -> None:
    assert [place for file in FILES for node, name, place in calls(file, MAY_FORK) if forks(node, name)] == []
    programs = [file for file in FILES if file != Path(__file__) and "os.fork()" in file.read_text()]
    assert programs == []


def run_python(*arguments: object, **environment: str) -> tuple[int, str]:
    """The exit code, and what Python printed."""
    command, options = [sys.executable, *map(str, arguments)], {**os.environ, "PYTHONFAULTHANDLER": "1", **environment}
    with start(command, env=options) as process:
        code, out, err = end_of(process)
    return code, out + err


# Seconds enough for a test to reach the place where it is stuck, also on a busy machine: a deadline that passes in
# pytest's own code is an internal error of pytest.
STUCK = """
import ctypes, threading
import pytest, hard_deadline

hard_deadline.GRACE = 5.0
stuck = pytest.mark.timeout(5)

@pytest.fixture
def endless():
    yield
    threading.Event().wait()

@stuck
def test_in_python(): threading.Event().wait()

@stuck
def test_in_c_with_the_gil():
    lock = ctypes.create_string_buffer(100)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(lock)

@stuck
def test_fails_and_cannot_clean_up(endless): assert False, "the failure"

def test_sound(): pass
"""


def test_a_stuck_test_fails_and_shows_where(tmp_path) -> None:
    (tmp_path / "test_stuck.py").write_text(STUCK)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout_method = signal\n")
    options = ["-m", "pytest", "-n", "3", "--dist=worksteal", "-p", "hard_deadline", "-p", "no:hypothesispytest"]
    # Without a directory of its own, it would remove those that earlier runs of the suite left: minutes on a slow disk.
    options += [f"--basetemp={tmp_path / 'files'}"]
    code, said = run_python(*options, tmp_path / "test_stuck.py", PYTHONPATH=str(ROOT / "tests" / "support"))
    assert code == 1, said
    assert "4 failed, 1 passed" in said, said
    assert "Failed: Timeout (>5.0s) from pytest-timeout" in said
    assert "AssertionError: the failure" in said
    for test, place in (("in_c_with_the_gil", "test_in_c_with_the_gil"), ("fails_and_cannot_clean_up", "endless")):
        assert f"crashed while running 'test_stuck.py::test_{test}'" in said
        assert re.search(rf'test_stuck.py", line \d+ in {place}$', said, re.MULTILINE), said
