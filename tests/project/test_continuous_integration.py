"""`.ci/run`, the workflows and the commit hooks run the same steps with the same versions."""

from __future__ import annotations

import re
from typing import Any

import yaml
from checkout import ROOT

GITHUB = ROOT / ".github"
MEANWHILE = {"environments", "setup"}
"""Targets that `.ci/run` makes before the steps that need them."""


def workflow(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((GITHUB / "workflows" / f"{name}.yml").read_text())
    return content


def made_in(script: str) -> set[str]:
    """The targets of each `make` call in a script, without those in messages."""
    lines = re.findall(r"^(?:\s*- run: |nice )?make ((?:[a-z-]+ ?)+)", script, re.MULTILINE)
    return {target for line in lines for target in line.split()}


def made_by(name: str) -> set[str]:
    targets: set[str] = set()
    for job in workflow(name)["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {})
        for step in job.get("steps", ()):
            for target in matrix.get("target", [""]):
                targets |= made_in(step.get("run", "").replace("${{ matrix.target }}", target))
    return targets


def test_the_workflow_has_every_step_of_ci_run() -> None:
    steps = made_in((ROOT / ".ci" / "run").read_text()) - MEANWHILE
    assert {"lint", "test", "test-faults", "test-readme"} <= steps
    assert steps <= made_by("ci")


def test_every_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = made_in((ROOT / ".ci" / "run").read_text()).union(*(made_by(name) for name in ("ci", "docs", "release")))
    assert made <= targets, made - targets


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


def test_the_hooks_have_the_versions_of_the_lock() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert f"\nruff=={repository['rev'].removeprefix('v')} " in (ROOT / "requirements.lock").read_text()


def test_the_forms_for_issues_are_complete() -> None:
    for file in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(file.read_text())
        if file.stem != "config":
            assert {"body", "description", "name"} <= form.keys(), file.name
            assert all({"attributes", "id", "type"} <= field.keys() for field in form["body"]), file.name
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"authors", "cff-version", "message", "title"} <= citation.keys()


def test_the_tests_that_are_named_exist() -> None:
    named = (ROOT / "tools" / "pythons.py").read_text()
    quick = re.search(r"QUICK \?= \$\(addprefix tests/,(.*?)\)", (ROOT / "Makefile").read_text(), re.DOTALL)
    assert quick is not None
    paths = {*re.findall(r'"([\w/]+\.py)"', named), *quick[1].replace("\\", "").split()}
    assert [path for path in paths if not (ROOT / "tests" / path).exists()] == []
