"""`rlds-beam index`: builds the index with which `open_dataset` reads the steps of a dataset, with many workers."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.connectors.options import ConnectorOptions
from rlds_beam.errors import UsageError
from rlds_beam.formats.options import InputOptions
from rlds_beam.options import option
from rlds_beam.runners.base import RunOptions
from rlds_beam.terminal.options import ReportOptions, print_json

if TYPE_CHECKING:
    from rlds_beam.datasets.index_builder import Recipe
    from rlds_beam.datasets.index_parts import IndexParts
    from rlds_beam.datasets.step_index import StepIndex

__all__ = ["IndexConfig", "define_pipeline", "index"]

USAGE = "INPUT..."
EXAMPLES = """
    rlds-beam index data/point_mass/1.0.0
    rlds-beam index data/point_mass/1.0.0 --connectors=clean.yaml --workers=8
    rlds-beam index gs://bucket/data/1.0.0 --runner=flink --flink_master=flink:8081 --parts=gs://bucket/parts
"""


@dataclasses.dataclass(frozen=True)
class IndexConfig(RunOptions, ReportOptions, ConnectorOptions, CheckOptions, InputOptions):
    """Build the index of a dataset's steps that open_dataset needs, with all workers instead of in one process."""

    _: dataclasses.KW_ONLY
    parts: str | None = option(
        None,
        "directory for the parts of the index, which all workers share; needed if they run on other machines",
        metavar="DIR",
    )


def define_pipeline(root: Any, parts: IndexParts) -> Any:
    """Reads and checks the dataset under `root`, and writes the index of each range.

    Args:
      root: a Beam pipeline.
      parts: the ranges, and where their indexes go.

    Returns:
      PCollection of one `IndexedRanges`.
    """
    from rlds_beam.transforms.jobs.index_ranges import BuildIndexParts

    return root | BuildIndexParts(parts)


def index(config: IndexConfig) -> StepIndex:
    """Builds the index in the cache of this machine, unless it is there.

    Raises:
      UsageError: an option or the input cannot be used; or as `open_dataset`.
      RldsBeamError: the pipeline failed; the same command continues with the parts that are there.
    """
    from rlds_beam import storage
    from rlds_beam.datasets.index_builder import open_index
    from rlds_beam.datasets.opening import make_recipe
    from rlds_beam.formats.inputs import open_input
    from rlds_beam.runners import check

    if config.runner != "local" and config.parts is None:
        raise UsageError(f"--runner={config.runner}: the workers need --parts=DIR, a directory that all of them share")
    if config.parts is not None:
        storage.refuse_read_only(config.parts, "--parts")
    check(config)
    recipe = make_recipe(open_input(config), config)

    def build(recipe: Recipe, directory: str, digest: str) -> None:
        with _shared_directory(config, directory, digest) as shared:
            _run(config, recipe, directory, digest, shared)

    return open_index(recipe, build)


def _run(config: IndexConfig, recipe: Recipe, directory: str, digest: str, shared: str) -> None:
    """Builds the parts in a shared directory, and joins them in a local one."""
    from rlds_beam.datasets.index_parts import IndexParts
    from rlds_beam.jobs.estimates import validate_seconds
    from rlds_beam.runners.results import run_for_result
    from rlds_beam.terminal.job_progress import Progress, Total

    source, parts = recipe.source, IndexParts.plan(recipe, digest, shared)
    with Progress(Total("index", bytes=source.size), config.progress).show() as progress:
        seconds = validate_seconds(source, recipe.check)
        run_for_result(lambda root: define_pipeline(root, parts), config, seconds, progress)
    parts.join(directory)


@contextlib.contextmanager
def _shared_directory(config: IndexConfig, directory: str, digest: str) -> Iterator[str]:
    """A directory for the parts: that of `--parts`, or a temporary one next to the index."""
    from rlds_beam import storage
    from rlds_beam.output.scratch import ScratchDirectory

    if config.parts is not None:
        yield storage.join(config.parts, digest)
        return
    with ScratchDirectory(storage.split(directory)[0]) as scratch:
        yield scratch


def main(config: IndexConfig) -> int:
    """Runs the command: prints what the index holds, and returns the exit code."""
    from rlds_beam import storage
    from rlds_beam.text import count, escape_controls, format_size

    began = time.monotonic()
    built = index(config)
    seconds, size = time.monotonic() - began, sum(storage.sizes(built.directory).values())
    failed = _find_failure(built, config.max_rejected)
    if config.json:
        facts = {"episodes": built.episodes, "steps": len(built), "rejected": built.rejected, "bytes": size}
        print_json({"index": built.directory, **facts, "seconds": round(seconds, 3)})
    else:
        rejected = ", ".join(f"{number:,} {rule}" for rule, number in built.rejected.items())
        lines = [
            f"index     {built.directory} ({format_size(size)})",
            f"holds     {count(len(built), 'step')} of {count(built.episodes, 'episode')}",
            *([f"left out  {rejected}"] if rejected else []),
            f"took      {seconds:.1f} s with start-up",
        ]
        print(escape_controls("\n".join(lines)))
    if failed:
        print(f"failed with exit code 3: {failed}", file=sys.stderr)
    return 3 if failed else 0


def _find_failure(built: StepIndex, max_rejected: int | float) -> str:
    """Why an index is not what the user wants; empty if it is."""
    if not len(built):
        return "there are no steps; the rules or the connectors left nothing"
    rejected = sum(built.rejected.values())
    allowed = max_rejected if isinstance(max_rejected, int) else max_rejected * (rejected + built.episodes)
    if rejected <= allowed:
        return ""
    return f"{rejected:,} episodes break rules and are left out. Accept: --max_rejected={rejected}"
