"""The signal of videos whose length, by the metadata, is not that of the episode."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot_data import convert_here, read_episodes, write_moving_data

from rlds_beam.checking.signals import Context, EpisodeTable, findings
from rlds_beam.formats.sources import open_source

pytest.importorskip("av")


def test_finds_a_video_that_is_longer_than_its_episode(tmp_path: Path) -> None:
    source, _ = write_moving_data(tmp_path)
    output = tmp_path / "lerobot"
    convert_here(source, output, images="video", vcodec="h264")
    assert lengths(output) == [0, 0, 0, 0, 0]
    (file,) = output.glob("meta/episodes/*/*.parquet")
    table = pq.read_table(file)
    name = next(one for one in table.column_names if one.endswith("image_0/to_timestamp"))
    stops = table[name].to_pylist()
    stops[3] += 3 / 10
    pq.write_table(table.set_column(table.column_names.index(name), name, pa.array(stops)), file)
    assert lengths(output) == [0, 0, 0, 3, 0]


def lengths(output: Path) -> list[float]:
    opened = open_source(str(output), from_="lerobot")
    table = EpisodeTable(Context.of(opened.schema, fps=10))
    for episode in read_episodes(str(output), "lerobot"):
        table.add(episode)
    rows = table.finish().to_pylist()
    found = [round(row["video_length"], 6) for row in rows]
    beyond = [any(one.signal == "video_length" for one in findings(row)) for row in rows]
    assert beyond == [value > 0 for value in found]
    return found
