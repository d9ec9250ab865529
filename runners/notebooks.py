"""Jobs in IPython and Jupyter, without what Beam does there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from apache_beam.utils.interactive_utils import is_in_ipython


def build(pipeline: Any, define: Callable[[Any], Any]) -> None:
    """Adds a job's transforms to a Beam pipeline.

    In an IPython session Beam imports its interactive runner for each transform at the top level of a pipeline, to put
    the number of the cell into the transform's name. That runner needs pandas, and a version before 3. It is of no use
    to a job, so here no transform is at the top level: there is another root above the pipeline's own.

    Args:
      pipeline: a `beam.Pipeline`.
      define: adds the transforms to the pipeline that it is given.
    """
    if not is_in_ipython():
        define(pipeline)
        return
    pipeline.transforms_stack.insert(0, None)
    try:
        define(pipeline)
    finally:
        del pipeline.transforms_stack[0]
