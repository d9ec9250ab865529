"""The target of a push: tables of Reverb servers, and the server of each episode."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from rlds_beam.connectors.configuration import Configuration
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.reverb import tables
from rlds_beam.reverb.column_items import ItemConversion
from rlds_beam.reverb.encoding import digest
from rlds_beam.reverb.options import ReverbOptions, WriterKind
from rlds_beam.reverb.priorities import Priority, resolve_priority
from rlds_beam.reverb.tables import Baseline, OnWait
from rlds_beam.trajectories.options import ItemOptions
from rlds_beam.trajectories.spec import TrajectorySpec

KEY_FORMAT = 1
"""Format version of the items' keys; bump when their computation changes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReverbTarget:
    """The tables to write to, and how. Picklable.

    Attributes:
      servers: the servers as `host:port`; each episode goes to one of them (`choose_server`).
      tables: the tables; every item goes into each.
      spec: the spec of the items.
      items: which frames make an item.
      salt: the salt of the keys: what an item depends on besides its episode.
      priority: the priority of items.
      timeout: the seconds that any wait may take without progress.
      chunk_length: the frames per chunk; None chooses (`encoding.default_chunk_length`).
      squeeze: writes single frames without a time axis, to match the tables' signature.
      state_ids: the state IDs of the servers when the job began.
      writer: the kind of writer.
    """

    servers: tuple[str, ...]
    tables: tuple[str, ...]
    spec: TrajectorySpec
    items: ItemOptions
    salt: str
    priority: Priority
    timeout: float
    chunk_length: int | None = None
    squeeze: bool = False
    state_ids: Mapping[str, int] = dataclasses.field(default_factory=dict)
    writer: WriterKind = "stream"

    def choose_server(self, key: EpisodeKey) -> str:
        """The server of an episode, independent of the order of `servers` (rendezvous hashing).

        All parts of a split record go to one server, and with `across_episodes` all episodes of a shard.
        """
        if len(self.servers) == 1:
            return self.servers[0]
        where = key.shard_name if self.items.across_episodes else str(dataclasses.replace(key, part=0))
        return max(self.servers, key=lambda server: (digest(server, where), server))


def make_salt(conversion: ItemConversion, configuration: Configuration | None = None) -> str:
    """The inputs of the items' keys besides their episodes: the options of the conversion."""
    salt: dict[str, Any] = {"format": KEY_FORMAT, **conversion.salt()}
    if configuration is not None and configuration.connectors:
        salt["connectors"] = configuration.plan()
    return json.dumps(salt, sort_keys=True, default=dataclasses.asdict)


def open_target(
    options: ReverbOptions,
    spec: TrajectorySpec,
    items: ItemOptions,
    salt: str,
    predicted: Mapping[str, int] | None = None,
    on_wait: OnWait | None = None,
) -> tuple[ReverbTarget, Baseline]:
    """Checks the servers and their tables, and creates the target.

    Args:
      options: the servers and tables.
      spec, items: the spec of the items, and which frames make an item.
      salt: the salt of the items' keys.
      predicted: the number of items for each server, if known; they must fit.
      on_wait: called with a message when a server is slow to answer.

    Raises:
      UsageError: a server does not answer; a table is missing, has another signature, or cannot take the predicted
        items; or the priority is not available.
    """
    priority = resolve_priority(options.priority)
    priority.check(spec)
    baseline = tables.check_tables(
        options.reverb,
        options.table,
        spec,
        predicted,
        options.timeout,
        allow_eviction=options.allow_eviction,
        allow_blocking=options.allow_blocking,
        time_axis=options.writer == "observer",
        on_wait=on_wait,
    )
    target = ReverbTarget(
        servers=options.reverb,
        tables=options.table,
        spec=spec,
        items=items,
        salt=salt,
        priority=priority,
        timeout=options.timeout,
        chunk_length=options.chunk_length,
        squeeze=baseline.squeeze,
        state_ids=baseline.state_ids,
        writer=options.writer,
    )
    return target, baseline
