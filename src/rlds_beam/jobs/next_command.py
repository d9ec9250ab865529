"""The next command for a dataset."""

from __future__ import annotations

import shlex
from typing import Any

from rlds_beam.connectors.cleaning.presets import suggest_presets
from rlds_beam.formats.registry import LEROBOT, RLDS, TRAJECTORIES
from rlds_beam.jobs.inspect import Survey
from rlds_beam.options import options_given
from rlds_beam.reading.base import Source

_OF_INPUT = ("split", "features", "task", "task_file", "robot_type", "exclude", "only")
_ROBOTS = ("hdf5", "ros2", "zarr")
"""Formats of recorded robots, whose users train with LeRobot."""


def output_for(source_format: str, source: Source) -> str:
    """The output that a dataset is most often converted to."""
    if source_format == LEROBOT:
        return RLDS
    cameras = any(field.holds_images for field in source.schema.steps.values())
    return LEROBOT if source_format in _ROBOTS or (source_format in (RLDS, "npz") and cameras) else TRAJECTORIES


def next_command(config: Any, survey: Survey) -> str:
    """The command that converts a dataset, with the options that it was read with."""
    source, to = survey.source, config.to
    inputs = [config.input] if isinstance(config.input, str) else list(config.input)
    words = ["rlds-beam", "convert", *inputs, f"{source.name}_{to}"]
    words += [] if config.from_ is None else [f"--from={config.from_}"]
    words += [_flag(name, value) for name in _OF_INPUT if (value := getattr(config, name)) is not None]
    words += [f"--names={names}" for names in config.names]
    if config.from_options is not None:
        given = options_given(config.from_options, type(config.from_options))
        words += [_flag(name, getattr(config.from_options, name)) for name in given]
    presets = suggest_presets(source.dataset, source.schema) if config.preset is None else [config.preset]
    words += [f"--preset={name}" for name in presets]
    needs_end = "missing_is_last" in survey.sampled.rules and not presets
    words += ["--repair=missing_is_last"] if needs_end else []
    words += [] if config.connectors is None else [f"--connectors={config.connectors}"]
    words += [] if to == TRAJECTORIES else [f"--to={to}"]
    given = options_given(config.to_options, type(config.to_options))
    words += [_flag(name, getattr(config.to_options, name)) for name in given if name != "fps" or source.fps]
    rate = " --fps=RATE" if to == LEROBOT and source.fps is None else ""
    return shlex.join(words) + rate


def _flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no_{name}"
    return f"--{name}={','.join(map(str, value)) if isinstance(value, (list, tuple)) else value}"
