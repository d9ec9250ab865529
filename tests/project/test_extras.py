"""A missing optional package gives one line that names the extra and exit code 2; each named extra exists."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

import rlds_beam
from rlds_beam import errors, load_trajectories
from rlds_beam.cli.main import main
from rlds_beam.errors import MissingExtraError, UsageError
from rlds_beam.testing import make_episode, write_dataset

EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
TASKS = {"all", "rl", "robots", "view"}
"""Extras that only include others, so that no message names them."""


def pip_install(extra: str) -> str:
    return f"pip install 'rlds-beam[{extra}]'"


def test_errors_name_the_extras_of_the_project() -> None:
    files = [file for folder in ("src", "pipelines", "runners", "transforms") for file in (ROOT / folder).rglob("*.py")]
    named = {name for file in files for name in re.findall(r'\b(?:missing_extra|needs)\(\s*"(\w+)"', file.read_text())}
    assert named <= EXTRAS
    assert EXTRAS - named == {
        *{*TASKS} - {"view"},
        "buckets",
        "dev",
        "docs",
        "gcs",
        "rlds",
        "s3",
        "test",
    }


def test_an_import_that_fails_is_a_usage_error_and_an_import_error() -> None:
    with pytest.raises(ImportError) as caught, errors.needs("tf", "this needs that"):
        importlib.import_module("no_such_module")
    assert isinstance(caught.value, UsageError) and caught.value.exit_code == 2
    assert str(caught.value).startswith(f"this needs that (No module named 'no_such_module'): {pip_install('tf')}")


# Tests with packages that are really missing: environments of `make test-pythons`.


def without(*modules: str) -> None:
    for module in modules:
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:  # its parent package is not installed
            found = None
        if found is not None:
            pytest.skip(f"{module} is installed")


def test_rllib_features_need_ray(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    without("ray")
    (tmp_path / "pieces.yaml").write_text("- FromRllib: {connector: 'my_pieces:Clip'}\n")
    flags = [str(toy(tmp_path)), str(tmp_path / "out"), f"--connectors={tmp_path / 'pieces.yaml'}"]
    assert main(["convert", *flags]) == 2
    assert f"FromRllib needs Ray: {pip_install('rllib')}" in capsys.readouterr().err


def toy(directory: Path, **columns: Any) -> Path:
    return write_dataset(directory / "data", [make_episode(5, columns=columns)], name="toy")


def edit(file: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def array_records(directory: Path) -> list[str]:
    dataset = toy(directory)
    for shard in dataset.glob("*.tfrecord*"):
        shard.rename(str(shard).replace(".tfrecord", ".array_record"))
    edit(dataset / "dataset_info.json", lambda info: info.update(fileFormat="array_record"))
    return ["check", "--rules", str(dataset)]


def written(directory: Path) -> Path:
    rlds_beam.convert(toy(directory), directory / "out", workers=1, progress="none")
    return directory / "out"


GCS = "--project=p --region=us-central1 --temp_location=gs://bucket/tmp --worker_container=i"
COMMANDS: dict[str, tuple[str, str, Callable[[Path], list[str]]]] = {
    "serve": ("agents", "reverb", lambda d: ["serve", f"--like={toy(d)}"]),
    "embedded": (
        "agents",
        "reverb",
        lambda d: ["push", str(toy(d)), "--reverb=embedded", "--table=t"],
    ),
    "ArrayRecord": ("arrayrecord", "array_record", array_records),
    "hf://": ("hub", "huggingface_hub", lambda d: ["check", "--rules", "hf://datasets/robots/data"]),
    "upload": ("hub", "huggingface_hub", lambda d: ["upload", str(written(d)), "hf://datasets/robots/data"]),
    "dataflow": (
        "gcp",
        "google.cloud.storage",
        lambda d: ["check", "--rules", "gs://b/a", "--runner=dataflow", *GCS.split()],
    ),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_a_command_names_the_extra_in_one_line(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extra, module, arguments = COMMANDS[case]
    without(module)
    assert main(arguments(tmp_path)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(rf"rlds-beam: .+: {re.escape(pip_install(extra))}(, on Python 3\.11 .*)?", line)


def load(directory: Path) -> None:
    assert main(["convert", str(toy(directory)), str(directory / "out")]) == 0
    load_trajectories(str(directory / "out"))


CALLS: dict[str, Callable[[Path], Any]] = {
    "load_trajectories": load,
    "rlds_to_reverb": lambda d: importlib.import_module("rlds_beam.drop_in.rlds_to_reverb"),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_call_names_the_extra(case: str, tmp_path: Path) -> None:
    without("tensorflow", "tf_agents", "reverb")
    with pytest.raises(MissingExtraError, match=re.escape(pip_install("agents"))) as caught:
        CALLS[case](tmp_path)
    assert len(str(caught.value).splitlines()) == 1
    assert ("this is 3." in str(caught.value)) == (sys.version_info >= (3, 12))
