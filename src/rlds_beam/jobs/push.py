"""Prepares a push: everything that can be checked before the first item is sent."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.connectors.configuration import Configuration
from rlds_beam.connectors.options import ConnectorOptions
from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import prepare_input
from rlds_beam.formats.registry import RLDS
from rlds_beam.formats.trajectories.written_items import ConvertedRange, is_converted, open_converted
from rlds_beam.jobs.options import PushOptions
from rlds_beam.options import options_given
from rlds_beam.processing.job import Job
from rlds_beam.processing.ranges import find_duplicates, fit_connectors
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import Source, WorkRange
from rlds_beam.reading.changes import Snapshot
from rlds_beam.reading.decoding import EpisodeDecoder
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.reverb import tables
from rlds_beam.reverb.column_items import ColumnItemConversion, ItemConversion
from rlds_beam.reverb.pushers import CountItems, EpisodePusher, ItemPusher, Pusher, PushRanges
from rlds_beam.reverb.tables import Baseline, OnWait
from rlds_beam.reverb.target import KEY_FORMAT, ReverbTarget, make_salt, open_target
from rlds_beam.trajectories.converter import WindowItemConversion
from rlds_beam.trajectories.options import FrameOptions, ItemOptions
from rlds_beam.trajectories.spec import TrajectorySpec, trajectory_spec

_ADVICE = "the tables hold items of both versions; empty them, and push again once the file no longer changes"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PushInput:
    """The input of a push.

    Attributes:
      dataset: the dataset's `name/version`.
      size: the bytes to read.
      ranges: the work ranges, in scheduling order.
      spec: the spec of the items.
      items: which frames make an item.
      salt: the salt of the items' keys (`ReverbTarget.salt`).
      most_items: an upper bound of the number of items; None if unknown.
      dataset_report: the report on the dataset as a whole.
      source: the RLDS dataset; None for a converted one.
      before: the stages before the push: the search for duplicates, and the fitting of connectors.
      pusher: creates the pusher of ranges for a target.
    """

    dataset: str
    size: int
    ranges: Sequence[WorkRange | ConvertedRange]
    spec: TrajectorySpec
    items: ItemOptions
    salt: str
    most_items: int | None
    dataset_report: Report
    pusher: Callable[[ReverbTarget], Pusher]
    source: Source | None = None
    before: Callable[[], Job] = tuple

    @property
    def input_bytes(self) -> int:
        """The bytes to read, with those of companions."""
        return self.size if self.source is None else self.source.input_bytes

    def stages(self, target: ReverbTarget, baseline: Baseline, rejected: str | None) -> Job:
        """The stages of the push: a `Verified`."""
        return *self.before(), PushRanges(self.pusher(target), target, baseline, self.ranges, rejected)

    def count_stages(self, target: ReverbTarget) -> Job:
        """The stages that only count the items: a `Pushed`."""
        return *self.before(), CountItems(self.pusher(target), self.ranges)


def open_input(options: PushOptions) -> PushInput:
    """Opens an RLDS dataset or the output of a conversion.

    Raises:
      UsageError: the input or an option cannot be used.
    """
    if options.from_ in (None, RLDS) and is_converted(options.input):
        return _open_converted(options)
    return _open_rlds(options)


def _open_rlds(options: PushOptions) -> PushInput:
    configuration = Configuration.from_options(options)
    opened = prepare_input(options, configuration=configuration)
    source, check, connecting = opened.source, CheckOptions.from_options(opened.check), opened.connecting
    frames, items = FrameOptions.from_options(options), ItemOptions.from_options(options)
    conversion: ItemConversion
    if options.columns:
        for name in options_given(options, FrameOptions, ItemOptions):
            raise UsageError(f"--{name} has no effect with --columns: connectors define the rows")
        conversion = ColumnItemConversion.from_probe(connecting.probed, options.module)
        items = conversion.items
    else:
        connecting.refuse_columns("--columns")
        conversion = WindowItemConversion.from_spec(trajectory_spec(connecting.probed.schema, frames, items))
    reader = EpisodeReader(source, Snapshot(source, _ADVICE))
    ranges = opened.ranges(whole_shards=options.across_episodes)
    void = source.last_action != "real" and source.meaning.void_datasets is None
    keeps_last = not void if frames.last_step is None else frames.last_step != "drop"
    steps = _most_steps(source)
    if steps is not None and keeps_last:
        steps *= 2  # each episode has at least one step

    def before() -> Job:
        finds = "duplicate_episode" not in options.accept
        stages = find_duplicates(source) if finds else ()
        if not connecting.unfitted:
            return stages
        ignored = connecting.ignored_values(conversion.ignored_values)
        return *stages, *fit_connectors(reader, check, connecting, ignored, ranges)

    return PushInput(
        dataset=source.dataset,
        size=source.size,
        ranges=ranges,
        spec=conversion.spec,
        items=items,
        salt=make_salt(conversion, configuration),
        most_items=None if connecting.connectors else steps,
        dataset_report=opened.report,
        pusher=lambda target: EpisodePusher(reader, check, connecting, conversion, target, options.rejected),
        source=source,
        before=before,
    )


def _most_steps(source: Source) -> int | None:
    """An upper bound on the steps of an RLDS dataset; None if the sizes of its files give none.

    A step has at least 4 bytes for a float, 1 for an integer, and 2 for a string (tag and length).
    """
    first = next((shard for split in source.splits for shard in split.shards), None)
    if not isinstance(source.decoder, EpisodeDecoder) or first is None:
        return None
    if source.files.name != "tfrecord" or not source.files.is_splittable(first.path):
        return None  # compressed
    least = 0
    for field in source.schema.steps.values():
        if field.encoding != "none" or field.dtype == "string":
            least += 2
        elif None not in field.shape:
            least += field.known_size * (1 if field.numpy_dtype.kind in "iub" else 4)
    return sum(shard.size for split in source.splits for shard in split.shards) // max(1, least)


def _open_converted(options: PushOptions) -> PushInput:
    for name in options_given(options, ConnectorOptions, CheckOptions, FrameOptions, ItemOptions):
        raise UsageError(
            f"--{name}: {options.input} is already converted; remove the flag, or push the original RLDS dataset"
        )
    if options.columns:
        raise UsageError(f"--columns: {options.input} is already converted; push the original RLDS dataset")
    converted = open_converted(options.input, options.split)
    if not (shape := converted.spec.item_shape):
        items = ItemOptions(items="frames")
    elif (length := shape[0]) is None:
        items = ItemOptions(items="episodes")
    else:
        items = ItemOptions(items="sequences", sequence_length=length, stride_length=length)
    return PushInput(
        dataset=converted.dataset,
        size=sum(work.bytes for work in converted.ranges),
        ranges=converted.ranges,
        spec=converted.spec,
        items=items,
        salt=json.dumps({"format": KEY_FORMAT, "replay": converted.fingerprint}),
        most_items=converted.items,
        dataset_report=Report(),
        pusher=lambda target: ItemPusher(converted, target),
    )


def prepare(
    options: PushOptions, source: PushInput, predicted: Mapping[str, int] | None = None, on_wait: OnWait | None = None
) -> tuple[ReverbTarget, Baseline, bool]:
    """Checks the tables without writing to them.

    Args:
      options: the job's options.
      source: the input from `open_input(options)`.
      predicted: the number of items for each server, if counted.
      on_wait: called with a message when a server is slow to answer.

    Returns:
      The tables, their content before the push, and whether they certainly have room for all items.

    Raises:
      UsageError: the tables cannot take the items (`open_target`).
    """
    target, baseline = open_target(options, source.spec, source.items, source.salt, predicted, on_wait)
    if predicted is not None or options.allow_eviction:
        return target, baseline, True
    most = source.most_items
    return target, baseline, most is not None and tables.have_room(baseline, dict.fromkeys(options.reverb, most))
