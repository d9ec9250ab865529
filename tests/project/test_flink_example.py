"""The recipe in examples/flink matches the code and the lock file."""

from __future__ import annotations

import re

import apache_beam
import yaml
from apache_beam.options.pipeline_options import FlinkRunnerOptions
from checkout import ROOT

from rlds_beam.runners.flink_preflight import POOL

EXAMPLE = ROOT / "examples" / "flink"
DOCKERFILE = (EXAMPLE / "Dockerfile").read_text()


def test_the_image_has_the_beam_version_of_the_lock() -> None:
    (image,) = re.findall(r"^FROM apache/beam_python3\.11_sdk:(\S+)$", DOCKERFILE, re.MULTILINE)
    assert image == apache_beam.__version__
    assert f"\napache-beam=={image} " in (ROOT / "requirements.lock").read_text()


def test_the_pool_uses_the_port_that_jobs_expect() -> None:
    assert f'"--port={POOL.rpartition(":")[2]}"' in DOCKERFILE


def test_every_task_manager_has_a_pool_next_to_it() -> None:
    (deployment,) = yaml.safe_load_all((EXAMPLE / "flink.yaml").read_text())
    assert deployment["kind"] == "FlinkDeployment"
    version = deployment["spec"]["flinkVersion"].removeprefix("v").replace("_", ".")
    assert version in FlinkRunnerOptions.PUBLISHED_FLINK_VERSIONS
    assert deployment["spec"]["image"] == f"flink:{version}"
    pod = deployment["spec"]["taskManager"]["podTemplate"]["spec"]
    _, pool = pod["containers"]
    assert pool["image"] in (EXAMPLE / "README.md").read_text()
    assert {mount["name"] for mount in pool["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
