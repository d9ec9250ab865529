"""Defects in 25 real episodes of BridgeData: their recall, and the false alarms on the episodes as they are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from checkout import REAL_DATA
from robot_episodes import blurred, changed, stored

from rlds_beam.checking.signals import SIGNALS, Context, EpisodeTable, findings
from rlds_beam.episodes.episode import Episode
from rlds_beam.formats.rlds.source import RldsSource
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import Segment
from rlds_beam.reading.reader import EpisodeReader

REAL = REAL_DATA / "bridge_dataset/1.0.0"
STATE, CAMERA, TEXT = "observation/state", "observation/image_0", "language_instruction"
BROKEN = (2, 9, 17)

pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="no real data; set $RLDS_BEAM_REAL_DATA to their path")


@functools.cache
def real() -> tuple[list[Episode], Context]:
    source = RldsSource.open(str(REAL))
    reader = EpisodeReader(source)
    episodes = [e for s in source.splits for shard in s.shards for e in reader.read(s.name, Segment(shard))]
    return episodes, Context.from_schema(source.schema, decoded=4)


def alarms(episodes: list[Episode]) -> list[set[str]]:
    table = EpisodeTable(real()[1])
    for episode in episodes:
        table.add(episode)
    return [{one.signal for one in findings(row)} for row in table.finish().to_pylist()]


def frozen(episode: Episode) -> Episode:
    column = episode.steps[CAMERA]
    assert isinstance(column, EncodedImages)
    data = column.data.copy()
    data[3:8] = [data[3]] * 5
    return episode.with_columns({CAMERA: column.with_data(data)})


def pictures(change: Callable[[Any], Any]) -> Callable[[Episode], Episode]:
    def defect(episode: Episode) -> Episode:
        column = episode.steps[CAMERA]
        assert isinstance(column, EncodedImages)
        images = np.clip(change(column.decode().astype(np.float64)), 0, 255).astype(np.uint8)
        return episode.with_columns({CAMERA: stored(images)})

    return defect


def spike(values: Any) -> None:
    values[5, 0] += 0.5  # half a meter


def text(value: bytes) -> Callable[[Episode], Episode]:
    return lambda episode: episode.with_columns({TEXT: np.full(len(episode), value, object)})


DEFECTS: dict[str, tuple[str, Callable[[Episode], Episode]]] = {
    "frozen camera": ("frozen_camera", frozen),
    "repeated images": ("repeated_images", frozen),
    "overexposed images": ("overexposed_images", pictures(lambda images: images * 5)),
    "blurred images": ("blurred_images", pictures(blurred)),
    "jump of the state": ("jump", lambda episode: changed(episode, STATE, spike)),
    "jump of the action": ("jump", lambda episode: changed(episode, "action", spike)),
    "stuck dimension": ("stuck", lambda e: changed(e, STATE, lambda v: v.__setitem__((slice(1, None), 2), v[1, 2]))),
    "idle robot": (
        "idle_share",
        lambda e: changed(changed(e, STATE, lambda v: v[[0] * 10]), "action", lambda v: v[[0] * 10]),
    ),
    "missing instruction": ("missing_instruction", text(b"  ")),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_finds_each_defect(name: str) -> None:
    signal, defect = DEFECTS[name]
    found = alarms([defect(e) if i in BROKEN else e for i, e in enumerate(real()[0])])
    assert all(signal in found[i] for i in BROKEN)
    assert sum(signal in one for i, one in enumerate(found) if i not in BROKEN) <= 1


def test_unchanged_episodes_have_no_alarms_but_for_cameras_that_are_black() -> None:
    assert alarms(real()[0]) == [{"black_images"}] * len(real()[0])
    assert "frozen_camera" in SIGNALS
