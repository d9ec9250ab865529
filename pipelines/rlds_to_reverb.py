"""RLDS into a Reverb table, from public transforms. (`rlds_beam.drop_in.rlds_to_reverb` replaces TF-Agents' module.)

python -m rlds_beam.pipelines.rlds_to_reverb --input=DATASET --reverb=HOST:PORT --table=NAME --rejected=DIRECTORY
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

# isort: off
from rlds_beam import CheckOptions, transforms as rb
from rlds_beam.connectors import Connector
from rlds_beam import FrameOptions, ItemOptions
import apache_beam as beam  # after rlds_beam: imported first, Beam prints warnings
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
) -> rb.WriteToReverbResult:
    """Writes the items of the dataset `input` to a table, and rejected episodes to the directory `rejected_to`."""
    read = rb.ReadFromRlds(input)
    connect = rb.ConnectEpisodes(connectors, read.source)
    convert = rb.ConvertToTrajectories(connect.schema, frames, items)
    write = rb.WriteToReverb(servers, table, convert.spec, writer="observer")
    episodes = root | read  # shards in parallel -> Episode: T steps as columns, observation [T, ...]; an EpisodeKey
    repeated = root | rb.FindDuplicateEpisodes(read.source)  # one dict: the keys of episodes that repeat another one
    checked = episodes | rb.ValidateEpisodes(check, repeated)  # whole episodes, is_first on step 0, is_last on T - 1
    connected = checked.accepted | connect  # Episode: edited, split, or dropped
    converted = connected.episodes | convert  # Items: K pairs [K, 2, ...], or K padded sequences [K, L, ...]
    written: rb.WriteToReverbResult = converted.items | write  # one observer a worker: T frames in, K items out
    rejected = (checked.rejected, connected.rejected, converted.rejected, written.rejected)
    _ = rejected | beam.Flatten() | rb.WriteRejected(rejected_to)  # the original bytes of each record, and the reason
    return written


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the pipeline on any runner of Beam. `rlds-beam push` writes the same items."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("--input", "--reverb", "--table", "--rejected"):
        parser.add_argument(flag, required=True)
    flags, beam_flags = parser.parse_known_args(arguments)
    with beam.Pipeline(options=PipelineOptions(beam_flags)) as root:
        define_pipeline(root, flags.input, flags.reverb, flags.table, flags.rejected)


if __name__ == "__main__":
    main()
