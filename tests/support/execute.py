"""Runs a serialized pipeline as a worker does: in an interpreter that has only its pickled steps.

`python execute.py PIPELINE_FILE` prints the metrics of the run as JSON. The checkout must not be importable.
"""

from __future__ import annotations

import json
import sys

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import common_urns, python_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner


def main(path: str) -> None:
    with open(path, "rb") as file:
        pipeline = beam_runner_api_pb2.Pipeline.FromString(file.read())
    for environment in pipeline.components.environments.values():
        assert environment.urn == common_urns.environments.DOCKER.urn, environment.urn
        environment.urn, environment.payload = python_urns.EMBEDDED_PYTHON, b""  # run in this interpreter
        del environment.dependencies[:]  # staged files are already installed
    assert "rlds_beam" not in sys.modules
    result = FnApiRunner().run_via_runner_api(pipeline, PipelineOptions([]))
    result.wait_until_finish()
    import rlds_beam

    assert rlds_beam.__file__.startswith(sys.prefix), rlds_beam.__file__
    print(json.dumps(list(_metrics(result))))


def _metrics(result):
    found = result.metrics().query()
    for kind in ("counters", "distributions"):
        for metric in found[kind]:
            context = {"namespace": metric.key.metric.namespace, "step": metric.key.step}
            value = metric.committed
            if kind == "distributions":
                value = {name: getattr(value, name) for name in ("count", "sum", "min", "max")}
            yield context, metric.key.metric.name, {"scalar" if kind == "counters" else "distribution": value}


if __name__ == "__main__":
    main(sys.argv[1])
