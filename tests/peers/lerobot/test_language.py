"""Annotations by LeRobot's own writer are read, and what we write of them LeRobot loads with equal values."""

from __future__ import annotations

import lerobot_data as data
import lerobot_language as language
import pytest
from lerobot_peer import FORMAT_VERSION, OPTIONS, opened, write_with_lerobot

import rlds_beam

pytestmark = pytest.mark.skipif(FORMAT_VERSION == "2.1", reason="LeRobot 0.3 has no language columns")
COLUMNS = ("language_persistent", "language_events")


@pytest.fixture(scope="module")
def annotated(folder, moving):
    from lerobot.annotations.steerable_pipeline.writer import LanguageColumnsWriter

    root = folder / "annotated"
    write_with_lerobot(root, moving[1])
    writer = LanguageColumnsWriter()
    language.annotate(root, lambda *rows: writer._materialize_table(*rows, drop_old=True))
    return root


def test_lerobot_reads_the_same_before_and_after(annotated, folder):
    rlds_beam.convert(annotated, folder / "annotated_rlds/toy/1.0.0", from_="lerobot", to="rlds")
    rlds_beam.convert(folder / "annotated_rlds/toy/1.0.0", folder / "annotated_again", shards=2, **OPTIONS)
    ours, theirs = opened(folder / "annotated_again"), opened(annotated)
    assert ours.meta.has_language_columns and len(ours) == len(theirs)
    for t in range(len(ours)):
        for name in COLUMNS:
            assert ours[t][name] == theirs[t][name]
    assert any(row["tool_calls"] for row in ours[1]["language_events"])


def test_texts_and_windows(annotated):
    episodes = data.read_episodes(str(annotated), "lerobot")
    assert {"language_events", "observation/images/top"} <= set(episodes[0].steps)
    assert "episode_metadata/language_persistent" in episodes[0].metadata
