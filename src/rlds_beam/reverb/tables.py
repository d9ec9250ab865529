"""Checks tables before and after a push: whether they can take the items, and whether they have them.

The server checks nothing: a full table drops items silently, a rate limiter can block a writer forever, and a restart
loses acknowledged items. So we check everything before sending, and again at the end.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from rlds_beam.encoding.wire import SignatureLeaf
from rlds_beam.errors import NotVerifiedError, UsageError
from rlds_beam.reverb.connection import Connection, ServerError, ServerInfo, TableInfo
from rlds_beam.text import did_you_mean
from rlds_beam.trajectories.options import CASTS
from rlds_beam.trajectories.spec import Shape, SpecLeaf, TrajectorySpec

OnWait = Callable[[str], None]
"""Shows a message that cannot wait until the end of the job."""

RUN_AGAIN = "run the same command again: no item is written twice"


@dataclasses.dataclass(frozen=True)
class Baseline:
    """The state of the tables before the push. Picklable.

    Attributes:
      servers: the state of each server, by address.
      tables: the names of the tables to write to, on every server.
      squeeze: whether to write single frames without a time axis.
      allow_eviction: whether tables may drop items.
    """

    servers: Mapping[str, ServerInfo]
    tables: tuple[str, ...]
    squeeze: bool = False
    allow_eviction: bool = False

    @property
    def state_ids(self) -> dict[str, int]:
        """The servers' state IDs by address; a restart changes them."""
        return {server: info.state_id for server, info in self.servers.items()}

    def each(self) -> Iterator[tuple[str, TableInfo]]:
        """Yields each table to write to, with its server's address."""
        for server, info in self.servers.items():
            for name in self.tables:
                yield server, info.tables[name]


class TableCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one table. Numbers count items unless noted.

    Attributes:
      server, table: the server and the table.
      predicted: the items to be written.
      acknowledged: the items that the server acknowledged.
      inserted: the items that any client inserted during the push.
      already_there: the items acknowledged without an insert, because an earlier run had inserted them.
      size: the items in the table now.
      episodes: the episodes that Reverb counts in the table. Converted items do not know their episode, so for them it
        counts batches.
      note: an observation that is not an error; usually empty.
    """

    server: str
    table: str
    predicted: int
    acknowledged: int
    inserted: int
    already_there: int
    size: int
    episodes: int
    note: str = ""

    def __str__(self) -> str:
        there = f" ({self.already_there:,} were there)" if self.already_there else ""
        note = f"; {self.note}" if self.note else ""
        return (
            f"{self.server} {self.table}: {self.acknowledged:,} of {self.predicted:,} items{there}; "
            f"it holds {self.size:,} items{note}"
        )


def ask(servers: Sequence[str], timeout: float, on_wait: OnWait | None = None) -> dict[str, ServerInfo]:
    """Requests the state of each server.

    Args:
      servers: the servers as `host:port`.
      timeout: the seconds for all servers together.
      on_wait: called with a message when a server is slow to answer.

    Raises:
      ServerError: a server does not answer in time.
    """
    deadline, infos = time.monotonic() + timeout, {}
    for server in servers:
        left = max(0.1, deadline - time.monotonic())
        told = f"{server}: no answer yet; waiting up to {round(left, 1):g} s for a Reverb server (--timeout)"
        with Connection(server) as connection:
            infos[server] = connection.info(left, None if on_wait is None else functools.partial(on_wait, told))
    return infos


def check_tables(
    servers: Sequence[str],
    tables: Sequence[str],
    spec: TrajectorySpec,
    predicted: Mapping[str, int] | None,
    timeout: float,
    *,
    allow_eviction: bool = False,
    allow_blocking: bool = False,
    time_axis: bool = False,
    on_wait: OnWait | None = None,
) -> Baseline:
    """Checks whether the servers' tables can take the items. Writes nothing.

    Args:
      servers: the servers as `host:port`.
      tables: the tables, each of which gets every item of its server.
      spec: the spec of the items.
      predicted: the number of items for each server; None if unknown, which skips the check for room.
      timeout: the seconds for all servers together.
      allow_eviction: whether tables may drop items that do not fit.
      allow_blocking: whether tables may block until a client samples.
      time_axis: whether single frames also have a time axis, because the writer supports no others.
      on_wait: as in `ask`.

    Raises:
      UsageError: a server does not answer or is given twice; or a table is missing, has another signature, has no room,
        or would block.
    """
    try:
        infos = ask(servers, timeout, on_wait)
    except ServerError as error:
        raise UsageError(str(error)) from error
    states: dict[int, str] = {}
    for server, info in infos.items():
        if info.state_id in states:
            raise UsageError(f"{server} and {states[info.state_id]} are the same server; name it once")
        states[info.state_id] = server
        for name in tables:
            if name not in info.tables:
                raise UsageError(_no_table(server, name, info))
    baseline = Baseline(infos, tuple(tables), allow_eviction=allow_eviction)
    baseline = dataclasses.replace(baseline, squeeze=_squeeze(baseline, spec, time_axis))
    for server, table in baseline.each():
        items = (predicted or {}).get(server, 0)
        if not allow_eviction and not _holds(table, items):
            raise UsageError(_no_room(server, table, items))
        if not allow_blocking and not _lets_in(table, items):
            raise UsageError(_blocks(server, table, items))
    return baseline


def have_room(baseline: Baseline, items: Mapping[str, int]) -> bool:
    """Whether this many items for each server fit without eviction and without waiting for a client to sample."""
    return all(
        _holds(table, items.get(server, 0)) and _lets_in(table, items.get(server, 0))
        for server, table in baseline.each()
    )


def compare_tables(
    before: Baseline,
    after: Mapping[str, ServerInfo],
    predicted: Mapping[str, int],
    acknowledged: Mapping[str, int],
    remedy: str = RUN_AGAIN,
) -> tuple[TableCheck, ...]:
    """Compares the tables with the items sent.

    Args:
      before: the result of `check_tables`.
      after: the result of `ask` after the push.
      predicted: the number of items for each server, in each table.
      acknowledged: the number of items that each server acknowledged, in each table; each item counts once.
      remedy: what to do if they differ.

    Raises:
      NotVerifiedError: a server was restarted, items were not acknowledged, or items have left a table unexpectedly.
        The message names every such table.
    """
    checks, faults = [], []
    for server, old in before.each():
        restarted = after[server].state_id != before.servers[server].state_id
        new = after[server].tables.get(old.name)
        if restarted or new is None:
            fault = f"{server} was restarted: items that it had acknowledged may be lost"
            faults += [fault] if fault not in faults else []
            continue
        check = _compare_counts(server, old, new, predicted.get(server, 0), acknowledged.get(server, 0))
        fault, note = _judge(check, old, new, before.allow_eviction)
        checks.append(msgspec.structs.replace(check, note=note))
        faults += [f"{server}, table {old.name!r}: {fault}"] if fault else []
    if faults:
        raise NotVerifiedError(f"{'; '.join(faults)}. To fix it, {remedy}")
    return tuple(checks)


def _compare_counts(server: str, old: TableInfo, new: TableInfo, predicted: int, acknowledged: int) -> TableCheck:
    inserted = new.limiter.inserts - old.limiter.inserts
    return TableCheck(
        server=server,
        table=old.name,
        predicted=predicted,
        acknowledged=acknowledged,
        inserted=inserted,
        already_there=max(0, acknowledged - max(0, inserted)),
        size=new.current_size,
        episodes=new.num_episodes,
    )


def _judge(check: TableCheck, old: TableInfo, new: TableInfo, allow_eviction: bool) -> tuple[str, str]:
    """A table's error and a note on oddities; each is empty if there is none."""
    if check.acknowledged != check.predicted:
        return f"{check.predicted:,} items predicted, {check.acknowledged:,} acknowledged", ""
    # Every item has been inserted at some time; only a reset makes the server forget inserts.
    if check.inserted < 0 or check.already_there > old.current_size:
        return f"it was reset: {check.acknowledged:,} items acknowledged, {max(0, check.inserted):,} inserted", ""
    notes = []
    left = check.inserted - (new.current_size - old.current_size)
    if left and new.max_times_sampled > 0:
        notes.append(f"{left:,} items left it, sampled or dropped")
    elif left and allow_eviction:
        notes.append(f"{left:,} items were dropped (max_size {new.max_size:,}, remover {new.remover})")
    elif left:
        why = "it is full and must be larger" if new.current_size >= new.max_size else "another client deleted them"
        return f"{left:,} items left it: {why}", ""
    if check.inserted > check.acknowledged:
        notes.append(
            f"{check.inserted - check.acknowledged:,} more were inserted, by another writer or by an observer's retries"
        )
    return "", "; ".join(notes)


