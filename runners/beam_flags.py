"""Beam's own flags, parsed once per job."""

from __future__ import annotations

from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions


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
