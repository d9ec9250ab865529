"""Beam's own flags, parsed once for a job."""

from __future__ import annotations

from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions


class JobOptions(PipelineOptions):  # type: ignore[misc, unused-ignore]
    """Beam's options, each group of which is parsed once.

    Beam asks a pipeline for its groups of options more than a hundred times while it builds and runs one, and makes a
    parser each time: a third of what a small job takes. All views of one object share its values, so one is enough.
    """

    def view_as(self, cls: Any) -> Any:
        views = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        return views[cls]