def _squeeze(baseline: Baseline, spec: TrajectorySpec, time_axis: bool) -> bool:
    """Whether to write single frames without a time axis, as in the spec, unless a table requires one."""
    possible: set[Shape] = {(1,)} if time_axis and not spec.item_shape else {(), (1,), spec.item_shape}
    for server, table in baseline.each():
        fitting = possible & {*fitting_axes(table, spec, f"{server}: table {table.name!r}")}
        if not fitting and time_axis:
            raise UsageError(
                f"{server}: table {table.name!r} needs single frames without a time axis, but --writer=observer "
                "writes them with one ([1, ...]); use --writer=stream, which supports both"
            )
        if not fitting:
            raise UsageError(
                f"{server}: table {table.name!r} needs single frames with a time axis, but other tables need them "
                "without; push to them separately"
            )
        possible = fitting
    return spec.item_shape == () and () in possible


def _holds(table: TableInfo, items: int) -> bool:
    """Whether this many items fit without dropping others."""
    limiter = table.limiter
    # Each sample removes an item, and the limiter counts the items inside, so a queue waits and never drops any.
    is_queue = table.max_times_sampled == 1 and limiter.samples_per_insert >= 1 and limiter.max_diff <= table.max_size
    return is_queue or table.current_size + items <= table.max_size


def _lets_in(table: TableInfo, items: int) -> bool:
    """Whether the limiter admits this many items if no client samples (RateLimiter::CanInsert, rate_limiter.cc)."""
    limiter = table.limiter
    size = min(table.current_size + items - 1, table.max_size) + 1  # when the last item is inserted
    return (
        not items
        or size <= limiter.min_size_to_sample
        or (limiter.inserts + items) * limiter.samples_per_insert - limiter.samples <= limiter.max_diff
    )


def _no_table(server: str, name: str, info: ServerInfo) -> str:
    hint = did_you_mean(name, info.tables) or "."
    return f"{server}: no table {name!r}{hint} It has: {', '.join(info.tables) or 'none'}"


def _no_room(server: str, table: TableInfo, items: int) -> str:
    kind = "prioritized" if table.sampler == "prioritized" else "uniform"
    larger = f"--tables={shlex.quote(table.name)}:{kind}:{table.current_size + items}"
    return (
        f"{server}: table {table.name!r} has {table.current_size:,} of at most {table.max_size:,} items; {items:,} "
        f"more would silently drop {table.current_size + items - table.max_size:,}. Use a larger table (serve "
        f"{larger}), or add --allow_eviction, which drops nothing if "
        "the table already has the same items from an earlier run"
    )


def _blocks(server: str, table: TableInfo, items: int) -> str:
    limiter = table.limiter
    cursor = (limiter.max_diff + limiter.samples) / limiter.samples_per_insert - limiter.inserts
    room = max(0, math.floor(cursor), limiter.min_size_to_sample - table.current_size)
    return (
        f"{server}: the rate limiter of table {table.name!r} admits {room:,} of {items:,} items and then blocks until "
        f"a client samples. Use a table that does not block (serve --tables={shlex.quote(table.name)}:uniform:"
        f"{table.current_size + items}), or start a client that samples and add --allow_blocking"
    )


Misfit = tuple[SignatureLeaf, SpecLeaf]
"""The table's leaf and the dataset's leaf."""

_AT_MOST = 4  # leaves named individually in an error


def fitting_axes(table: TableInfo, spec: TrajectorySpec, where: str) -> tuple[Shape, ...]:
    """The possible leading axes of the leaves in an item for this table.

    Leaves are compared in the order of `tf.nest`, which is the order of an item's columns: by dtype and shape (None in
    the table's shape matches any size), and by name if the signature is a `Trajectory`.

    Args:
      table: the table; one without a signature accepts any item.
      spec: the spec of the items.
      where: the table's name, for messages.

    Returns:
      `(spec.item_shape,)`; for single frames one or both of () and (1,), which is what
      ReverbAddTrajectoryObserver(sequence_length=1) writes.

    Raises:
      UsageError: the items do not match; the message names each mismatch.
    """
    axes: tuple[Shape, ...] = (spec.item_shape,) if spec.item_shape else ((), (1,))
    if table.signature is None:
        return axes
    _compare_names(table.signature, spec, where, table.name)
    misfits = {outer: _misfits(table.signature, spec.leaves, outer) for outer in axes}
    fitting = tuple(outer for outer in axes if not misfits[outer])
    if fitting:
        return fitting
    outer = min(axes, key=lambda outer: len(misfits[outer]))
    pairs = misfits[outer]
    told = [
        f"{given.path}: the table has {_describe_leaf(wanted.dtype, wanted.shape)}, "
        f"the dataset {_describe_leaf(given.dtype, (*outer, *given.shape))}"
        for wanted, given in pairs[:_AT_MOST]
    ]
    if len(pairs) > _AT_MOST:
        told.append(f"and {len(pairs) - _AT_MOST} more leaves")
    remedy = _cast(pairs, outer) or _other_items(pairs)
    raise UsageError(f"{where} does not match these items: {'; '.join(told)}. {_remedies(remedy, table.name)}")


