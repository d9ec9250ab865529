"""The recipe in examples/flink matches the code and the lock file."""

from __future__ import annotations

import re

import apache_beam
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
