"""Separate environments for tests that cannot run in .venv: another Python, or conflicting packages.

Each is built from a lock file, and rebuilt only when the lock changes.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
UV = Path(sys.executable).with_name("uv")


class Outcome(NamedTuple):
    """The results in one environment."""

    name: str
    version: str
    passed: int
    skipped: int
    failed: int
    seconds: float


def find(version: str) -> str | None:
    """An interpreter of this version that has venv: from the PATH, pyenv, or uv."""
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


def build(home: Path, interpreter: str, lock: Path) -> Path:
    """Builds the environment `home` from the lock, if needed; returns its Python."""
    python = home / "bin" / "python"
    stamp = home / f".lock-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}"
    if not stamp.exists():
        print(f"Installing {lock.relative_to(ROOT)} into {home.name}", flush=True)
        run([interpreter, "-m", "venv", "--clear", home])
        locked = ["--quiet", "--no-deps", "--require-hashes", "-r", lock]
        # Not compiled: tests import a small part of what torch and ray bring.
        if subprocess.run([UV, "pip", "install", "--python", python, *locked]).returncode:
            run([python, "-m", "pip", "install", *locked])  # if only pip's configuration names a package index
        stamp.touch()
    return python


def install_wheel(python: Path) -> None:
    """Installs the rlds-beam wheel in dist."""
    (wheel,) = (ROOT / "dist").glob("*.whl")
    run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--force-reinstall", wheel])


def version_of(python: Path, module: str) -> str:
    """The version of an installed module."""
    command = [python, "-c", f"import {module}; print({module}.__version__)"]
    return run(command, capture_output=True, text=True).stdout.strip()


def test(name: str, version: str, python: Path, arguments: list[str]) -> Outcome:
    """Runs pytest with these arguments."""
    report = python.parents[1] / "report.xml"
    report.unlink(missing_ok=True)
    began = time.monotonic()
    subprocess.run([python, "-m", "pytest", "-q", f"--junitxml={report}", *arguments], cwd=ROOT, check=False)
    seconds = time.monotonic() - began
    if not report.exists():
        return Outcome(name, version, 0, 0, 1, seconds)
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    counts = [{name: int(s.get(name, 0)) for name in ("tests", "skipped", "failures", "errors")} for s in suites]
    total = {name: sum(count[name] for count in counts) for name in counts[0]}
    failed = total["failures"] + total["errors"]
    return Outcome(name, version, total["tests"] - total["skipped"] - failed, total["skipped"], failed, seconds)


def print_table(outcomes: list[Outcome], name: str, version: str) -> None:
    """Prints the results under these headings for the first two columns."""
    print(f"\n{name:11}{version:9}{'passed':>8}{'skipped':>9}{'failed':>8}{'seconds':>9}")
    for one in outcomes:
        print(f"{one.name:11}{one.version:9}{one.passed:8}{one.skipped:9}{one.failed:8}{one.seconds:9.0f}")


def all_passed(outcomes: list[Outcome]) -> bool:
    """Whether there are results, and in each environment tests passed and none failed."""
    return bool(outcomes) and all(one.passed and not one.failed for one in outcomes)


def run(command: list[object], **kwargs: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], check=True, **kwargs)  # type: ignore[call-overload]
