"""Where items go: tables of Reverb servers, and which of them takes an episode."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.options import ItemOptions, WriterKind
from rlds_beam.reverb.encoding import digest
from rlds_beam.reverb.priorities import Priority
from rlds_beam.trajectories.spec import TrajectorySpec


@dataclasses.dataclass(frozen=True)
class Target:
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
