"""Any runner that Beam knows by name, with Beam's own flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.runners.metrics import read_metrics
from rlds_beam.runners.notebooks import build
from rlds_beam.runners.options import RunOptions


def run(define: Callable[[Any], Any], options: RunOptions) -> dict[str, Any]:
    """Runs the job on `options.runner` and waits for its end.

    Raises:
      UsageError: Beam knows no such runner, or its flags are not right for it.
      RldsBeamError: the job failed.
    """
    try:
        pipeline = beam.Pipeline(options=PipelineOptions([f"--runner={options.runner}", *options.beam_options]))
    except (ImportError, ValueError) as error:
        raise UsageError(f"--runner={options.runner}: " + " ".join(str(error).split())) from error
    build(pipeline, define)
    result = pipeline.run()
    state = result.wait_until_finish()
    if state not in (None, "DONE"):
        raise RldsBeamError(f"{options.runner} ended the job in state {state}; its log says why")
    return read_metrics(result)
