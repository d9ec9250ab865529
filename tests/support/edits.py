"""Episodes before and after a connector edits them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import settings

from rlds_beam.connectors import connect
from rlds_beam.episodes.episode import Episode
from rlds_beam.testing import make_episode

FEW = settings(deadline=None, max_examples=50)


def with_actions(actions: Any, **columns: Any) -> Episode:
    made = make_episode(len(actions), columns=columns)
    return made.with_columns({"action": np.asarray(actions, np.float32)})


def edited(connector: Any, episode: Episode) -> list[Episode]:
    return list(connect([connector], [episode]).episodes)
