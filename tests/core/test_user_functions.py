"""Finding the modules of user functions in the current directory, where nothing shadows an installed package."""

from __future__ import annotations

import importlib
import json
import linecache
import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import DEADLINE, RLDS_BEAM

from rlds_beam import user_functions
from rlds_beam.testing import make_episode, write_dataset

HOSTILE = ("apache_beam", "google", "grpc", "numpy", "yaml")
"""Installed packages that a file in the current directory must not shadow."""
SCRIPT = str(Path(sys.executable).with_name("rlds-beam"))
RECORD = "import pathlib\npathlib.Path(__file__).with_suffix('.imported').touch()\nraise ImportError(__name__)\n"
POLICIES = f"""
import contextlib
import importlib

def info(current, following):
    for name in {HOSTILE}:  # like a library with optional dependencies
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    return {{"reward": current["reward"]}}
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A current directory with a user module, and modules with names that dependencies may import."""
    (tmp_path / "my_policies.py").write_text(POLICIES)
    for name in HOSTILE:
        (tmp_path / f"{name}.py").write_text(RECORD)
    write_dataset(tmp_path / "data", [make_episode(5, seed=i) for i in range(8)], shards=2)
    return tmp_path


def run(here: Path, command: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [*command, *arguments], cwd=here, env=environment, capture_output=True, text=True, check=False, timeout=DEADLINE
    )


@pytest.mark.parametrize(
    ("command", "workers"), [([SCRIPT], 2), ([*RLDS_BEAM], 1)], ids=["script, two workers", "python -m"]
)
def test_no_installed_package_is_shadowed_by_the_current_directory(
    here: Path, command: list[str], workers: int
) -> None:
    done = run(
        here,
        command,
        "convert",
        "data/testing/1.0.0",
        "out",
        "--policy_info_fn=my_policies:info",
        f"--workers={workers}",
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in here.glob("*.imported")] == []


def test_a_package_in_the_current_directory(here: Path) -> None:
    package = here / "my_project"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helpers.py").write_text("def double(reward):\n    return 2 * reward\n")
    (package / "policies.py").write_text(
        "from my_project.helpers import double\n\n"
        "def info(current, following):\n    return {'double': double(current['reward'])}\n"
    )
    flags = ("--policy_info_fn=my_project.policies:info", "--workers=2")
    done = run(here, [*RLDS_BEAM], "convert", "data/testing/1.0.0", "out", *flags)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("named", "expected"), [("rlds_beam.testing", False), ("json.decoder", True)])
def test_an_error_is_the_users_if_it_came_through_a_module_that_the_user_named(named, expected, monkeypatch):
    """A module of ours stays ours."""
    monkeypatch.setattr(user_functions, "_named", set())
    user_functions.expect_user_code(named)
    with pytest.raises(ValueError, match=r"no steps|property name") as error:
        make_episode("no steps like these") if named.startswith("rlds_beam") else json.loads("{")
    assert user_functions.is_users(error.value) is expected


def test_a_module_that_was_imported_again_is_used(tmp_path, monkeypatch):
    """In a notebook, for example: neither the function nor its version is the old one."""
    monkeypatch.syspath_prepend(str(tmp_path))
    file, versions = tmp_path / "edited_module.py", []
    for value in (1, 22):
        file.write_text(f"def info():\n    return {value}\n")
        monkeypatch.delitem(sys.modules, "edited_module", raising=False)
        importlib.invalidate_caches()
        linecache.clearcache()
        assert user_functions.resolve("edited_module:info", "--policy_info_fn")() == value
        versions.append(user_functions.find_version("edited_module:info"))
    assert versions[0] != versions[1]