def _compare_names(wanted: Sequence[SignatureLeaf], spec: TrajectorySpec, where: str, name: str) -> None:
    table, dataset = [leaf.path for leaf in wanted], [leaf.path for leaf in spec.leaves]
    if "step_type" not in table:  # not a Trajectory, so its names cannot be compared
        if len(table) != len(dataset):
            raise UsageError(
                f"{where} does not match these items: it has {len(table)} leaves ({', '.join(table)}), "
                f"the dataset {len(dataset)} ({', '.join(dataset)}). {_remedies('', name)}"
            )
        return
    if table == dataset:
        return
    lacking = [path for path in table if path not in dataset]
    extra = [path for path in dataset if path not in table]
    told = [f"it needs {', '.join(lacking)}"] if lacking else []
    told += [f"it has no {', '.join(extra)}"] if extra else []
    told = told or [f"its leaves are in another order ({', '.join(table)})"]
    remedy = ""
    if extra and not lacking and all(path.startswith("observation/") for path in extra):
        kept = [path.removeprefix("observation/") for path in table if path.startswith("observation/")]
        remedy = f"--observation_fields={shlex.quote(','.join(kept))}"
    if lacking and not extra and all(path.startswith("policy_info/") for path in lacking):
        names = ",".join(path.removeprefix("policy_info/") for path in lacking)
        remedy = f"--policy_info_fields={shlex.quote(names)}"
    raise UsageError(f"{where} does not match these items: {'; '.join(told)}. {_remedies(remedy, name)}")


def _misfits(wanted: Sequence[SignatureLeaf], given: Sequence[SpecLeaf], outer: Shape) -> list[Misfit]:
    return [
        (want, leaf)
        for want, leaf in zip(wanted, given, strict=True)
        if want.dtype != leaf.dtype or not _fits(want.shape, (*outer, *leaf.shape))
    ]


def _fits(wanted: Shape | None, given: Shape) -> bool:
    if wanted is None:
        return True
    return len(wanted) == len(given) and all(w in (None, g) for w, g in zip(wanted, given, strict=True))


def _cast(misfits: Sequence[Misfit], outer: Shape) -> str:
    """The flag that fixes all mismatches, if only dtypes differ."""
    for wanted, given in misfits:
        castable = given.encoding == "none" and given.path not in ("step_type", "next_step_type", "discount")
        if not castable or wanted.dtype not in CASTS or not _fits(wanted.shape, (*outer, *given.shape)):
            return ""
    return "--cast=" + ",".join(f"{given.path}={wanted.dtype}" for wanted, given in misfits)


def _other_items(misfits: Sequence[Misfit]) -> str:
    """The flags that fix all mismatches, if only the number of frames in an item differs."""
    if any(wanted.dtype != given.dtype for wanted, given in misfits):
        return ""
    if all(_fits(wanted.shape, given.shape) for wanted, given in misfits):
        return "--items=frames"
    lengths = {wanted.shape[0] for wanted, _ in misfits if wanted.shape}
    if len(lengths) != 1 or not all(_fits(wanted.shape, (*lengths, *given.shape)) for wanted, given in misfits):
        return ""
    (length,) = lengths
    if length is None:
        return "--items=sequences or --items=episodes"
    return {1: "--items=frames", 2: "--items=pairs"}.get(length, f"--items=sequences --sequence_length={length}")


def _remedies(remedy: str, name: str) -> str:
    serve = f"`rlds-beam serve --like=INPUT --tables={shlex.quote(name)}` starts a server with a matching table"
    return f"Add {remedy}; or {serve}" if remedy else serve


def _describe_leaf(dtype: str, shape: Shape | None) -> str:
    return f"{dtype} of any shape" if shape is None else f"{dtype}{list(shape)}"
