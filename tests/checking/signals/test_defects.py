"""Recall of injected defects, and false alarms on clean data."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from robot_episodes import CAMERA, DEFECTS, Injection, robot_episode

from rlds_beam.checking.signals import SIGNALS, Context, EpisodeTable, findings
from rlds_beam.episodes.episode import Episode

EPISODES, BROKEN = 120, 12


@functools.cache
def clean() -> list[Episode]:
    return [robot_episode(seed) for seed in range(EPISODES)]


def rows_of(episodes: list[Episode], decoded: int = 4) -> list[dict[str, Any]]:
    table = EpisodeTable(Context.of_episode(episodes[0], fps=10, decoded=decoded))
    for episode in episodes:
        table.add(episode)
    rows: list[dict[str, Any]] = table.finish().to_pylist()
    return rows


@pytest.mark.parametrize("name", DEFECTS)
def test_finds_each_defect(name: str) -> None:
    injection: Injection = DEFECTS[name]
    rng = np.random.default_rng(1)
    places = set(rng.choice(EPISODES, BROKEN, replace=False).tolist())
    episodes = [injection.defect(e, rng) if i in places else e for i, e in enumerate(clean())]
    decoded = 4 if SIGNALS[injection.signal].decodes else 0
    found = {
        row["position"]
        for row in rows_of(episodes, decoded)
        if any(one.signal == injection.signal for one in findings(row))
    }
    print(f"{name}: recall {len(found & places) / BROKEN:.2f}, false alarms {len(found - places) / EPISODES:.3f}")
    assert len(found & places) >= 0.99 * BROKEN
    assert len(found - places) <= 0.03 * EPISODES


def test_clean_data_has_no_false_alarms_for_frozen_cameras_and_dropped_frames() -> None:
    rows = rows_of(clean())
    alarms = Counter(one.signal for row in rows for one in findings(row))
    print("false alarms:", dict(alarms))
    assert not {"frozen_camera", "repeated_images", "dropped_frames"} & alarms.keys()
    assert all(row[f"frozen_camera/{CAMERA}"] == row["dropped_frames"] == 0 for row in rows)
    assert sum(alarms.values()) <= 0.05 * EPISODES
