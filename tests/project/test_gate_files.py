"""The steps of action.yml, the hooks of pre-commit, and GitLab's example run on a good and on a bad dataset."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from checkout import ROOT
from processes import DEADLINE

from rlds_beam.testing import make_episode, write_dataset

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
PAGE = (ROOT / "docs/how_to/gate.md").read_text()
EXAMPLES = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory) -> dict[bool, Path]:
    folder = tmp_path_factory.mktemp("data")
    good = write_dataset(folder / "good", [make_episode(5, seed=seed) for seed in range(4)])
    bad = write_dataset(folder / "bad", [make_episode("F M M" if seed == 2 else 5, seed=seed) for seed in range(4)])
    return {True: good, False: bad}


def bash(script: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a step as GitHub's `shell: bash` does."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, **environment, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE,
    )


def fill(text: str, inputs: dict[str, str], outputs: dict[str, str], folder: Path) -> str:
    """The value of an expression of GitHub's, as far as action.yml uses them."""
    values = {f"inputs.{name}": value for name, value in inputs.items()}
    values |= {f"steps.check.outputs.{name}": value for name, value in outputs.items()}
    values["runner.temp"] = str(folder)
    return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda match: values[match[1]], text)


def run_action(folder: Path, **given: str) -> tuple[dict[str, str], str, str, int]:
    """Runs the steps `Check` and `Result`; returns the outputs, the log, the summary, and the last exit code."""
    inputs = {name: entry.get("default", "") for name, entry in ACTION["inputs"].items()} | given
    steps: dict[str, Any] = {step["name"]: step for step in ACTION["runs"]["steps"] if "name" in step}
    files = {name: folder / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    outputs: dict[str, str] = {}
    log, code = "", 0
    for name in ("Check", "Result"):
        environment = {key: fill(text, inputs, outputs, folder) for key, text in steps[name]["env"].items()}
        done = bash(steps[name]["run"], folder, environment | {key: str(path) for key, path in files.items()})
        assert name == "Result" or done.returncode == 0, done.stderr
        log, code = log + done.stdout, done.returncode
        outputs = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())
    return outputs, log, files["GITHUB_STEP_SUMMARY"].read_text(), code


def test_the_action_passes_a_good_dataset(datasets, tmp_path):
    outputs, log, summary, code = run_action(tmp_path, dataset=str(datasets[True]), expect="episodes=4", format="junit")
    assert (code, outputs["exit-code"]) == (0, "0")
    assert summary.startswith("### rlds-beam check: passed\n") and "checked   4 episodes: 4 valid" in summary
    assert "<testsuites " in Path(outputs["findings"]).read_text() and "::error" not in log


def test_the_action_fails_a_bad_dataset_with_annotations_and_a_summary(datasets, tmp_path):
    data = str(datasets[False])
    outputs, log, summary, code = run_action(tmp_path, dataset=data, command="validate", expect="episodes=4")
    assert (code, outputs["exit-code"]) == (3, "3")
    assert "failed (exit code 3)" in summary and "missing_is_last: 1 rejected" in summary
    assert "expected episodes=4, found 3 (1 of 4 records rejected)" in summary and summary.endswith("~~~~\n")
    token = re.findall(r"^::stop-commands::(.*)$", log, re.MULTILINE)[0]
    commands = log.partition(f"::{token}::\n")[2].splitlines()
    assert len(commands) == 2 and all(line.startswith("::error file=") for line in commands)


def test_the_action_says_what_is_wrong_if_nothing_was_checked(tmp_path):
    outputs, _, summary, code = run_action(tmp_path, dataset="missing data", arguments="--workers=1 --decode=0")
    assert (code, outputs["exit-code"]) == (2, "2")
    assert "rlds-beam: missing data: no such file or directory" in summary


def test_the_examples_name_inputs_and_hooks_that_exist(tmp_path, datasets):
    github, gitlab, hooks = EXAMPLES
    (step,) = [step for step in github["jobs"]["dataset"]["steps"] if "rlds-beam" in step["uses"]]
    assert step["with"].keys() <= ACTION["inputs"].keys()
    known = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
    (used,) = hooks["repos"][0]["hooks"]
    (tmp_path / "baseline.txt").write_text("")
    command = gitlab["dataset"]["script"][-1].replace("data/point_mass/1.0.0", shlex.quote(str(datasets[False])))
    done = bash(command, tmp_path, {})
    assert done.returncode == 3, done.stderr
    assert (tmp_path / gitlab["dataset"]["artifacts"]["reports"]["junit"]).exists()
    arguments = [argument.replace("data/point_mass/1.0.0", str(datasets[True])) for argument in used["args"]]
    done = bash(f"{known[used['id']]['entry']} {shlex.join(arguments)}", tmp_path, {})
    assert done.returncode == 0, done.stderr
