"""The commands as fixtures: they run in this process, on Beam's in-process runner."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from jobs import Ran

from rlds_beam.pipelines.cli import main

pytest_plugins = ["cases", "optional"]

# No test is to depend on how fast the machine is.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# Where bytecode is not kept, each command that a test starts compiles our modules again: a tenth of its time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell's background job ignores Ctrl-C, and so would every process that a test starts: a handler, unlike SIG_IGN, is
# not passed on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda *_: None)

GRACE = 120.0
"""Seconds after its deadline that a test has to fail, and that its fixtures have to clean up after a failure."""


def pytest_configure(config: pytest.Config) -> None:
    global _watchdog_log
    _watchdog_log = os.dup(sys.__stderr__.fileno())  # while nothing is captured


def _end_process_after(seconds: float) -> None:
    """Dumps the stacks and ends this process if it is still at the same test after so many seconds.

    It is a thread of C that does it, so it needs no Python to run: a test may be stuck in a library, with the GIL held.
    """
    faulthandler.dump_traceback_later(seconds, exit=True, file=_watchdog_log)


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    _end_process_after(settings.timeout + GRACE)


def pytest_timeout_cancel_timer(item: pytest.Item) -> None:
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    # pytest and pytest-timeout cancel their deadlines when a test fails; this one is for the fixtures after it.
    _end_process_after(GRACE)


@pytest.fixture(scope="session", autouse=True)
def _each_signature_once() -> Iterator[None]:
    """Beam inspects a function's arguments once, which cannot change, and not for each use of it in each pipeline.

    In a small pipeline that is 3,000 times: a quarter of the time of hundreds of tests.
    """
    core = sys.modules.get("apache_beam.transforms.core")
    if core is None:  # no module of this run's tests uses Beam
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

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "get_function_args_defaults", arguments)
        yield


@pytest.fixture
def convert(tmp_path, capsys):
    def run(source: Path | str, *flags: str, output: Path = tmp_path / "out") -> Ran:
        code = main(["convert", str(source), str(output), *flags])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err, output)

    return run


@pytest.fixture
def convert_only(convert):
    """Without the look for duplicates, which is most of what a tiny job takes."""

    def run(source: Path | str, *flags: str, **kwargs: Any) -> Ran:
        return convert(source, "--accept=duplicate_episode", *flags, **kwargs)

    return run


@pytest.fixture
def validate(tmp_path, capsys):
    def run(source: Path | str, *flags: str) -> tuple[int, dict[str, Any], str]:
        code = main(["validate", str(source), "--json", *flags])
        captured = capsys.readouterr()
        return code, json.loads(captured.out) if captured.out else {}, captured.err

    return run


@pytest.fixture
def table():
    """Starts a Reverb server in this process with the tables that are given; its address."""
    import reverb

    with contextlib.ExitStack() as stack:

        def serve(*tables: Any) -> str:
            server = reverb.Server(list(tables))
            stack.callback(server.stop)
            return f"127.0.0.1:{server.port}"

        yield serve
