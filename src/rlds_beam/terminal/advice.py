"""The complete command that repairs what a job rejected, ready to copy and run."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any

from rlds_beam.checking.rules import REPAIRABLE
from rlds_beam.connectors.cleaning.presets import with_preset
from rlds_beam.options import flag_name
from rlds_beam.processing.report import Report
from rlds_beam.text import without_secrets
from rlds_beam.user_functions import ByValue


def repair_lines(job: str, config: Any, report: Report) -> list[str]:
    """The summary line with the command; empty if no rejected record can be repaired.

    Args:
      job: the command's name: `convert`.
      config: the config of the job that rejected records.
      report: the report of that job.
    """
    repaired = with_preset(config).repair
    rules = [r for r in REPAIRABLE if r in report.rules and report.rules[r].rejected and r not in repaired]
    if not rules:
        return []
    changes: dict[str, Any] = {"repair": (*config.repair, *rules)}
    if hasattr(config, "overwrite"):
        changes["overwrite"] = True  # the output already has the accepted episodes, written by another plan
    arguments = flags_of(dataclasses.replace(config, **changes))
    return [] if arguments is None else [f"repair    {shlex.join(['rlds-beam', job, *arguments])}"]


def flags_of(config: Any) -> list[str] | None:
    """A config as command-line arguments, without secrets; None if it holds a function that has no name."""
    own = [(field, getattr(config, field.name)) for field in dataclasses.fields(config)]
    arguments = [value for field, value in own if field.metadata.get("positional") and value is not None]
    for group in config.groups(vars(config)):
        options = getattr(config, group.field)
        own += [(f, getattr(options, f.name)) for f in dataclasses.fields(options) if not hasattr(config, f.name)]
    for field, value in own:
        if any(isinstance(one, ByValue) for one in (value if isinstance(value, tuple) else [value])):
            return None
        if value == field.default or field.metadata.get("positional") or field.metadata.get("hidden"):
            continue
        flag = f"--{flag_name(field.name)}"
        if field.metadata.get("repeated"):
            arguments += [f"{flag}={one}" for one in value]
            continue
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        arguments.append(flag if value is True else f"{flag}={text}")
    beam_options = getattr(config, "beam_options", ())
    arguments = [*arguments, "--", *beam_options] if beam_options else arguments
    return [without_secrets(argument) for argument in arguments]
