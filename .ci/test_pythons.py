"""`make test-pythons`: the tests of the base package on every supported Python that is found on this machine.

Each interpreter has an environment of its own, .venv-py310 and so on, with what its lock in requirements/ names, and
the wheel. None of them has TensorFlow: tests that need what is not installed skip themselves.
"""

from __future__ import annotations

import shlex
import sys

from environments import ROOT, Outcome, all_passed, build, find, install_wheel, print_table, test, version_of

PYTHONS = ("3.10", "3.11", "3.12", "3.13")

LEFT_OUT = (
    "buckets", "dataflow", "faults", "flink", "peers",
    "pipelines/test_doctor.py", "project/test_cannot_hang.py", "project/test_docs.py", "project/test_memory.py",
    "project/test_packaging.py", "project/test_real_data.py", "project/test_simulate.py",
    "runners/test_worker_services.py",
)  # fmt: skip
"""Tests that kill processes, fill disks, measure memory, build packages or run the pages: `make test` has them, on
Python 3.11. They take most of the time, and what they test depends on the machine rather than on the Python."""


def test_on(version: str, interpreter: str, arguments: list[str]) -> Outcome:
    """The results on one Python."""
    name = f"py{version.replace('.', '')}"
    python = build(ROOT / f".venv-{name}", interpreter, ROOT / "requirements" / f"base-{name}.lock")
    install_wheel(python)
    numpy = version_of(python, "numpy")
    print(f"\n== Python {version}, numpy {numpy}", flush=True)
    return test(version, numpy, python, arguments)


def main(arguments: list[str]) -> int:
    """The exit code: 0 where there is an interpreter, and tests passed and none failed on each."""
    interpreters = {version: find(version) for version in PYTHONS}
    for version, interpreter in interpreters.items():
        if interpreter is None:
            print(f"Python {version} was not found (with venv): nothing is tested on it", flush=True)
    ignored = [ROOT / "tests" / name for name in LEFT_OUT]
    assert all(path.exists() for path in ignored), ignored
    outcomes = [
        test_on(version, interpreter, [*(f"--ignore={path}" for path in ignored), *arguments])
        for version, interpreter in interpreters.items()
        if interpreter is not None
    ]
    print_table(outcomes, "python", "numpy")
    if not outcomes:
        print(f"none of Python {', '.join(PYTHONS)} was found", file=sys.stderr)
    return 0 if all_passed(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main([word for argument in sys.argv[1:] for word in shlex.split(argument)]))
