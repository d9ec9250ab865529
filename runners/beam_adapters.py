"""Beam's pipelines and flags, without what makes them slow: its interactive runner, and parsing flags again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.utils.interactive_utils import is_in_ipython


def build(pipeline: Any, define: Callable[[Any], Any]) -> None:
    """Adds a job's transforms to a Beam pipeline.

    In an IPython session, Beam imports its interactive runner for each top-level transform of a pipeline, to put the
    cell's number into the transform's name. That runner needs pandas before version 3. Jobs do not need it, so an extra
    root above the pipeline's own keeps all transforms off the top level.

    Args:
      pipeline: a `beam.Pipeline`.
      define: adds the transforms to the given pipeline.
    """
    if not is_in_ipython():
        define(pipeline)
        return
    pipeline.transforms_stack.insert(0, None)
    try:
        define(pipeline)
    finally:
        del pipeline.transforms_stack[0]


class JobOptions(PipelineOptions):  # type: ignore[misc, unused-ignore]
    """Beam's options, with each group parsed once.

    Beam requests groups of options more than a hundred times per pipeline and creates a parser each time, which takes a
    third of a small job's time. All views of one object share its values, so one view per group is enough.
    """

    def view_as(self, cls: Any) -> Any:
        views = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        return views[cls]
