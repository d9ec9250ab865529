"""A Flex Template: `rlds-beam convert` as a template that the Dataflow console, gcloud, and schedulers start.

    python examples/dataflow/flex_template.py --metadata > metadata.json

In the image, Google's launcher runs this program with the parameters of the job as flags. It builds the pipeline, and
ends when the job is described: it does not wait, so a job's report is its `manifest.json`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from rlds_beam.cli.arguments import Parser, add_options, parse
from rlds_beam.options import option_names
from rlds_beam.pipelines.convert import ConvertConfig
from rlds_beam.runners.base import DataflowOptions, FlinkOptions

HIDDEN = {"help", "verbose", "dry_run", "json", "progress", "max_rejected", "allow_empty", "runner", "workers"}
"""Options of a terminal, or of other runners."""

CLOUD = {"project", "region", "temp_location", "staging_location"}
"""Options of ours that the launcher gives by the same names."""


def actions() -> Iterator[tuple[argparse.Action, str]]:
    """Each option of `convert` once, with the format that it needs."""
    parser, seen = (
        Parser(add_help=False),
        {*HIDDEN, *CLOUD, *option_names(FlinkOptions), *option_names(DataflowOptions)},
    )
    known = ConvertConfig.known_formats()
    for needs, options_class in (("", ConvertConfig), *((f"{choice}: ", kind) for choice, kind in known.items())):
        add_options(parser, options_class)
        for action in parser._actions:
            if action.dest not in seen:
                seen.add(action.dest)
                yield action, needs


def name_of(action: argparse.Action) -> str:
    return action.option_strings[-1].removeprefix("--") if action.option_strings else action.dest


def parameter(action: argparse.Action, needs: str) -> dict[str, Any]:
    """An option as a template's parameter."""
    text = " ".join((action.help or "").replace("%%", "%").split())
    name = name_of(action)
    found: dict[str, Any] = {
        "name": name,
        "label": text.partition(";")[0].partition(" (")[0][:80],
        "helpText": needs + text,
        "isOptional": bool(action.option_strings),
        "paramType": "TEXT",
    }
    if action.nargs == 0:
        found.update(paramType="BOOLEAN", defaultValue="false")
    elif action.choices:
        options = [{"value": choice, "label": choice} for choice in action.choices]
        found.update(paramType="ENUM", enumOptions=options)
    elif name in ("input", "output"):
        found["regexes"] = [r"^gs:\/\/[^\n\r]+$"]
        if name == "input":
            found["helpText"] += "; several are separated by commas"
    return found


def metadata() -> str:
    """The content of metadata.json."""
    parameters = sorted(
        (parameter(action, needs) for action, needs in actions()), key=lambda found: found["isOptional"]
    )
    content = {
        "name": "rlds-beam convert",
        "description": "Checks the episodes of a dataset and writes training data.",
        "streaming": False,
        "parameters": parameters,
    }
    return json.dumps(content, indent=2) + "\n"


def arguments(argv: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """The words of `rlds-beam convert` for a job's parameters, and the flags that are Beam's.

    Raises:
      SystemExit: input or output is missing.
    """
    values = dict(word.removeprefix("--").partition("=")[::2] for word in argv)
    if missing := [name for name in ("input", "output") if not values.get(name)]:
        sys.exit(f"the parameter {missing[0]} is missing")
    words = [*values.pop("input").split(","), values.pop("output"), "--runner=dataflow"]
    image = values.pop("sdk_container_image", "") or os.environ.get("RLDS_BEAM_IMAGE", "")
    words += [f"--worker_container={image}"] if image else []
    known = {name_of(action): action for action, _ in actions() if action.option_strings}
    beam = []
    for name, value in values.items():
        if name in known and known[name].nargs == 0:
            words += [f"--{name}"] if value.lower() == "true" else []
        elif name in known or name in CLOUD:
            words += [f"--{name}={value}"] if value else []
        elif name != "runner":
            beam.append(f"--{name}={value}" if value else f"--{name}")
    return words, tuple(beam)


def launch(argv: list[str]) -> None:
    """Builds the pipeline of a job, and gives it to the launcher (`--template_location`), or starts it."""
    import apache_beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner

    from rlds_beam.pipelines.convert import define_pipeline
    from rlds_beam.runners import dataflow

    words, beam = arguments(argv)
    template = [flag for flag in beam if flag.startswith("--template_location=")]
    config = parse(ConvertConfig, Parser(prog="convert"), words)
    config = dataclasses.replace(config, beam_options=tuple(flag for flag in beam if flag not in template))
    dataflow.check(config)
    options = PipelineOptions([*dataflow.beam_flags(config), *template])
    pipeline = apache_beam.Pipeline(runner=DataflowRunner(), options=options)
    define_pipeline(pipeline, config)
    pipeline.run()


if __name__ == "__main__":
    if sys.argv[1:] == ["--metadata"]:
        print(metadata(), end="")
    else:
        launch(sys.argv[1:])
