"""Tables before and after: whether they will take what is to be written, and whether they have it.

The server checks nothing. A full table drops items silently, a limiter lets a writer wait forever, and a restart
loses what was acknowledged; so all of it is checked before anything is sent, and again at the end.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rlds_beam.errors import NotVerifiedError, UsageError
from rlds_beam.reverb.connection import Connection, ServerError
from rlds_beam.reverb.protocol.info import ServerInfo, TableInfo
from rlds_beam.reverb.signatures import fitting_axes
from rlds_beam.text import did_you_mean
from rlds_beam.trajectories.spec import Shape, TrajectorySpec

OnWait = Callable[[str], None]
"""Tells a person something that cannot wait until the end of the job."""

RUN_AGAIN = "run the same command again: items that the table has are not written twice"


@dataclasses.dataclass(frozen=True)
class Baseline:
    """The tables before anything was written. Pickles.

    Attributes:
      servers: all that they said, by address.
      tables: the names of those that are written to, on every server.
      squeeze: single frames are to be written without a time axis.
      allow_eviction: items may be dropped.
    """

    servers: Mapping[str, ServerInfo]
    tables: tuple[str, ...]
    squeeze: bool = False
    allow_eviction: bool = False

    @property
    def state_ids(self) -> dict[str, int]:
        """By address: another one after each start of a server."""
        return {server: info.state_id for server, info in self.servers.items()}

    def each(self) -> Iterator[tuple[str, TableInfo]]:
        """Address and table of each table that is written to."""
        for server, info in self.servers.items():
            for name in self.tables:
                yield server, info.tables[name]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableCheck:
    """The result for one table. All numbers are items unless said otherwise.

    Attributes:
      server, table: which one.
      predicted: to be written.
      acknowledged: by the server.
      inserted: since the table was made, by any client.
      already_there: acknowledged without an insert: an earlier run had inserted them.
      size: in the table now.
      episodes: that Reverb counts in the table. Of converted items, which do not say what episode they are of, it
        counts batches.
      note: an oddity that is no error; mostly empty.
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

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        there = f" ({self.already_there:,} were there)" if self.already_there else ""
        note = f"; {self.note}" if self.note else ""
        return (
            f"{self.server} {self.table}: {self.acknowledged:,} of {self.predicted:,} items{there}; "
            f"it holds {self.size:,} items{note}"
        )


def ask(servers: Sequence[str], timeout: float, on_wait: OnWait | None = None) -> dict[str, ServerInfo]:
    """What each server says of itself.

    Args:
      servers: `host:port`.
      timeout: seconds for all of them together.
      on_wait: is told of a server that does not answer at once, and is waited for.

    Raises:
      ServerError: one does not answer within it.
    """
    deadline, infos = time.monotonic() + timeout, {}
    for server in servers:
        left = max(0.1, deadline - time.monotonic())
        told = f"{server}: no answer yet; waiting for a Reverb server there for up to {round(left, 1):g} s (--timeout)"
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
    """Asks the servers whether their tables will take the items. Writes nothing.

    Args:
      servers: `host:port`.
      tables: each of them gets every item of its server.
      spec: of the items.
      predicted: items that each server is sent; None where that is not known: then room is not looked at.
      timeout: seconds for all servers together.
      allow_eviction: items may be dropped where they do not fit.
      allow_blocking: tables may take items only while a client samples.
      time_axis: even single frames are to be written with a time axis, since the writer knows no others.
      on_wait: as for `ask`.

    Raises:
      UsageError: a server does not answer or is named twice; a table is not there, is of another signature,
        has no room, or would block.
    """
    try:
        infos = ask(servers, timeout, on_wait)
    except ServerError as error:
        raise UsageError(str(error)) from error
    states: dict[int, str] = {}
    for server, info in infos.items():
        if info.state_id in states:
            raise UsageError(f"{server} and {states[info.state_id]} are one server; name it once")
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
    """Whether so many items for each server fit without eviction, and without waiting for a client that samples."""
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
    """Compares the tables with what was sent.

    Args:
      before: what `check_tables` returned.
      after: what `ask` returns when all is written.
      predicted: items that each server was to be sent, into each table.
      acknowledged: items that each server acknowledged, in each table; each item counts once.
      remedy: what to do where it is not so.

    Raises:
      NotVerifiedError: a server was restarted, items are not acknowledged, or have left a table that nothing
        leaves by itself. Names every table that it is true of.
    """
    checks, faults = [], []
    for server, old in before.each():
        restarted = after[server].state_id != before.servers[server].state_id
        new = after[server].tables.get(old.name)
        if restarted or new is None:
            fault = f"{server} was restarted: what it had acknowledged before may be gone"
            faults += [fault] if fault not in faults else []
            continue
        check = _check(server, old, new, predicted.get(server, 0), acknowledged.get(server, 0))
        fault, note = _judge(check, old, new, before.allow_eviction)
        checks.append(dataclasses.replace(check, note=note))
        faults += [f"{server}, table {old.name!r}: {fault}"] if fault else []
    if faults:
        raise NotVerifiedError(f"{'; '.join(faults)}. To repair it, {remedy}")
    return tuple(checks)


