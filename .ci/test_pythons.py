"""`make test-pythons`: the tests of the base package on every supported Python that is found on this machine.

Each interpreter has an environment of its own, .venv-py310 and so on, with what its lock in requirements/ names, and
the wheel. None of them has TensorFlow: tests that need what is not installed skip themselves.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
UV = Path(sys.executable).with_name("uv")

LEFT_OUT = (
    "dataflow", "flink", "test_faults_disk.py", "test_faults_machine.py", "test_faults_workers.py", "test_kill.py",
    "test_memory.py", "test_packaging.py",
)  # fmt: skip
"""Tests that kill processes, fill disks, measure memory or build packages: `make test` has them, on Python 3.11. They
take most of the time, and what they test depends on the machine rather than on the Python."""


class Outcome(NamedTuple):
    """The results on one Python."""

    python: str
    numpy: str
    passed: int
    skipped: int
    failed: int
    seconds: float


def find(version: str) -> str | None:
    """An interpreter of this version that can make environments: on the PATH, of pyenv, or of uv."""
    candidates = [f"python{version}"]
    for command in (["pyenv", "prefix", version], [str(UV), "python", "find", "--managed-python", version]):
        if shutil.which(command[0]):
            found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
            candidates.append(f"{found}/bin/python" if command[0] == "pyenv" else found)
    check = f"import ensurepip, sys, venv; sys.exit('.'.join(map(str, sys.version_info[:2])) != {version!r})"
    for candidate in candidates:
        if shutil.which(candidate) and not subprocess.run([candidate, "-c", check], capture_output=True).returncode:
            return candidate
    return None


def build(version: str, interpreter: str, wheel: Path) -> Path:
    """The interpreter of the environment, which is made again only when its lock changes."""
    name = f"py{version.replace('.', '')}"
    lock, home = ROOT / "requirements" / f"base-{name}.lock", ROOT / f".venv-{name}"
    python = home / "bin" / "python"
    stamp = home / f".lock-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}"
    if not stamp.exists():
        print(f"Installing what {lock.relative_to(ROOT)} names into {home.name}", flush=True)
        run([interpreter, "-m", "venv", "--clear", home])
        locked = ["--quiet", "--no-deps", "--require-hashes", "-r", lock]
        if subprocess.run([UV, "pip", "install", "--python", python, "--compile-bytecode", *locked]).returncode:
            run([python, "-m", "pip", "install", *locked])  # where only pip's configuration names a package index
        stamp.touch()
    run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--force-reinstall", wheel])
    return python


def test(version: str, python: Path, arguments: list[str]) -> Outcome:
    """Runs pytest with these arguments."""
    numpy = run([python, "-c", "import numpy; print(numpy.__version__)"], capture_output=True, text=True).stdout.strip()
    print(f"\n== Python {version}, numpy {numpy}", flush=True)
    report = python.parents[1] / "report.xml"
    report.unlink(missing_ok=True)
    began = time.monotonic()
    subprocess.run([python, "-m", "pytest", "-q", f"--junitxml={report}", *arguments], cwd=ROOT, check=False)
    seconds = time.monotonic() - began
    if not report.exists():
        return Outcome(version, numpy, 0, 0, 1, seconds)
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    counts = [{name: int(s.get(name, 0)) for name in ("tests", "skipped", "failures", "errors")} for s in suites]
    total = {name: sum(count[name] for count in counts) for name in counts[0]}
    failed = total["failures"] + total["errors"]
    return Outcome(version, numpy, total["tests"] - total["skipped"] - failed, total["skipped"], failed, seconds)


def run(command: list[object], **kwargs: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], check=True, **kwargs)  # type: ignore[call-overload]


def main(arguments: list[str]) -> int:
    """The exit code: 0 where there is an interpreter, and tests passed and none failed on each."""
    interpreters = {version: find(version) for version in PYTHONS}
    for version, interpreter in interpreters.items():
        if interpreter is None:
            print(f"Python {version} was not found (with venv): nothing is tested on it", flush=True)
    (wheel,) = (ROOT / "dist").glob("*.whl")
    ignored = [ROOT / "tests" / name for name in LEFT_OUT]
    assert all(path.exists() for path in ignored), ignored
    outcomes = [
        test(version, build(version, interpreter, wheel), [*(f"--ignore={path}" for path in ignored), *arguments])
        for version, interpreter in interpreters.items()
        if interpreter is not None
    ]
    print(f"\n{'python':8}{'numpy':9}{'passed':>8}{'skipped':>9}{'failed':>8}{'seconds':>9}")
    for one in outcomes:
        print(f"{one.python:8}{one.numpy:9}{one.passed:8}{one.skipped:9}{one.failed:8}{one.seconds:9.0f}")
    if not outcomes:
        print(f"none of Python {', '.join(PYTHONS)} was found", file=sys.stderr)
    return 0 if outcomes and all(one.passed and not one.failed for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main([word for argument in sys.argv[1:] for word in shlex.split(argument)]))
