"""Writes items to Reverb tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput
from apache_beam.utils.windowed_value import WindowedValue

from rlds_beam.checking.verdicts import Rejection
from rlds_beam.errors import BadEpisode
from rlds_beam.reverb.options import ReverbOptions
from rlds_beam.reverb.pushers import Pushed, ReverbRangeWriter, Verified, verify
from rlds_beam.reverb.tables import Baseline
from rlds_beam.reverb.target import ReverbTarget, make_salt, open_target
from rlds_beam.reverb.writer import Writer, new_writer
from rlds_beam.trajectories.converter import WindowItemConversion
from rlds_beam.trajectories.items import Items
from rlds_beam.trajectories.options import ItemOptions
from rlds_beam.trajectories.spec import TrajectorySpec
from rlds_beam.transforms.converting import check_items, refuse_across_episodes
from rlds_beam.transforms.elements import in_global_window, refuse_windows


class WriteToReverbResult(NamedTuple):
    """The outputs of `WriteToReverb`.

    Attributes:
      written: a PCollection of one `Verified`: the items predicted, acknowledged, and found, by server and table.
      rejected: a PCollection of `Rejection`: episodes that could not be written (with an image that cannot be decoded
        or an invalid priority).
    """

    written: beam.PCollection[Verified]
    rejected: beam.PCollection[Rejection]


@beam.typehints.with_input_types(Items)
class WriteToReverb(beam.PTransform[Items, Any]):
    """Writes items to Reverb tables, each once.

        convert = ConvertToTrajectories(read.schema, frames, items)
        converted = checked.accepted | convert
        converted.items | WriteToReverb("localhost:8000", "replay", convert.spec)

    Each worker has its own connections, or its own observers.

    With the stream writer, a retried bundle, a restarted worker, or a rerun pipeline writes no item twice, if the
    episodes are the same. With the observer writer (TF-Agents' own observers), items are written at least once.

    Args:
      servers: one or more `host:port`; each episode goes to one of them.
      tables: one or more table names; every item goes into each table.
      spec: the spec of the items (`ConvertToTrajectories(...).spec`, with `spec.with_columns(...)` for added leaves).
      **options: the fields of `ReverbOptions`: `writer`, `priority`, `chunk_length`, `timeout`, ...

    Raises:
      UsageError: on construction, if a server does not answer, a table is missing or has another signature, or an
        option cannot be used.
      NotVerifiedError: while running, if a server did not accept all items.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        tables: str | Sequence[str],
        spec: TrajectorySpec,
        **options: Any,
    ):
        super().__init__()
        refuse_across_episodes(spec.items or ItemOptions())
        reverb = ReverbOptions(reverb=_several(servers), table=_several(tables), **options)
        self._conversion = WindowItemConversion.from_spec(spec)
        self._target, self._baseline = open_target(reverb, spec, self._conversion.items, make_salt(self._conversion))

    def expand(self, items: beam.PCollection[Items]) -> WriteToReverbResult:
        refuse_windows("WriteToReverb", items)
        written = items | "Write" >> (
            beam.ParDo(_WriteItemsFn(self._conversion, self._target))
            .with_output_types(Pushed, rejected=Rejection)
            .with_outputs("rejected", main="pushed")
        )
        verified = written.pushed | "Verify" >> VerifyTables(self._target, self._baseline)
        return WriteToReverbResult(verified, written.rejected)


class VerifyTables(beam.PTransform):
    """Waits for all writes, then asks the servers for their items: a PCollection of one `Verified`.

    Without Beam: `reverb.pushers.verify`.
    """

    def __init__(self, target: ReverbTarget, baseline: Baseline):
        super().__init__()
        self._target, self._baseline = target, baseline

    def expand(self, pushed: Any) -> Any:
        return (
            pushed
            | "Add" >> beam.CombineGlobally(_merge)
            | "Ask" >> beam.Map(verify, self._target, self._baseline).with_output_types(Verified)
        )


def _merge(pushed: Iterable[Pushed]) -> Pushed:
    return Pushed().merge(*pushed)


def _several(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


class _WriteItemsFn(beam.DoFn):
    def __init__(self, conversion: WindowItemConversion, target: ReverbTarget):
        self._conversion, self._target = conversion, target
        self._writer: Writer | None = None

    def setup(self) -> None:
        self._writer = new_writer(self._target)

    def teardown(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def start_bundle(self) -> None:
        assert self._writer is not None
        self._range = ReverbRangeWriter(self._conversion, self._target, self._writer)
        self._acknowledged = dict(self._writer.acknowledged)

    def process(self, items: Items) -> Iterator[TaggedOutput]:
        check_items(items, self._conversion.spec)
        try:
            self._range.write_items(items)
        except BadEpisode as bad:
            yield TaggedOutput("rejected", Rejection.from_bad_episode(items, bad))

    def finish_bundle(self) -> Iterator[WindowedValue]:
        assert self._writer is not None
        self._range.finish()
        now = self._writer.acknowledged
        acknowledged = {server: now[server] - self._acknowledged.get(server, 0) for server in now}
        pushed = Pushed(predicted=dict(self._range.due), acknowledged=acknowledged)
        yield in_global_window(pushed)
