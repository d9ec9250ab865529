"""A push, prepared: everything that can be known and checked before the first item is sent."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from rlds_beam import storage
from rlds_beam.checking.dataset import check_source
from rlds_beam.checking.options import CheckOptions
from rlds_beam.checking.report import Report
from rlds_beam.connectors.cleaning.presets import with_preset
from rlds_beam.connectors.configuration import Configuration
from rlds_beam.connectors.options import ConnectorOptions
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.errors import UsageError
from rlds_beam.formats.sources import open_for_job
from rlds_beam.formats.trajectories.reading_back import ConvertedRange, is_converted, open_converted
from rlds_beam.jobs.balance import Balance, balance_of, balance_of_sizes, largest_first
from rlds_beam.jobs.cost import converted_seconds, push_seconds
from rlds_beam.jobs.options import PushOptions
from rlds_beam.options import options_given
from rlds_beam.output.files import REJECTED, is_rejected_file
from rlds_beam.output.range_conversion import RangeFitter
from rlds_beam.reading.base import Source
from rlds_beam.reading.changes import Snapshot
from rlds_beam.reading.framing import Framing
from rlds_beam.reading.plan import WorkRange, plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.reverb import tables
from rlds_beam.reverb.columns import ColumnConversion
from rlds_beam.reverb.pushing import EpisodePusher, ItemPusher, Pusher
from rlds_beam.reverb.tables import Baseline, OnWait
from rlds_beam.reverb.target import KEY_FORMAT, ReverbTarget, open_target, salt_of
from rlds_beam.trajectories.converter import Conversion
from rlds_beam.trajectories.options import FrameOptions, ItemOptions
from rlds_beam.trajectories.spec import TrajectorySpec, trajectory_spec

_ADVICE = "the tables hold items of both versions; empty them, and push again once the file stays as it is"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PushInput:
    """The input of a push.

    Attributes:
      dataset: `name/version`.
      size: bytes to read.
      ranges: of work.
      spec: of the items.
      items: which frames make an item.
      salt: of the items' keys (`ReverbTarget.salt`).
      most_items: an upper bound of their number.
      dataset_report: the report on the dataset as a whole.
      source: the RLDS dataset; None for a converted one.
      framing: of the source.
      snapshot: of the source's files; None for a converted one.
      fitter: of the connectors, where some are to be fitted.
      pusher: of the ranges, given a target.
    """

    dataset: str
    size: int
    ranges: tuple[WorkRange | ConvertedRange, ...]
    spec: TrajectorySpec
    items: ItemOptions
    salt: str
    most_items: int | None
    dataset_report: Report
    source: Source | None
    framing: Framing | None
    snapshot: Snapshot | None
    fitter: RangeFitter | None
    pusher: Callable[[ReverbTarget], Pusher]

    @property
    def balance(self) -> Balance:
        """How even the ranges are."""
        if self.source is None:
            return balance_of_sizes([work.bytes for work in self.ranges if isinstance(work, ConvertedRange)])
        return balance_of(self.source, self.cut, whole_shards=self.items.across_episodes)

    @property
    def ordered(self) -> tuple[WorkRange | ConvertedRange, ...]:
        """The ranges, as they are best handed out."""
        return self.ranges if self.source is None else tuple(largest_first(self.source, self.cut))

    @property
    def cut(self) -> list[WorkRange]:
        """The ranges of an RLDS dataset."""
        return [work for work in self.ranges if isinstance(work, WorkRange)]

    @property
    def seconds(self) -> float:
        """What the work takes one core, about (`cost`)."""
        return converted_seconds(self.size) if self.source is None else push_seconds(self.source)

    def to_json(self) -> dict[str, Any]:
        """The plan, for programs."""
        return {
            "input": self.dataset,
            "bytes": self.size,
            "ranges": self.balance.to_json(),
            "frame": [dataclasses.asdict(leaf) for leaf in self.spec.leaves],
            "left_out": dict(self.spec.left_out),
        }


def open_input(options: PushOptions) -> PushInput:
    """Opens an RLDS dataset, or the output of a conversion.

    Raises:
      UsageError: the input or an option cannot be used.
    """
    return _open_converted(options) if is_converted(options.input) else _open_rlds(options)


def _open_rlds(options: PushOptions) -> PushInput:
    options = with_preset(options)
    source = open_for_job(options)
    check, frames, items = CheckOptions.of(options), FrameOptions.of(options), ItemOptions.of(options)
    configuration = Configuration.of(options)
    connecting = ConnectorRunner.of(configuration, source.schema)
    conversion: Conversion | ColumnConversion
    if options.columns:
        for name in options_given(options, FrameOptions, ItemOptions):
            raise UsageError(f"--{name} is for trajectories, not --columns: the connectors say what is in a row")
        conversion = ColumnConversion.of(connecting.probed, options.module)
        items = conversion.items
    else:
        connecting.refuse_columns("--columns")
        conversion = Conversion(frames, items, trajectory_spec(connecting.probed.schema, frames, items))
    framing, snapshot = Framing(source), Snapshot.of(source, _ADVICE)
    reader = EpisodeReader(source, snapshot)
    ignored = connecting.ignored_values(conversion.ignored_values)
    return PushInput(
        dataset=source.dataset,
        size=source.size,
        ranges=plan_ranges(source, whole_shards=options.across_episodes, starts=framing.record_starts),
        spec=conversion.spec,
        items=items,
        salt=salt_of(conversion, configuration),
        most_items=None if connecting.connectors else _most_frames(source, frames),
        dataset_report=check_source(source, options),
        source=source,
        framing=framing,
        snapshot=snapshot,
        pusher=lambda target: EpisodePusher(reader, check, connecting, conversion, target, options.rejected),
        fitter=RangeFitter(reader, check, connecting, ignored) if connecting.unfitted else None,
    )


def _open_converted(options: PushOptions) -> PushInput:
    for name in options_given(options, ConnectorOptions, CheckOptions, FrameOptions, ItemOptions):
        raise UsageError(
            f"--{name}: {options.input} is converted already; that is decided when an RLDS dataset is converted, or "
            "pushed"
        )
    if options.columns:
        raise UsageError(f"--columns: {options.input} is converted already: push the RLDS dataset")
    converted = open_converted(options.input, options.split)
    length = converted.spec.item_shape[0] if converted.spec.item_shape else 1
    if not converted.spec.item_shape:
        items = ItemOptions(items="frames")
    elif length is None:
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
        source=None,
        framing=None,
        snapshot=None,
        fitter=None,
        pusher=lambda target: ItemPusher(converted, target),
    )


@dataclasses.dataclass(frozen=True)
class PushJob:
    """A push, ready to run.

    Attributes:
      input: the input.
      target: where it goes.
      baseline: the tables before it.
      fits: whether the tables surely hold all of it.
    """

    input: PushInput
    target: ReverbTarget
    baseline: Baseline
    fits: bool

    @property
    def pusher(self) -> Pusher:
        return self.input.pusher(self.target)

    def open(self, rejected: str | None) -> tuple[WorkRange | ConvertedRange, ...]:
        """Makes the directory for rejected records ready, and gives the ranges; all of them, on every run.

        What an earlier push left in the directory is replaced, and nothing else in it is touched.

        Raises:
          UsageError: it cannot be written to.
        """
        if rejected is not None:
            try:
                directory = storage.below(rejected, REJECTED)
                storage.makedirs(directory)
                names = storage.listdir(directory)
                old = [name for name in names if is_rejected_file(name) or storage.is_temporary(name)]
                storage.remove_files(rejected, [f"{REJECTED}/{name}" for name in old])
            except OSError as error:
                raise UsageError(f"--rejected={rejected} cannot be written to: {error}") from error
        return self.input.ordered


def _most_frames(source: Source, frames: FrameOptions) -> int | None:
    """The dataset gives no more frames, so items, than this; None where the files' sizes do not bound it."""
    steps = source.most_steps()
    # A step may be added to each episode, which has one step or more.
    return steps if steps is None or frames.last_step == "drop" else 2 * steps


def prepare(
    options: PushOptions, source: PushInput, predicted: Mapping[str, int] | None = None, on_wait: OnWait | None = None
) -> PushJob:
    """Looks at the tables; raises UsageError where they cannot take the items (`open_target`). Writes nothing.

    Args:
      options: of the job.
      source: `open_input(options)`.
      predicted: items that each server is sent, where they were counted.
      on_wait: is told of a server that does not answer at once, and is waited for.
    """
    target, baseline = open_target(options, source.spec, source.items, source.salt, predicted, on_wait)
    if predicted is not None or options.allow_eviction:
        return PushJob(source, target, baseline, fits=True)
    most = source.most_items
    fits = most is not None and tables.have_room(baseline, dict.fromkeys(options.reverb, most))
    return PushJob(source, target, baseline, fits)
