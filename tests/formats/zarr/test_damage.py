"""Damaged and hostile zarr stores: damage costs the episodes that it touches, and nothing else happens."""

from __future__ import annotations

import json
import warnings
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


@pytest.mark.parametrize("kind", ["flipped", "cut", "empty", "other"])
def test_a_damaged_chunk_rejects_the_episodes_that_it_touches(buffer, kind):
    chunk = buffer / "data" / "state" / "1.0"
    data = chunk.read_bytes()
    contents = {"flipped": bytes(b ^ 255 for b in data), "cut": data[:-9], "empty": b"", "other": b"no blosc" * 9}
    chunk.write_bytes(contents[kind])
    found = reasons(buffer)
    assert [bool(reason) for reason in found] == [False, False, True, False]
    assert "rows 6 to 18 cannot be read: the chunk data/state/1.0 cannot be decoded" in found[2]


def test_a_missing_chunk_holds_the_fill_value(buffer):
    (buffer / "data" / "state" / "0.0").unlink()
    change_metadata(buffer / "data" / "state", fill_value="NaN")
    assert "data/state lacks 1 of 4 chunks (read as nan)" in open_source(str(buffer), from_="zarr").describe()
    first = read_back(buffer, "zarr")[0]
    assert np.isnan(first.steps["observation/state"]).all()


def test_rows_after_the_last_end_are_reported(buffer):
    set_ends(buffer, [5, 6, 18])
    assert open_source(str(buffer), from_="zarr").episodes == 4
    assert reasons(buffer)[3].startswith("there are rows after 18, where the last episode ends")


def test_an_array_with_too_few_rows(buffer):
    change_metadata(buffer / "data" / "action", shape=[20, 2])
    found = reasons(buffer)
    assert [bool(reason) for reason in found] == [False, False, False, True]
    assert "data/action has 20 rows" in found[3]


@pytest.mark.parametrize(
    ("ends", "wrong"), [([5, 3, 27], "episode 1 ends at 3, after 5"), ([-2, 27], "episode 0 ends at -2, after 0")]
)
def test_ends_that_do_not_ascend(buffer, ends, wrong):
    set_ends(buffer, ends)
    (found,) = reasons(buffer)
    assert wrong in found


def test_ends_beyond_the_rows(buffer):
    set_ends(buffer, [5, 1 << 61])
    found = reasons(buffer)
    assert found[0] == "" and "GB" in found[1]
    set_ends(buffer, [1 << 63], "<u8")
    assert "cannot be a number of steps" in reasons(buffer)[0]


def test_episodes_without_steps_and_no_episodes(buffer, tmp_path):
    set_ends(buffer, [0, 5, 5, 27])
    found = [len(episode) for episode in read_back(buffer, "zarr")]
    assert found == [0, 5, 0, 22]
    empty = write_buffer(tmp_path / "empty.zarr", {"x": np.zeros((0, 2))}, ())
    assert read_back(empty, "zarr") == []
    assert open_source(str(empty), from_="zarr").episodes == 0


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "pickle": ({"compressor": {"id": "pickle"}}, "data/state: it is stored with the codec pickle"),
    "pickle filter": ({"filters": [{"id": "pickle"}]}, "data/state: it is stored with the codec pickle"),
    "objects": ({"dtype": "|O"}, "data/state: it holds Python objects"),
    "records": ({"dtype": [["a", "<f4"]]}, "data/state: it holds"),
    "times": ({"dtype": "<M8[ns]"}, "data/state: it holds"),
    "huge": ({"shape": [1 << 60, 5]}, "claim"),
    "huge chunks": ({"chunks": [1 << 40, 5]}, "data/state: its chunks are larger"),
    "huge rows": ({"shape": [27, 1 << 50]}, "data/state: its chunks are larger"),
    "many chunks": ({"shape": [27, 1 << 20], "chunks": [1, 1]}, "data/state: a row is spread"),
    "no chunks": ({"chunks": [0, 5]}, "data/state: a shape in its metadata"),
    "negative": ({"shape": [-1, 5]}, "data/state: a shape in its metadata"),
    "float": ({"shape": [27.0, 5]}, "data/state: a shape in its metadata"),
    "scalar": ({"shape": [], "chunks": []}, "data/state: its shape is"),
    "dimensions": ({"chunks": [7]}, "data/state: its shape is"),
    "separator": ({"dimension_separator": "../../"}, "data/state: the order of its axes"),
    "fill": ({"fill_value": "x"}, "data/state: its fill value is x"),
    "fill of another type": ({"dtype": "|u1", "fill_value": 300}, "data/state: its fill value is 300"),
    "negative fill": ({"dtype": "|u1", "fill_value": -1}, "data/state: its fill value is -1"),
    "large fill": ({"dtype": "<i8", "fill_value": 10**400}, "data/state: "),
    "fraction": ({"dtype": "<i4", "fill_value": 0.5}, "data/state: its fill value is 0.5"),
    "compressor": ({"compressor": "blosc"}, "data/state: "),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_metadata(buffer, case):
    content, message = HOSTILE[case]
    change_metadata(buffer / "data" / "state", **content)
    with pytest.raises(UsageError, match=message):
        open_source(str(buffer), from_="zarr")


