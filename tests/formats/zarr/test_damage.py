"""Damaged and hostile zarr stores: damage costs the episodes that it touches, and no code of a store runs."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchanging import read_back
from zarr_data import change_metadata, episode_arrays, write_buffer

from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source

LENGTHS = (5, 1, 12, 9)  # chunks of 7 rows: 0-6, 7-13, 14-20, 21-27


@pytest.fixture
def buffer(tmp_path):
    return write_buffer(tmp_path / "x.zarr", episode_arrays(LENGTHS), LENGTHS)


def reasons(path: Path | str) -> list[str]:
    """What is wrong with each episode."""
    return [" ".join(fault.detail for fault in episode.faults) for episode in read_back(path, "zarr", ranges=2)]


def set_ends(path: Path, ends: list[int], dtype: str = "<i8") -> None:
    array = path / "meta" / "episode_ends"
    change_metadata(array, compressor=None, shape=[len(ends)], chunks=[max(1, len(ends))], dtype=dtype)
    (array / "0").write_bytes(np.array(ends, dtype).tobytes())


@pytest.mark.parametrize("kind", ["flipped", "cut", "empty"])
def test_a_damaged_chunk_rejects_the_episodes_that_it_touches(buffer, kind):
    chunk = buffer / "data" / "state" / "1.0"
    data = chunk.read_bytes()
    chunk.write_bytes({"flipped": bytes(b ^ 255 for b in data), "cut": data[:-9], "empty": b""}[kind])
    found = reasons(buffer)
    assert [bool(reason) for reason in found] == [False, False, True, False]
    assert "rows 6 to 18 cannot be read: rows 7 to 14 of data/state cannot be decoded" in found[2]


def test_a_missing_chunk_holds_the_fill_value(buffer):
    (buffer / "data" / "state" / "0.0").unlink()
    change_metadata(buffer / "data" / "state", fill_value="NaN")
    assert "data/state lacks 1 of 4 chunks (read as nan)" in open_source(str(buffer), from_="zarr").describe()
    first = read_back(buffer, "zarr")[0]
    assert np.isnan(first.steps["observation/state"]).all()


def test_rows_after_the_last_end_are_reported(buffer):
    set_ends(buffer, [5, 6, 18])
    assert open_source(str(buffer), from_="zarr").episodes == 4
    assert "there are rows after 18, where the last episode ends" in reasons(buffer)[3]


def test_an_array_with_too_few_rows(buffer):
    change_metadata(buffer / "data" / "action", shape=[20, 2])
    found = reasons(buffer)
    assert [bool(reason) for reason in found] == [False, False, False, True]
    assert "data/action has 2" in found[3]


@pytest.mark.parametrize(
    ("ends", "wrong"), [([5, 3, 27], "episode 1 ends at 3, after 5"), ([-2, 27], "episode 0 ends at -2, after 0")]
)
def test_ends_that_do_not_ascend(buffer, ends, wrong):
    set_ends(buffer, ends)
    with pytest.raises(UsageError, match=wrong):
        open_source(str(buffer), from_="zarr")


def test_episodes_without_steps_and_no_episodes(buffer, tmp_path):
    set_ends(buffer, [0, 5, 5, 27])
    found = [len(episode) for episode in read_back(buffer, "zarr")]
    assert found == [0, 5, 0, 22]
    empty = write_buffer(tmp_path / "empty.zarr", {"x": np.zeros((0, 2))}, ())
    assert read_back(empty, "zarr") == []
    assert open_source(str(empty), from_="zarr").episodes == 0


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "pickle": ({"compressor": {"id": "pickle"}}, "is stored with the codec pickle"),
    "pickle filter": ({"filters": [{"id": "pickle"}], "dtype": "|O"}, "is stored with the codec pickle"),
    "unknown codec": ({"compressor": {"id": "mine"}}, "is stored with the codec mine"),
    "times": ({"dtype": "<M8[ns]", "fill_value": None}, "holds"),
    "scalar": ({"shape": [], "chunks": []}, "holds"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_arrays_that_are_refused(buffer, case):
    content, message = REFUSED[case]
    change_metadata(buffer / "data" / "state", **content)
    with pytest.raises(UsageError, match=f"data/state {message}"):
        open_source(str(buffer), from_="zarr")


def test_zip_files(tmp_path):
    path = write_buffer(tmp_path / "z.zarr.zip", episode_arrays(LENGTHS), LENGTHS)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("/etc/passwd", "x")
        file.writestr("data/../../evil/.zarray", "{}")
    assert reasons(path) == [""] * 4
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UsageError, match="is not a complete zip file"):
        open_source(str(path), from_="zarr")
