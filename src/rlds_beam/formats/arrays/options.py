"""Options that several formats share."""

from __future__ import annotations

from typing import Any, Literal

from rlds_beam.options import option

RawImages = Literal["png", "raw"]
LastStep = Literal["drop", "keep"]


def raw_images_option() -> Any:
    """The field `raw_images` of a source's options."""
    return option("png", "how to keep frames that are stored as pixels")


def last_step_option() -> Any:
    """The field `last_step` of outputs whose rows are an observation and an action."""
    return option(None, "drop or keep the last step of each episode (default: drop void ones, which have no action)")
