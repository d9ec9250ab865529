"""`rlds-beam doctor` finds common problems, says what to do, and sets its exit code."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from processes import DEADLINE, RLDS_BEAM, start

from rlds_beam.cli.main import main
from rlds_beam.errors import pip_install
from rlds_beam.runners import diagnosis


def test_a_machine_that_runs_these_tests_has_no_problems(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert list(content)[:4] == ["version", "command", "start", "end"]
    findings = {finding["check"]: finding for finding in content["findings"]}
    assert {"python", "packages", "imports", "[agents]", "reverb", "java", "flink jar", "loopback"} <= findings.keys()
    assert {finding["status"] for finding in findings.values()} <= {"ok", "absent"}
    assert f"numpy {__import__('numpy').__version__}" in findings["packages"]["detail"]
    assert all(finding["remedy"] for finding in findings.values() if finding["status"] == "absent")


def test_too_few_open_files_and_a_package_that_does_not_import(tmp_path: Path) -> None:
    """With a low limit, as on some systems, there is a problem and the exit code is 1."""
    (tmp_path / "simplejpeg.py").write_text("raise ImportError('libturbojpeg.so.0: cannot open shared object file')")
    command = ["prlimit", "--nofile=256:512", *RLDS_BEAM, "doctor"]
    with start(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}) as process:
        out, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert re.search(
        r"^problem  open files +256 at a time\n         ulimit -n 1024 \(the hard limit is 512\)", out, re.M
    )
    missing = "simplejpeg (ImportError: libturbojpeg.so.0: cannot open shared object file)"
    assert re.search(rf"^problem  imports +{re.escape(missing)}$", out, re.M)
    assert out.endswith("2 problems found\n")


def test_an_old_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    finding = diagnosis.java()
    assert finding.status == "problem"
    assert "is Java 8" in finding.detail


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert diagnosis.java().status == "absent"


def distribution(directory: Path, name: str, version: str, *requires: str) -> None:
    info = directory / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {r}" for r in requires), ""]))


def test_versions_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unmet requirements of the package and of extras, which may refer to other extras."""
    requires = [
        "numpy>=1000",
        "xxhash",
        'one-of-ours; extra == "tf"',
        'rlds-beam[tf]; extra == "agents"',
        'two-of-ours[more]; extra == "s3"',
    ]
    distribution(tmp_path, "rlds-beam", "0.1.0", *requires)
    distribution(tmp_path, "two-of-ours", "1.0", 'three-of-ours; extra == "more"')
    monkeypatch.syspath_prepend(tmp_path)
    found = diagnosis.packages()
    assert found.status == "problem" and ">=1000 is needed" in found.detail
    extras = {finding.check: finding for finding in diagnosis.extras()}
    assert "one-of-ours is not installed" in extras["[agents]"].detail
    assert extras["[agents]"].remedy == pip_install("agents")
    assert "three-of-ours is not installed" in extras["[s3]"].detail
    assert extras["[gcs]"].status == "ok"


def test_a_directory_without_write_access() -> None:
    finding = diagnosis.disk("/proc")
    assert finding.status == "problem" and "cannot be written to" in finding.detail


def test_no_shared_memory(tmp_path: Path) -> None:
    assert diagnosis.shared_memory(str(tmp_path / "none")).status == "problem"


def test_a_library_that_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "crashes.py").write_text("import os\nos.abort()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert diagnosis._import_failure("crashes") == "the process ended with -6"
    assert diagnosis._import_failure("json") is None
