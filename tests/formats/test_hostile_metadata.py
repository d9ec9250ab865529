"""Untrusted metadata: errors are one line, and come before anything large is allocated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from exchanging import export

from rlds_beam.connectors.configuration import load
from rlds_beam.encoding.metadata import parse_json, parse_yaml
from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.testing import make_episode, write_dataset

LONG = "7" * 6000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data", [make_episode(5, seed=i, observation={"state": 3}) for i in range(3)])


def refused(path: Path, **options: str) -> str:
    with pytest.raises(UsageError) as error:
        open_source(str(path), **options)
    said = str(error.value)
    assert "\n" not in said
    return said


def to_latin(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"{", b'{"\xe4": 1, ', 1))


@pytest.mark.parametrize("name", ["features.json", "dataset_info.json"])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (to_latin, "is not UTF-8: invalid continuation byte at byte 2"),
    ],
)
def test_files_that_are_not_metadata(data: Path, name: str, damage: Callable[[Path], None], said: str) -> None:
    damage(data / name)
    found = refused(data)
    assert said in found and name in found


@pytest.mark.parametrize("value", ["1e12", LONG, "NaN", '"x"'])
def test_numbers_of_dataset_info(data: Path, value: str) -> None:
    path = data / "dataset_info.json"
    path.write_text(path.read_text().replace('"shardLengths": [', f'"shardLengths": [{value}, '))
    if value == "1e12":
        assert open_source(str(data)).violations  # a missing shard
    else:
        assert "dataset_info.json" in refused(data)


def test_shapes_are_bounded(data: Path) -> None:
    path = data / "features.json"
    features = json.loads(path.read_text())
    steps = features["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
    steps["observation"]["featuresDict"]["features"]["state"]["tensor"]["shape"] = {"dimensions": [str(10**12)]}
    path.write_text(json.dumps(features))
    said = refused(data)
    assert "observation/state: float32(1000000000000) is too large: the limit for a step is 256 MiB" in said


def test_texts_are_copied_in_any_encoding(data: Path, tmp_path: Path) -> None:
    """They are licenses and class names, which are not parsed."""
    texts = {"LICENSE": b"Universit\xe4t\n", "language.labels.txt": b"pick\n\xff\n"}
    for name, content in texts.items():
        (data / name).write_bytes(content)
    assert open_source(str(data)).episodes == 3
    for _ in range(2):  # the second time, it is already finished
        export(data, tmp_path / "out", "rlds")
    (made,) = {path.parent for path in (tmp_path / "out").rglob("features.json")}
    assert {name: (made / name).read_bytes() for name in texts} == texts


YAML = {
    "not UTF-8": (b"- A: {x: \xff}", "is not UTF-8"),
    "deep": (b"[" * 5000 + b"]" * 5000, "nested too deeply"),
    "digits": (b"- DropFields: {fields: " + LONG.encode() + b"}", "not valid YAML: Exceeds the limit"),
    "a date": (b"- DropFields: {fields: 2020-99-99}", "not valid YAML: month must be"),
}


@pytest.mark.parametrize("kind", YAML)
def test_yaml(tmp_path: Path, kind: str) -> None:
    content, said = YAML[kind]
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=said) as error:
        load(str(path))
    assert "c.yaml" in str(error.value)


def test_valid_json_and_yaml() -> None:
    assert parse_json(b'{"a": [1, "\\ud83d\\ude00", NaN]}', "x")["a"][:2] == [1, "\U0001f600"]
    assert parse_yaml("a: [1, {b: c}]", "x") == {"a": [1, {"b": "c"}]}
    assert parse_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}", "x")["b"] == {"x": 3, "y": 2}  # not a key twice
    with pytest.raises(UsageError, match="surrogates not allowed"):
        parse_json('"\\ud800"', "x")
