"""`rlds-beam index`: builds the index with which `open_dataset` reads the steps of a dataset, with many processes."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.connectors.options import ConnectorOptions
from rlds_beam.formats.options import InputOptions
from rlds_beam.options import option
from rlds_beam.platforms import process_seconds
from rlds_beam.terminal.options import ReportOptions, print_json

if TYPE_CHECKING:
    from rlds_beam.datasets.step_index import StepIndex

__all__ = ["IndexConfig", "index"]

USAGE = "INPUT..."
EXAMPLES = """
    rlds-beam index data/point_mass/1.0.0
    rlds-beam index gs://bucket/data/1.0.0 --connectors=clean.yaml --workers=8
"""


@dataclasses.dataclass(frozen=True)
class IndexConfig(ReportOptions, ConnectorOptions, CheckOptions, InputOptions):
    """Build the index of a dataset's steps that open_dataset needs, with many processes instead of one."""

    _: dataclasses.KW_ONLY
    workers: int | None = option(None, "processes (default: one per core; in Python, this process)", least=1)


def index(config: IndexConfig) -> StepIndex:
    """Builds the index in the cache of this machine, unless it is there.

    Raises:
      UsageError: an option or the input cannot be used; or as `open_dataset`.
    """
    from rlds_beam.datasets.index_builder import open_index
    from rlds_beam.datasets.opening import make_recipe
    from rlds_beam.formats.inputs import open_input
    from rlds_beam.runners.local import Workers

    recipe = make_recipe(open_input(config), config)
    if (config.workers or 1) == 1:
        return open_index(recipe)
    with Workers(config.workers or 1) as workers:
        return open_index(recipe, workers.process)


def main(config: IndexConfig) -> int:
    """Runs the command: prints what the index holds, and returns the exit code."""
    from rlds_beam import storage
    from rlds_beam.platforms import count_cores
    from rlds_beam.text import count, format_size

    built = index(dataclasses.replace(config, workers=config.workers or count_cores()))
    seconds, size = process_seconds(), sum(storage.sizes(built.directory).values())
    rejected = sum(built.rejected.values())
    if config.json:
        facts = {"episodes": built.episodes, "steps": len(built), "rejected": built.rejected, "bytes": size}
        print_json({"index": built.directory, **facts, "seconds": round(seconds, 3)})
    else:
        print(f"index     {built.directory} ({format_size(size)})")
        print(f"holds     {count(len(built), 'step')} of {count(built.episodes, 'episode')}")
        if rejected:
            print(f"left out  {', '.join(f'{number:,} {rule}' for rule, number in built.rejected.items())}")
        print(f"took      {seconds:.1f} s")
    if not len(built):
        print("failed with exit code 3: there are no steps; the rules or the connectors left nothing", file=sys.stderr)
        return 3
    if rejected > config.max_rejected_of(rejected + built.episodes):
        text = f"{rejected:,} episodes break rules and are left out. Accept: --max_rejected={rejected}"
        print(f"failed with exit code 3: {text}", file=sys.stderr)
        return 3
    return 0
