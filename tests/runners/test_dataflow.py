"""Dataflow without the cloud: refused options, and each job's graph from Beam's Dataflow runner."""

from __future__ import annotations

import bz2
import functools
import getpass
import gzip
import os
import re
import socket
import sys
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner
from checkout import ROOT
from jobs import complaints, dataset
from pushes import one_table

from rlds_beam.checking.signals.results import SignalsWriter
from rlds_beam.cli.main import main
from rlds_beam.formats.inputs import prepare_input
from rlds_beam.jobs.convert import prepare
from rlds_beam.jobs.push import open_input as open_push
from rlds_beam.jobs.push import prepare as prepare_push
from rlds_beam.pipelines import check
from rlds_beam.pipelines.check import CheckConfig
from rlds_beam.pipelines.convert import ConvertConfig
from rlds_beam.pipelines.push import PushConfig
from rlds_beam.processing.job import Job
from rlds_beam.runners import dataflow
from rlds_beam.testing import shard_paths
from rlds_beam.transforms.stages import RunStages

CLOUD = {
    "runner": "dataflow",
    "project": "project",
    "region": "us-central1",
    "temp_location": "gs://bucket/tmp",
    "worker_container": "region-docker.pkg.dev/project/rlds-beam:1",
}

# Refused options


def without(*names: str) -> list[str]:
    return [f"--{name}={value}" for name, value in CLOUD.items() if name not in names]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["convert", "data", "gs://bucket/out", *without()], "data is a path on this machine"),
        (["convert", "gs://bucket/in", "/out", *without()], "/out is a path on this machine"),
        (["check", "--rules", "gs://bucket/in", "--features=f.json", *without()], "--features=f.json is a path"),
        (["convert", "gs://bucket/in", "gs://bucket/out", *without("project")], "--project is missing"),
        (["check", "--rules", "gs://bucket/in", *without("region")], "--region is missing"),
        (["check", "--rules", "gs://bucket/in", *without("temp_location")], "--temp_location is missing"),
        (["check", "--rules", "gs://bucket/in", *without("worker_container")], "--worker_container is missing"),
        (["check", "--rules", "gs://bucket/in", "--workers=2", *without()], "--num_workers"),
        (["check", "--rules", "gs://bucket/in", "--project=project"], "--project needs --runner=dataflow"),
    ],
)
def test_refused_before_anything_is_done(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err and len(complaints(err)) == 1, err


@pytest.mark.parametrize("server", ["127.0.0.1:8000", "10.0.0.2:8000,localhost:8000", "embedded"])
def test_a_server_on_this_machine_is_refused(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    for dry_run in ([], ["--dry_run"]):
        assert main(["push", "gs://bucket/in", f"--reverb={server}", "--table=t", *dry_run, *without()]) == 2
        assert f"--reverb={server.split(',')[-1]}" in capsys.readouterr().err


def test_flags_after_the_dashes_win() -> None:
    pytest.importorskip("google.cloud.dataflow")
    given = ("--project=other-project", "--number_of_worker_harness_threads=1", "--max_num_workers=50")
    config = CheckConfig("gs://bucket/in", rules=True, beam_options=given, **CLOUD)
    dataflow.check(config)
    options = PipelineOptions(dataflow.beam_flags(config)).get_all_options(drop_default=True)
    assert options["project"] == "other-project" and options["number_of_worker_harness_threads"] == 1
    assert options["max_num_workers"] == 50 and options["staging_location"] == CLOUD["temp_location"]
    assert options["sdk_container_image"] == CLOUD["worker_container"] and options["sdk_location"] == "container"
    assert options["save_main_session"] is False
    assert re.fullmatch(r"rlds-beam-check-\d{8}-\d{6}", options["job_name"])


# The graph of each job, as submitted by Beam's Dataflow runner

KEYING = ("/AddRandomKeys", "/KeyWithVoid", "/Map(reify_metadata_default_window)")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All inputs and outputs of the jobs."""
    return tmp_path_factory.mktemp("dataflow")


@pytest.fixture(scope="module")
def graphs(home: Path) -> Iterator[dict[str, beam_runner_api_pb2.Pipeline]]:
    import reverb

    source, out, server = str(dataset(home)), str(home / "out"), reverb.Server(one_table())
    for shard in shard_paths(source):  # compressed: workers look for duplicates, as they do in a bucket
        shard.write_bytes(gzip.compress(shard.read_bytes()))
    pushed = PushConfig(
        source,
        reverb=(f"127.0.0.1:{server.port}",),
        table=("t",),
        rejected=str(home / "rejected"),
        items="sequences",
        across_episodes=True,
        repair=("missing_is_last",),
    )

    opened = open_push(pushed)
    target, baseline, _ = prepare_push(pushed, opened)
    checked = CheckConfig(source, rules=True)
    jobs = {
        "convert": prepare(ConvertConfig.create(source, out, shards=2)).stages(),
        "check": check.stages(checked, prepare_input(checked), SignalsWriter()),
        "push": opened.stages(target, baseline, pushed.rejected),
        "count": opened.count_stages(target),
    }
    for name, stages in jobs.items():
        assert len(stages) > 2, name  # workers look for duplicates
    yield {name: translated(stages) for name, stages in jobs.items()}
    server.stop()


def translated(stages: Job) -> beam_runner_api_pb2.Pipeline:
    """The pipeline that Beam's Dataflow runner would submit, serialized and parsed."""
    flags = dataflow.beam_flags(CheckConfig("gs://bucket/in", rules=True, **CLOUD))
    options = PipelineOptions([*flags, "--dry_run=True"])
    pipeline = beam.Pipeline(runner=DataflowRunner(), options=options)
    pipeline | RunStages(stages)
    job = pipeline.run().job
    assert not options.view_as(StandardOptions).streaming
    images = [pool.worker_harness_container_image for pool in job.proto.environment.worker_pools]
    assert images in ([], [CLOUD["worker_container"]])
    return beam_runner_api_pb2.Pipeline.FromString(job.proto_pipeline.SerializeToString())


def test_no_episode_is_ever_shuffled(graphs: dict[str, beam_runner_api_pb2.Pipeline]) -> None:
    """Between workers travel the ranges of each stage, and what it found in them."""
    for job, graph in graphs.items():
        found = shuffles(graph)
        names = {step.removeprefix("RunStages/Spread ") for step in found if "/Spread " in step}
        assert len(names) > 2, job
        spread = {f"RunStages/Spread {name}": f"RunStages/Ranges of {name}" for name in names}
        # Large parts are merged by several workers first: by shuffles within the merge.
        merges = {step.split("/")[1]: maker for step, maker in found.items() if step not in spread}
        within = {name for name, maker in merges.items() if maker.startswith(f"RunStages/{name}/")}
        assert within == ({"Merge summary"} if job == "check" else set()), job
        assert {step: maker for step, maker in found.items() if step in spread} == spread, job
        assert merges.keys() == {f"Merge {name}" for name in names}, job
        direct = {name: maker for name, maker in merges.items() if name not in within}
        assert direct == {f"Merge {name}": f"RunStages/Process {name}" for name in names if f"Merge {name}" in direct}


def shuffles(graph: beam_runner_api_pb2.Pipeline) -> dict[str, str]:
    transforms = graph.components.transforms.values()
    makers = {
        made: (transform, tag)
        for transform in transforms
        if not transform.subtransforms
        for tag, made in transform.outputs.items()
    }
    found = {}
    for group in transforms:
        if group.spec.urn == "beam:transform:group_by_key:v1":
            (read,) = group.inputs.values()
            while makers[read][0].unique_name.endswith(KEYING):
                (read,) = makers[read][0].inputs.values()
            step, tag = makers[read]
            name = re.sub(r"/(FlatMap\(<lambda.*|ParDo\(\w+\))$", "", step.unique_name)
            maker = f"{name}:{tag}" if len(step.outputs) > 1 else name
            found[re.sub(r"/(ReshufflePerKey|CombinePerKey)/GroupByKey$", "", group.unique_name)] = maker
    return found


def test_no_local_path_is_pickled(graphs: dict[str, beam_runner_api_pb2.Pipeline], home: Path) -> None:
    """All paths except the job's input and output and the file names in Beam's own code."""
    given = (str(home), str(Path(beam.__file__).parent))
    mine = [str(ROOT), sys.prefix, sys.base_prefix, os.path.expanduser("~"), socket.gethostname(), "__main__"]
    mine += [f"{getpass.getuser()}@"]
    for job, graph in graphs.items():
        pickles = list(pickled(graph.SerializeToString()))
        assert len(pickles) > 20, job
        for content in pickles:
            text = functools.reduce(lambda text, known: text.replace(known, ""), given, content.decode("latin-1"))
            assert [what for what in mine if what in text] == [], job
            here = {path for path in re.findall(r"/[\w.-]+/[\w./-]+", text) if os.path.exists(path)}
            assert here == set(), job


def pickled(graph: bytes) -> Iterator[bytes]:
    """Unpacks what Beam pickled into a pipeline: bzip2 in base64."""
    for found in re.findall(rb"QlpoO[A-Za-z0-9+/]+={0,2}", graph):
        yield bz2.decompress(b64decode(found[: len(found) // 4 * 4]))