def _check(server: str, old: TableInfo, new: TableInfo, predicted: int, acknowledged: int) -> TableCheck:
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
    """What is wrong with a table, and what is odd; empty where nothing is."""
    if check.acknowledged != check.predicted:
        return f"{check.predicted:,} items predicted, {check.acknowledged:,} acknowledged", ""
    # No item can be there without an insert, now or before; only a reset makes the server forget inserts.
    if check.inserted < 0 or check.already_there > old.current_size:
        return f"it was reset: {check.acknowledged:,} items acknowledged, {max(0, check.inserted):,} inserted", ""
    notes = []
    left = check.inserted - (new.current_size - old.current_size)
    if left and new.max_times_sampled > 0:
        notes.append(f"{left:,} items left it, sampled or dropped")
    elif left and allow_eviction:
        notes.append(f"{left:,} items were dropped (max_size {new.max_size:,}, remover {new.remover})")
    elif left:
        why = "it is full, and has to be larger" if new.current_size >= new.max_size else "another client deleted them"
        return f"{left:,} items left it: {why}", ""
    if check.inserted > check.acknowledged:
        notes.append(
            f"{check.inserted - check.acknowledged:,} more were inserted, by another writer or by an observer's retries"
        )
    return "", "; ".join(notes)


def _squeeze(baseline: Baseline, spec: TrajectorySpec, time_axis: bool) -> bool:
    """Whether single frames are to come without a time axis: as the spec has them, unless a table wants one."""
    possible: set[Shape] = {(1,)} if time_axis and not spec.item_shape else {(), (1,), spec.item_shape}
    for server, table in baseline.each():
        fitting = possible & {*fitting_axes(table, spec, f"{server}: table {table.name!r}")}
        if not fitting and time_axis:
            raise UsageError(
                f"{server}: table {table.name!r} wants single frames without a time axis, and --writer=observer "
                "writes them with one ([1, ...]); use --writer=stream, which writes both"
            )
        if not fitting:
            raise UsageError(
                f"{server}: table {table.name!r} wants single frames with a time axis where others want them "
                "without; write to them one by one"
            )
        possible = fitting
    return spec.item_shape == () and () in possible


def _holds(table: TableInfo, items: int) -> bool:
    """Whether nothing is dropped to make room for so many items."""
    limiter = table.limiter
    # Each sample takes an item out, and the limiter counts those that are in: a queue waits, and drops nothing.
    is_queue = table.max_times_sampled == 1 and limiter.samples_per_insert >= 1 and limiter.max_diff <= table.max_size
    return is_queue or table.current_size + items <= table.max_size


def _lets_in(table: TableInfo, items: int) -> bool:
    """Whether the limiter lets so many items in while no client samples (RateLimiter::CanInsert, rate_limiter.cc)."""
    limiter = table.limiter
    size = min(table.current_size + items - 1, table.max_size) + 1  # when the last one comes in
    return (
        not items
        or size <= limiter.min_size_to_sample
        or (limiter.inserts + items) * limiter.samples_per_insert - limiter.samples <= limiter.max_diff
    )


def _no_table(server: str, name: str, info: ServerInfo) -> str:
    hint = did_you_mean(name, info.tables) or "."
    return f"{server}: there is no table {name!r}{hint} There are: {', '.join(info.tables)}"


def _no_room(server: str, table: TableInfo, items: int) -> str:
    kind = "prioritized" if table.sampler == "prioritized" else "uniform"
    return (
        f"{server}: table {table.name!r} holds {table.max_size:,} items and has {table.current_size:,}; with the "
        f"{items:,} to come it would drop {table.current_size + items - table.max_size:,} without a word. Make it "
        f"larger (serve --tables={table.name}:{kind}:{table.current_size + items}), or give --allow_eviction, which "
        "drops nothing where it holds these very items from an earlier run"
    )


def _blocks(server: str, table: TableInfo, items: int) -> str:
    limiter = table.limiter
    cursor = (limiter.max_diff + limiter.samples) / limiter.samples_per_insert - limiter.inserts
    room = max(0, math.floor(cursor), limiter.min_size_to_sample - table.current_size)
    return (
        f"{server}: the rate limiter of table {table.name!r} lets {room:,} of the {items:,} items in and then waits "
        f"for a client to sample. Use a table that does not wait (serve --tables={table.name}:uniform:"
        f"{table.current_size + items}), or start a client that samples and give --allow_blocking"
    )
