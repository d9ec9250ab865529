"""Environments like the worker image, built with the commands of examples/dataflow/Dockerfile."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from checkout import ROOT

DOCKERFILE = ROOT / "examples" / "dataflow" / "Dockerfile"


def steps() -> list[str]:
    """The commands of the Dockerfile's RUN, in order."""
    (block,) = re.findall(r"^RUN (.*?[^\\])$", DOCKERFILE.read_text(), re.DOTALL | re.MULTILINE)
    return [step.strip() for step in block.replace("\\\n", "").split("&&")]


def build(home: Path, wheel: Path) -> Path:
    """Does in `home` what the Dockerfile does in /opt/rlds-beam; returns the worker's interpreter."""
    home.mkdir()
    (home / "requirements.lock").symlink_to(DOCKERFILE.parent / "requirements.lock")
    (home / wheel.name).symlink_to(wheel)
    python_first = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for step in steps():
        run(step.replace("/opt/rlds-beam", str(home)), home, shell=True, env=python_first)
    return home / "venv" / "bin" / "python"


def beside(python: Path, home: Path, package: Path) -> Path:
    """Creates another environment with the same dependencies, whose rlds-beam is `package`."""
    run([sys.executable, "-m", "venv", "--without-pip", str(home)], home.parent)
    (libraries,) = (python.parents[1] / "lib").glob("python*/site-packages")
    (own,) = (home / "lib").glob("python*/site-packages")
    (own / "dependencies.pth").write_text(f"{libraries}\n")
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", f"--python={python}"]
    run([*pip, "install", "--no-deps", "--ignore-installed", str(package)], home)
    return python


def run(command, cwd: Path, env=None, **kwargs):
    """Runs a command outside the checkout; fails with its output."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    # Compiling every module would take most of the installation time, and few of them are imported.
    clean |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore", "PIP_COMPILE": "0", **(env or {})}
    done = subprocess.run(
        command, cwd=cwd, env=clean, capture_output=True, text=True, check=False, timeout=600, **kwargs
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done
