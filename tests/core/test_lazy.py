"""Beam imports clients of remote services only if a job needs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import DEADLINE

from rlds_beam.testing import make_episode, write_dataset

VALIDATE = """
import contextlib, io, sys
from rlds_beam.cli import main as cli

def clients_after_validate(*flags):
    sys.argv = ["rlds-beam", "check", "--rules", "data/testing/1.0.0", *flags]
    with contextlib.redirect_stdout(io.StringIO()):
        assert cli.main() == 0
    assert "apache_beam" in sys.modules
    return {"google.api_core", "pymongo"} & set(sys.modules)
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A current directory with a dataset, and a user module with a source."""
    directory = tmp_path_factory.mktemp("here")
    write_dataset(directory / "data", [make_episode(5)])
    (directory / "mine.py").write_text("from rlds_beam.formats.rlds.source import RldsSource\n")
    return directory


def python(code: str, here: Path, **variables: str) -> None:
    """Runs `code` in a new interpreter, which must succeed."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=here,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stderr


def test_a_local_job_imports_none_but_user_code_can(here: Path) -> None:
    python(f"{VALIDATE}assert not clients_after_validate()\nimport pymongo", here)


def test_a_worker_process_imports_none(here: Path) -> None:
    code = """
import sys
from rlds_beam import lazy
lazy.hide_clients_as_the_parent()
from apache_beam.runners.worker import sdk_worker_main
assert not {"google.api_core", "pymongo"} & set(sys.modules)
"""
    python(code, here, RLDS_BEAM_HIDDEN_CLIENTS="1")


def test_a_bucket_can_be_used_later(here: Path) -> None:
    pytest.importorskip("google.cloud.storage")
    code = """
from rlds_beam import lazy, storage
from rlds_beam.errors import BucketError
lazy.hide_clients()
import apache_beam
try:
    storage.exists("gs://bucket/name")
except BucketError as error:
    assert "http://127.0.0.1:1 does not answer" in str(error)
"""
    python(code, here, STORAGE_EMULATOR_HOST="http://127.0.0.1:1")


def test_user_code_may_need_them(here: Path) -> None:
    python(f"{VALIDATE}assert 'pymongo' in clients_after_validate('--from=mine:RldsSource')", here)


def test_the_import_of_beam_says_nothing_of_other_packages(here: Path) -> None:
    """If `rlds_beam.transforms` comes first, as in the README; the user's root logger gets no handler."""
    code = (
        "import logging\nfrom rlds_beam.transforms import ReadFromRlds\nimport apache_beam\n"
        "logging.warning('the user still sees warnings')\nimport warnings\nwarnings.warn('and these', FutureWarning)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE,
    )
    logged, warned, *source = done.stderr.splitlines()
    assert logged == "WARNING:root:the user still sees warnings" and "FutureWarning: and these" in warned
    assert all("warnings.warn('and these'" in line for line in source), source  # shown since Python 3.13
