"""Where items go: tables of Reverb servers, and which of them takes an episode."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from rlds_beam.connectors.configuration import Configuration
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.reverb import tables
from rlds_beam.reverb.columns import ColumnConversion
from rlds_beam.reverb.encoding import digest
from rlds_beam.reverb.options import ReverbOptions, WriterKind
from rlds_beam.reverb.priorities import Priority, resolve_priority
from rlds_beam.reverb.tables import Baseline, OnWait
from rlds_beam.trajectories.converter import Conversion
from rlds_beam.trajectories.options import ItemOptions
from rlds_beam.trajectories.spec import TrajectorySpec

KEY_FORMAT = 1
"""Format version of the items' keys; bump when they are made differently."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReverbTarget:
    """Where items go, and how they become Reverb's. Pickles.

    Attributes:
      servers: `host:port`; each episode goes to one of them (`server_of`).
      tables: every item goes into each.
      spec: of the items.
      items: which frames make an item.
      salt: of the keys: what an item depends on besides its episode.
      priority: of each item.
      timeout: seconds that any wait may take without progress.
      chunk_length: frames in a chunk; None chooses (`encoding.chunk_length_of`).
      squeeze: single frames without a time axis, as the tables' signature has them.
      state_ids: of the servers, when the job began.
      writer: by what items are sent.
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

    def server_of(self, key: EpisodeKey) -> str:
        """The server of an episode, whatever the order of `servers` (rendezvous hashing).

        All parts of a split record go to one, and with `across_episodes` all of a shard.
        """
        if len(self.servers) == 1:
            return self.servers[0]
        where = key.shard_name if self.items.across_episodes else str(dataclasses.replace(key, part=0))
        return max(self.servers, key=lambda server: (digest(server, where), server))


def salt_of(conversion: Conversion | ColumnConversion, configuration: Configuration | None = None) -> str:
    """What the keys of items depend on besides their episodes: how they are made."""
    salt: dict[str, Any] = {"format": KEY_FORMAT}
    if isinstance(conversion, ColumnConversion):
        salt |= conversion.salt()
    else:
        salt |= {"frames": conversion.frames, "items": conversion.items}
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
    """Looks at the servers and their tables, and says where items go.

    Args:
      options: the servers and tables.
      spec, items: of what is to be written.
      salt: of the items' keys.
      predicted: how many each server is sent, where that is known: they have to fit.
      on_wait: is told of a server that does not answer at once, and is waited for.

    Raises:
      UsageError: a server does not answer; a table is not there, of another signature, or would not take
        what is predicted; the priority cannot be had.
    """
    priority = resolve_priority(options.priority)
    priority.check(spec)
    baseline = tables.check_tables(
        options.reverb, options.table, spec, predicted, options.timeout,
        allow_eviction=options.allow_eviction, allow_blocking=options.allow_blocking,
        time_axis=options.writer == "observer", on_wait=on_wait,
    )  # fmt: skip
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
