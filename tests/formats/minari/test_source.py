"""Minari's Arrow and Parquet directories; Minari itself writes them in tests/peers/exchange."""

from __future__ import annotations

import json

import pytest
from exchanging import plain, read_back
from fuzzed_datasets import minari_directory

from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_minaris_directories(tmp_path, kind):
    minari_directory(tmp_path / "arrow-v0" / "data", kind)
    first, second = read_back(tmp_path / "arrow-v0", "minari", ranges=2)
    assert (first.faults, second.faults, first.key.position, second.key.position) == ((), (), 0, 1)
    assert first.steps["observation/state"].tolist() == [[[2 * t, 2 * t + 1]] for t in range(4)]
    assert second.steps["observation/pair/0"].tolist() == [[[10 + 2 * t, 11 + 2 * t]] for t in range(3)]
    assert plain(second.steps["observation/pair/1"]) == [b"a", b"b", b"c"]
    assert (first.steps["action"].tolist(), second.steps["reward"].tolist()) == ([0, 1, 2, 0], [0.0, 0.5, 0.0])
    assert [e.steps["is_terminal"].tolist() for e in (first, second)] == [[False] * 4, [False, False, True]]
    assert first.steps["is_last"].tolist() == [False] * 3 + [True]
    file = tmp_path / "arrow-v0" / "data" / "1" / f"part-0.{kind}"
    for content in (file.read_bytes()[:-40], b"", None):
        file.unlink() if content is None else file.write_bytes(content)
        whole, damaged = read_back(tmp_path / "arrow-v0", "minari")
        assert not whole.faults and damaged.faults[0].rule == "corrupt_record"
        assert "episode 1 cannot be read" in damaged.faults[0].detail


@pytest.mark.parametrize("total", [1, 3])
def test_another_number_of_directories_than_the_metadata_count_is_noted(tmp_path, total):
    minari_directory(tmp_path / "data", "parquet")
    assert not open_source(str(tmp_path / "data"), from_="minari").notes
    path = tmp_path / "data" / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"total_episodes": total}))
    (note,) = open_source(str(tmp_path / "data"), from_="minari").notes
    assert note == f"{path}: total_episodes is {total}, but there are 2"


def test_a_name_that_is_a_number(tmp_path):
    minari_directory(tmp_path / "data", "parquet")
    path = tmp_path / "data" / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rlds_beam": {"dataset": 1, "columns": []}}))
    assert open_source(str(tmp_path / "data"), from_="minari").dataset == "1/1.0.0"


def test_a_damaged_page_is_an_error_of_one_line(tmp_path):
    minari_directory(tmp_path / "data", "parquet")
    file = tmp_path / "data" / "0" / "part-0.parquet"
    content = file.read_bytes()
    file.write_bytes(content[:4] + b"\xff" * 60 + content[64:])
    with pytest.raises(UsageError, match=r"metadata\.json cannot be read: .*Deserializing page header failed") as error:
        open_source(str(tmp_path / "data"), from_="minari")
    assert "\n" not in str(error.value)
