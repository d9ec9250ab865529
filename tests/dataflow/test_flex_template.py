"""The Flex Template: its metadata is what Dataflow's API takes, and a launched job writes what a local one writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("google.cloud.dataflow")

from checkout import ROOT
from cloud import content, serving
from processes import DEADLINE

from rlds_beam.cli.main import main
from rlds_beam.testing import make_episode, write_dataset

TEMPLATE = ROOT / "examples" / "dataflow" / "flex_template.py"

RUN = """
import sys
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
pipeline = beam_runner_api_pb2.Pipeline.FromString(open(sys.argv[1], "rb").read())
for environment in pipeline.components.environments.values():
    environment.urn, environment.payload = python_urns.EMBEDDED_PYTHON, b""
    del environment.dependencies[:]
FnApiRunner().run_via_runner_api(pipeline, PipelineOptions([])).wait_until_finish()
"""


def test_a_launched_job_writes_what_a_local_one_writes(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", [make_episode(12, seed=i) for i in range(8)], name="toy", shards=2)
    with serving(lambda job, home: pytest.fail("a template starts no job"), tmp_path) as cloud:
        there = cloud.upload(data, "bucket/toy/1.0.0")
        flags = {
            "input": there,
            "output": "gs://bucket/out",
            "items": "frames",
            "shards": "2",
            "overwrite": "false",
            "runner": "DataflowRunner",
            "project": "project",
            "region": "us-central1",
            "temp_location": "gs://bucket/tmp",
            "job_name": "convert-toy",
            "template_location": "gs://bucket/templates/job",
            "dataflow_endpoint": cloud.address,
        }
        environment = {**os.environ, **cloud.environment, "RLDS_BEAM_IMAGE": "registry/image"}

        def run(*command: object) -> None:
            words = [sys.executable, *map(str, command)]
            done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=DEADLINE)
            assert done.returncode == 0, done.stderr

        run(TEMPLATE, *(f"--{name}={value}" for name, value in flags.items()))
        job = json.loads(cloud.objects["bucket/templates/job"])
        assert job["name"] == "convert-toy" and "registry/image" in json.dumps(job) and not cloud.jobs
        (staged,) = [name for name in cloud.objects if name.endswith("/pipeline.pb")]
        (tmp_path / "pipeline.pb").write_bytes(cloud.objects[staged])
        run("-c", RUN, tmp_path / "pipeline.pb")
        local = tmp_path / "local"
        assert main(["convert", str(data), str(local), "--items=frames", "--shards=2", "--progress=none"]) == 0
        assert content(cloud.download("bucket/out", tmp_path / "remote")) == content(local)
