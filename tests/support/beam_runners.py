"""The runners on which the public transforms are tested."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.test_pipeline import TestPipeline

PRISM = os.environ.get("RLDS_BEAM_PRISM") or shutil.which("prism")
"""Beam's Prism runner: go install github.com/apache/beam/sdks/v2/go/cmd/prism@v$(version of apache-beam)."""

RUNNERS = [
    "FnApiRunner",
    "DirectRunner",
    pytest.param("PrismRunner", marks=pytest.mark.skipif(not PRISM, reason="needs prism in PATH (CONTRIBUTING.md)")),
]


def runner_flags(runner: str) -> list[str]:
    """Beam's flags for a runner. DirectRunner tries Prism first; without a binary, it would download one."""
    return [f"--runner={runner}", *([] if runner == "FnApiRunner" else [f"--prism_location={PRISM or os.devnull}"])]


def new_pipeline(runner: str = "FnApiRunner", *flags: str) -> Any:
    """A pipeline to test transforms in, with Beam's flags."""
    return TestPipeline(options=PipelineOptions([*runner_flags(runner), *flags]))
