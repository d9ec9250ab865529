"""The recipe in examples/flink matches the code, the lock file, and the operator's definition of a FlinkDeployment."""

from __future__ import annotations

import os
import re
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import apache_beam
import pytest
import yaml
from cases import ALL
from checkout import ROOT

from rlds_beam.runners.flink_preflight import POOL

DOCKERFILE = (ROOT / "examples" / "dataflow" / "Dockerfile").read_text()
MANIFEST = yaml.safe_load((ROOT / "examples" / "flink" / "flink.yaml").read_text())
OPERATOR = "release-1.15.0"
DEFINITION = (
    f"https://raw.githubusercontent.com/apache/flink-kubernetes-operator/{OPERATOR}"
    "/helm/flink-kubernetes-operator/crds/flinkdeployments.flink.apache.org-v1.yml"
)


def test_the_image_has_the_beam_version_of_the_locks() -> None:
    (image,) = re.findall(r"^ARG BEAM=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert image == apache_beam.__version__
    for lock in ("requirements.lock", "examples/dataflow/requirements.lock"):
        assert re.search(rf"^apache-beam(\[\w+\])?=={re.escape(image)} ", (ROOT / lock).read_text(), re.MULTILINE)


def test_the_pool_uses_the_port_that_jobs_expect() -> None:
    main, pool = MANIFEST["spec"]["taskManager"]["podTemplate"]["spec"]["containers"]
    assert main["name"] == "flink-main-container"
    assert pool["command"] == ["python", "-m", "rlds_beam.runners.worker_pool", f"--port={POOL.rpartition(':')[2]}"]


def find_faults(value: Any, schema: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """What a Kubernetes server would refuse: unknown fields, and values of another type."""
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        kind, kinds["either"] = "either", (int, str)
    if kind is not None and (not isinstance(value, kinds[kind]) or (kind != "boolean" and isinstance(value, bool))):
        yield f"{at}: {value!r} is no {kind}"
    elif "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is none of {schema['enum']}"
    elif isinstance(value, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties")
        yield from (f"{at}.{name} is missing" for name in schema.get("required", ()) if name not in value)
        for name, inner in value.items():
            if name in properties or others is not None:
                yield from find_faults(inner, properties.get(name, others), f"{at}.{name}")
            elif not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield f"{at}.{name} is unknown"
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from find_faults(inner, schema.get("items", {}), f"{at}[{i}]")


def test_the_operator_takes_the_manifest() -> None:
    """`RLDS_BEAM_FLINK_CRD` names a copy of the definition; without it, `make test-all` fetches it (600 kB)."""
    if path := os.environ.get("RLDS_BEAM_FLINK_CRD"):
        text = Path(path).read_text()
    elif not ALL:
        pytest.skip("it fetches the definition: make test-all")
    else:
        try:
            with urllib.request.urlopen(DEFINITION, timeout=60) as answer:
                text = answer.read().decode()
        except OSError as error:
            pytest.skip(f"the definition cannot be fetched: {error}")
    definition = yaml.safe_load(text)["spec"]
    (version,) = [one for one in definition["versions"] if one["name"] == MANIFEST["apiVersion"].partition("/")[2]]
    assert f"{definition['group']}/{version['name']}" == MANIFEST["apiVersion"]
    assert definition["names"]["kind"] == MANIFEST["kind"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert [*find_faults(MANIFEST["spec"], schema)] == []
    wrong = {**MANIFEST["spec"], "flinkVersion": "v9_9", "jobManger": {}, "image": 3}
    assert len([*find_faults(wrong, schema)]) == 3
