"""The runners on which the public transforms are tested."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.test_pipeline import TestPipeline
from cases import ALL

PRISM = os.environ.get("RLDS_BEAM_PRISM") or shutil.which("prism")
"""Beam's Prism runner: go install github.com/apache/beam/sdks/v2/go/cmd/prism@v$(version of apache-beam)."""

RUNNERS = [
    "FnApiRunner",
    *(["DirectRunner"] if ALL else []),  # without Prism it is FnApiRunner
    pytest.param("PrismRunner", marks=pytest.mark.skipif(not PRISM, reason="needs prism in PATH (CONTRIBUTING.md)")),
]

RUNS = [*RUNNERS, pytest.param("FnApiRunner --direct_runner_bundle_repeat=1", id="retried")]
"""The runners, and one that processes each bundle twice."""


def runner_flags(runner: str) -> list[str]:
    """Beam's flags for one of `RUNS`. DirectRunner tries Prism first; without a binary, it would download one."""
    name, *flags = runner.split()
    prism = [] if name == "FnApiRunner" else [f"--prism_location={PRISM or os.devnull}"]
    return [f"--runner={name}", *prism, *flags]


def new_pipeline(runner: str = "FnApiRunner") -> Any:
    """A pipeline to test transforms in."""
    return TestPipeline(options=PipelineOptions(runner_flags(runner)))
