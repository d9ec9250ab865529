"""RLDS to trajectory records, from public transforms. `rlds-beam convert` writes the same items, and can resume.

python -m rlds_beam.pipelines.rlds_to_trajectories --input=DATASET --output=DIRECTORY --runner=FnApiRunner
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
    output: str,
    items: ItemOptions | None = None,
    frames: FrameOptions | None = None,
    check: CheckOptions | None = None,
    connectors: Sequence[Connector] = (),
) -> rb.WriteResult:
    """Writes the items of the dataset `input` to `output`, with rejected episodes in `output/rejected`."""
    read = rb.ReadFromRlds(input)
    connect = rb.ConnectEpisodes(connectors, read.source)
    convert = rb.ConvertToTrajectories(connect.schema, frames, items)
    write = rb.WriteToTrajectoryRecords(output, convert.spec, source=connect.source)  # its name, rate, and robot
    episodes = root | read  # shards in parallel -> Episode: T steps as columns, observation [T, ...]; an EpisodeKey
    repeated = root | rb.FindDuplicateEpisodes(read.source)  # one dict: the keys of episodes that repeat another one
    checked = episodes | rb.ValidateEpisodes(check, repeated)  # whole episodes, is_first on step 0, is_last on T - 1
    connected = checked.accepted | connect  # Episode: edited, split, or dropped
    converted = connected.episodes | convert  # Items: K pairs [K, 2, ...], or K padded sequences [K, L, ...]
    written: rb.WriteResult = converted.items | write  # K tf.Examples of [L, ...]
    rejected = (checked.rejected, connected.rejected, converted.rejected, written.rejected)
    _ = rejected | beam.Flatten() | rb.WriteRejected(output)  # the original bytes of each record, and the reason
    return written


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the pipeline on any runner of Beam."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--sequence_length", type=int, help="frames of an item; pairs of steps if not given")
    flags, beam_flags = parser.parse_known_args(arguments)
    items = flags.sequence_length and ItemOptions(items="sequences", sequence_length=flags.sequence_length)
    with beam.Pipeline(options=PipelineOptions(beam_flags)) as root:
        define_pipeline(root, flags.input, flags.output, items)


if __name__ == "__main__":
    main()