@pytest.mark.parametrize("content", ["", "[]", "7", "{}", '{"shape": 7}', "\x00", '{"shape": [1], "chunks": [1]}'])
def test_metadata_that_is_not_an_array(buffer, content):
    (buffer / "data" / "state" / ".zarray").write_text(content)
    with pytest.raises(UsageError, match="data/state"):
        open_source(str(buffer), from_="zarr")


def test_consolidated_metadata_is_not_read(buffer):
    content = {"zarr_consolidated_format": 1, "metadata": {"data/state/.zarray": {"shape": [1 << 60]}}}
    (buffer / ".zmetadata").write_text(json.dumps(content))
    assert reasons(buffer) == [""] * 4


def test_a_chunk_that_expands_to_more_than_its_shape(buffer):
    import imagecodecs

    bomb = imagecodecs.blosc_encode(bytes(1 << 22), level=9, numthreads=1)
    (buffer / "data" / "state" / "0.0").write_bytes(bomb)
    found = reasons(buffer)
    assert "data/state/0.0 cannot be decoded: it is larger than its shape" in found[0]
    change_metadata(buffer / "data" / "state", compressor={"id": "zstd"})
    (buffer / "data" / "state" / "0.0").write_bytes(imagecodecs.zstd_encode(bytes(1 << 24)))
    assert "data/state/0.0 cannot be decoded" in reasons(buffer)[0]


def test_an_image_of_another_size(tmp_path):
    import imagecodecs

    path = write_buffer(tmp_path / "x.zarr", episode_arrays(LENGTHS), LENGTHS, chunks={"img": (1, 16, 16, 3)})
    change_metadata(path / "data" / "img", compressor={"id": "imagecodecs_jpegxl"})
    for i in range(27):
        large = 9000 if i == 26 else 16
        pixels = np.zeros((large, large, 3), np.uint8)
        (path / "data" / "img" / f"{i}.0.0.0").write_bytes(imagecodecs.jpegxl_encode(pixels, effort=1))
    found = reasons(path)
    assert found[:3] == [""] * 3 and "data/img/26.0.0.0 cannot be decoded" in found[3]


def test_zip_files(buffer, tmp_path):
    arrays = episode_arrays(LENGTHS)
    path = write_buffer(tmp_path / "z.zarr.zip", arrays, LENGTHS)
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as file:
        warnings.simplefilter("ignore")
        file.writestr("/etc/passwd", "x")
        file.writestr("../data/evil/.zarray", "{}")
        file.writestr("data/../../evil/.zarray", "{}")
        file.writestr("data/state/1.0", b"damaged")  # the last one counts
    found = reasons(path)
    assert [bool(reason) for reason in found] == [False, False, True, False]
    assert "data/state/1.0" in found[2]
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UsageError, match="is not a complete zip file"):
        open_source(str(path), from_="zarr")


@pytest.mark.parametrize("name", ["data/state/.zarray", ".zattrs", "data/state/0.0"])
def test_members_that_expand(buffer, tmp_path, name):
    path = tmp_path / "z.zarr.zip"
    with zipfile.ZipFile(path, "w") as file:
        for one in buffer.rglob("*"):
            if one.is_file() and one.relative_to(buffer).as_posix() != name:
                file.write(one, one.relative_to(buffer).as_posix())
        file.writestr(name, b" " * (64 << 20), zipfile.ZIP_DEFLATED)
    if name.endswith("0.0"):
        found = reasons(path)
        assert f"{name} is larger than" in found[0] and found[3] == ""
        return
    with pytest.raises(UsageError, match=f"{name} is larger than"):
        open_source(str(path), from_="zarr")


def test_a_member_that_is_not_as_large_as_the_zip_file_says(buffer, tmp_path):
    path = write_buffer(tmp_path / "z.zarr.zip", episode_arrays(LENGTHS), LENGTHS)
    data = bytearray(path.read_bytes())
    entry = data.rindex(b"data/state/0.0") - 46  # in the central directory
    assert data[entry : entry + 4] == b"PK\x01\x02"
    size = int.from_bytes(data[entry + 24 : entry + 28], "little")
    data[entry + 24 : entry + 28] = (size + 7).to_bytes(4, "little")
    path.write_bytes(data)
    found = reasons(path)
    assert "data/state/0.0" in found[0] and found[3] == ""


def test_a_damaged_header_of_a_member_is_an_error_of_one_short_line(buffer, tmp_path):
    path = write_buffer(tmp_path / "z.zarr.zip", episode_arrays(LENGTHS), LENGTHS)
    data = bytearray(path.read_bytes())
    header = data.index(b"data/state/.zarray") - 30
    data[header + 26 : header + 28] = (2000).to_bytes(2, "little")  # the size of its name
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r"data/state/\.zarray cannot be read: File name in directory") as error:
        open_source(str(path), from_="zarr")
    assert len(str(error.value)) < 500 and "\n" not in str(error.value)


def test_a_store_of_another_kind(tmp_path):
    (tmp_path / "x.zarr").mkdir()
    with pytest.raises(UsageError, match=r"x.zarr has no .zarr or .zarr.zip file"):
        open_source(str(tmp_path / "x.zarr"), from_="zarr")
    with pytest.raises(UsageError, match="no such file or directory"):
        open_source(str(tmp_path / "none.zarr"), from_="zarr")
    with pytest.raises(UsageError, match=r"takes no features.json"):
        open_source(str(tmp_path), from_="zarr", features="f")
