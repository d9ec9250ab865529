"""The workflows: deadlines, permissions, Pythons, and the tests that tools name."""

from __future__ import annotations

import re
from typing import Any

import yaml
from checkout import ROOT

GITHUB = ROOT / ".github"


def workflow(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((GITHUB / "workflows" / f"{name}.yml").read_text())
    return content


def test_every_job_has_a_deadline_and_few_permissions() -> None:
    for file in (GITHUB / "workflows").iterdir():
        content = workflow(file.stem)
        assert content["permissions"]["contents"] == "read", file.name
        for name, job in content["jobs"].items():
            assert "uses" in job or job["timeout-minutes"] <= 60, f"{file.name}: {name}"


def test_a_release_needs_every_check_and_no_token() -> None:
    jobs = workflow("release")["jobs"]
    assert (jobs["build"]["needs"], jobs["publish"]["needs"]) == ("ci", "build")
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in (GITHUB / "workflows" / "release.yml").read_text()


def test_every_python_that_is_supported_is_tested() -> None:
    classifiers = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert workflow("ci")["jobs"]["pythons"]["strategy"]["matrix"]["python"] == classifiers
    for version in classifiers:
        assert (ROOT / "requirements" / f"base-py{version.replace('.', '')}.lock").exists()


def test_the_tests_that_are_named_exist() -> None:
    named = (ROOT / "tools" / "pythons.py").read_text()
    quick = re.search(r"QUICK \?= \$\(addprefix tests/,(.*?)\)", (ROOT / "Makefile").read_text(), re.DOTALL)
    assert quick is not None
    paths = {*re.findall(r'"([\w/]+\.py)"', named), *quick[1].replace("\\", "").split()}
    assert [path for path in paths if not (ROOT / "tests" / path).exists()] == []
