"""Fixtures that run the commands in this process, on Beam's in-process runner."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from jobs import Ran

from rlds_beam.cli.main import main

pytest_plugins = ["cases", "optional"]

# No test may depend on the speed of the machine.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# If bytecode is not cached, each command that a test starts compiles our modules again, a tenth of its time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell's background job ignores Ctrl-C, and one of nohup SIGHUP, and so would every process that a test starts: a
# handler, unlike SIG_IGN, is not passed on.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# Indexes of datasets: in a directory of this run, also for the processes that tests start.
_cache = tempfile.TemporaryDirectory(prefix="rlds-beam-cache-")
os.environ["RLDS_BEAM_CACHE"] = _cache.name


@pytest.fixture(scope="session", autouse=True)
def _each_signature_once() -> Iterator[None]:
    """Caches Beam's inspection of functions.

    Without it, Beam inspects signatures 3,000 times in a small pipeline, all methods of each DoFn nine times, the
    source of each `process`, and the stack at each type hint, for its messages: half of the time of hundreds of tests.
    """
    core = sys.modules.get("apache_beam.transforms.core")
    if core is None:  # no test module in this run uses Beam
        yield
        return
    inspect, known = core.get_function_args_defaults, weakref.WeakKeyDictionary[Any, dict[bool, Any]]()

    def arguments(function: Callable[..., Any]) -> Any:
        bound = isinstance(function, types.MethodType)
        plain = function.__func__ if bound else function
        if not isinstance(plain, types.FunctionType):
            return inspect(function)
        found = known.setdefault(plain, {})
        if bound not in found:
            found[bound] = inspect(function)
        names, defaults = found[bound]
        return [*names], [*defaults]

    userstate = sys.modules["apache_beam.transforms.userstate"]
    find_specs, specs = userstate.get_dofn_specs, weakref.WeakKeyDictionary[type, Any]()

    def state_and_timers(dofn: Any) -> Any:
        if any(isinstance(value, types.MethodType) for value in vars(dofn).values()):
            return find_specs(dofn)  # it looks at the methods of the object
        if type(dofn) not in specs:
            specs[type(dofn)] = find_specs(dofn)
        return tuple(map(set, specs[type(dofn)]))

    find_mixture, mixed = core._check_fn_use_yield_and_return, dict[types.CodeType, bool]()

    def yields_and_returns(function: Callable[..., Any]) -> Any:
        code = getattr(function, "__code__", None)
        if code not in mixed:
            return mixed.setdefault(code, find_mixture(function)) if code else find_mixture(function)
        return mixed[code]

    hints = sys.modules["apache_beam.typehints.decorators"].IOTypeHints
    describe_origin = hints._make_origin

    def without_stack(bases: Any, tb: bool = True, msg: Any = ()) -> Any:
        return describe_origin(bases, tb=False, msg=msg)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "get_function_args_defaults", arguments)
        patch.setattr(core, "_check_fn_use_yield_and_return", yields_and_returns)
        patch.setattr(userstate, "get_dofn_specs", state_and_timers)
        patch.setattr(hints, "_make_origin", staticmethod(without_stack))
        patch.setattr(argparse, "_", str)  # it looks for translations of each word again
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_waits_for_the_disk() -> Iterator[None]:
    """Commands in this process do not wait for the disk, a third of their time: no test can tell whether they did.

    A killed process loses nothing that it wrote, only a power failure does. Commands in other processes wait.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_progress_lines() -> Iterator[None]:
    """On a busy machine even a short command in this process would print a line of progress to what a test compares."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlds_beam.terminal.job_progress.EVERY_SECONDS", 10_000.0)
        yield


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of indexes for one test."""
    monkeypatch.setenv("RLDS_BEAM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def convert(tmp_path, capsys):
    def run(source: Path | str, *flags: str, output: Path = tmp_path / "out") -> Ran:
        code = main(["convert", str(source), str(output), *flags])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err, output)

    return run


@pytest.fixture
def convert_only(convert):
    """Skips the duplicate check, which takes most of the time of a tiny job."""

    def run(source: Path | str, *flags: str, **kwargs: Any) -> Ran:
        return convert(source, "--accept=duplicate_episode", *flags, **kwargs)

    return run


@pytest.fixture
def check_rules(tmp_path, capsys):
    def run(source: Path | str, *flags: str) -> tuple[int, dict[str, Any], str]:
        code = main(["check", "--rules", str(source), "--json", *flags])
        captured = capsys.readouterr()
        return code, json.loads(captured.out) if captured.out else {}, captured.err

    return run


@pytest.fixture
def table():
    """Returns a function that starts a Reverb server in this process with the given tables and returns its address."""
    import reverb

    with contextlib.ExitStack() as stack:

        def serve(*tables: Any) -> str:
            server = reverb.Server(list(tables))
            stack.callback(server.stop)
            return f"127.0.0.1:{server.port}"

        yield serve
