"""RLDS into a Reverb table, from public transforms. `rlds-beam push` writes the same items.

    python -m rlds_beam.pipelines.rlds_to_reverb --input=DATASET --reverb=HOST:PORT --table=NAME --rejected=DIRECTORY

Not to be confused with `rlds_beam.rlds_to_reverb`, which replaces TF-Agents' module of that name.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

# isort: off
from rlds_beam import CheckOptions
from rlds_beam.connectors import Connector
from rlds_beam.trajectories import FrameOptions, ItemOptions
from rlds_beam.transforms import (
    ConnectEpisodes,
    ConvertToTrajectories,
    FindDuplicateEpisodes,
    ReadFromRlds,
    ValidateEpisodes,
    WriteRejected,
    WriteToReverb,
    WriteToReverbResult,
)
import apache_beam as beam  # after rlds_beam.transforms: imported first, Beam prints warnings
from apache_beam.options.pipeline_options import PipelineOptions

__all__ = ["define_pipeline", "main"]


def define_pipeline(
    root: beam.Pipeline,
    input: str,
    servers: str,
    table: str,
    rejected_to: str,
    items: ItemOptions | None = None,
    frames: FrameOptions | None = None,
    check: CheckOptions | None = None,
    connectors: Sequence[Connector] = (),
) -> WriteToReverbResult:
    """Writes the items of the dataset `input` to a table, and rejected episodes to the directory `rejected_to`."""
    read = ReadFromRlds(input)
    connect = ConnectEpisodes(connectors, read.source)
    convert = ConvertToTrajectories(connect.schema, frames, items)
    write = WriteToReverb(servers, table, convert.spec, writer="observer")
    episodes = root | read  # shards in parallel -> Episode: T steps as columns, observation [T, ...]; an EpisodeKey
    repeated = root | FindDuplicateEpisodes(read.source)  # one dict: the keys of episodes that repeat another one
    checked = episodes | ValidateEpisodes(check, repeated)  # whole episodes: is_first on step 0, is_last on step T - 1
    connected = checked.accepted | connect  # Episode: edited, split, or dropped
    converted = connected.episodes | convert  # Items: K pairs [K, 2, ...], or K padded sequences [K, L, ...]
    written: WriteToReverbResult = converted.items | write  # a worker's observer: T frames in, K items into the table
    rejected = (checked.rejected, connected.rejected, converted.rejected, written.rejected)
    _ = rejected | beam.Flatten() | WriteRejected(rejected_to)  # the original bytes of each record, and the reason
    return written


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the pipeline on any runner of Beam."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("--input", "--reverb", "--table", "--rejected"):
        parser.add_argument(flag, required=True)
    flags, beam_flags = parser.parse_known_args(arguments)
    with beam.Pipeline(options=PipelineOptions(beam_flags)) as root:
        define_pipeline(root, flags.input, flags.reverb, flags.table, flags.rejected)


if __name__ == "__main__":
    main()
