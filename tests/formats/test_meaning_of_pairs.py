"""The names of dimensions, the rate, and the robot survive a conversion between any two formats that hold them."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from exchanging import export

import rlds_beam
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import UsageError
from rlds_beam.formats.rlds.source import known_meaning
from rlds_beam.reading.base import Source
from rlds_beam.reading.meaning import Meaning
from rlds_beam.testing import make_episode, write_dataset

FORMATS: dict[str, dict[str, Any]] = {
    "rlds": {},
    "lerobot": {},
    "zarr": {},
    "numpy": {},
    "minari": {},
    "d3rlpy": {},
    "trajectories": {"items": "frames"},
}
"""The formats that hold all of these, with the options that keep whole episodes."""

JOINTS = ("shoulder", "elbow", "gripper")
VECTORS = {"action": JOINTS, "observation/state": JOINTS}


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An RLDS dataset with names, a rate, and a robot."""
    directory = tmp_path_factory.mktemp("named")
    episodes = [make_episode(6, seed=i, observation={"state": 3}, action=3) for i in range(2)]
    path = write_dataset(directory / "arm", episodes)
    (Path(path) / "meaning.json").write_text(json.dumps({"fps": 30, "robot": "arm", "names": VECTORS}))
    return str(path)


def known(source: Source) -> tuple[Any, ...]:
    return source.fps, source.robot, {path: field.names for path, field in source.schema.steps.items() if field.names}


def convert(source: str, directory: Path, to: str, from_: str | None = None) -> str:
    export(source, directory, to, from_=from_, **FORMATS[to])
    return str(directory)


@pytest.fixture(scope="module")
def first(request: pytest.FixtureRequest, named: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The dataset in one format: (its path, the format)."""
    if request.param in ("minari", "d3rlpy"):
        pytest.importorskip("h5py")
    return convert(named, tmp_path_factory.mktemp("first") / request.param, request.param), request.param


@pytest.mark.parametrize("second", FORMATS)
@pytest.mark.parametrize("first", FORMATS, indirect=True)
def test_what_two_formats_hold_is_equal_after_the_trip(first: tuple[str, str], tmp_path: Path, second: str) -> None:
    """With each pair in both orders, a trip there and back is two of these."""
    if second in ("minari", "d3rlpy"):
        pytest.importorskip("h5py")
    there, kind = first
    over = convert(there, tmp_path / "second", second, kind)
    for path, held in ((there, kind), (over, second)):
        assert known(rlds_beam.open_source(path, from_=held)) == (30, "arm", VECTORS), (path, held)


HOSTILE = [
    {"names": {"action": ["x"]}},
    {"names": {"action": ["x" * 10_000_000, "y", "z"]}},
    {"names": {"action": ["\x1b[31m", "y", "z"]}},
    {"robot": "\x1b[31m"},
    {"robot": "x" * 10_000_000},
    {"fps": 1e30},
    {"fps": "30"},
    {"names": 7},
    [],
]


@pytest.mark.parametrize("content", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_content_is_refused_in_one_short_line(content: Any) -> None:
    schema = Schema({"action": Field("action", "float32", (3,))})
    with pytest.raises(UsageError) as error:
        Meaning.from_json(content, "meaning.json").name(schema)
    assert len(str(error.value)) < 400
    assert str(error.value).isprintable()


def test_names_that_cannot_be_shown_are_not_names() -> None:
    field = Field("action", "float32", (2,))
    assert field.with_names(["x", "y"]).names == ("x", "y")
    assert field.with_names(["x", "\n"]).names == field.with_names(["x", "y" * 1000]).names == ()


def test_open_x_datasets_have_their_known_rate_and_robot(tmp_path: Path) -> None:
    path = write_dataset(
        tmp_path / "bridge_dataset", [make_episode(3, observation={"state": 7}, action=7)], name="bridge_dataset"
    )
    source = rlds_beam.open_source(path)
    assert (source.fps, source.robot) == (5, "WidowX")
    names = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
    assert source.schema.steps["observation/state"].names == names
    assert source.schema.steps["action"].names == (*(f"delta_{name}" for name in names[:6]), "gripper")
    assert "those known for bridge_dataset" in str(rlds_beam.inspect(path))


@pytest.mark.parametrize(
    ("name", "differences"),
    [
        ("bridge_orig", 6),
        ("libero_10_no_noops", 6),
        ("austin_sailor_dataset_converted_externally_to_rlds", 6),
        ("nyu_rot_dataset_converted_externally_to_rlds", 3),
        ("toto", 0),
    ],
)
def test_open_x_datasets_say_which_actions_are_differences(name: str, differences: int) -> None:
    meaning = known_meaning(name, Schema({"action": Field("action", "float32", (7,))}))
    assert meaning is not None
    names = meaning.names.get("action", ())
    assert sum(name.startswith("delta_") for name in names) == differences


def test_the_parts_of_an_rt_1_action_are_differences() -> None:
    parts = ("action/world_vector", "action/rotation_delta", "action/gripper_closedness_action")
    meaning = known_meaning("fractal20220817_data", Schema({path: Field(path, "float32", (3,)) for path in parts}))
    assert meaning is not None
    assert meaning.names == {
        "action/world_vector": ("delta_x", "delta_y", "delta_z"),
        "action/rotation_delta": ("delta_roll", "delta_pitch", "delta_yaw"),
    }


def test_a_layout_that_does_not_fit_gives_no_names() -> None:
    schema = Schema({"action": Field("action", "float32", (8,))})
    assert known_meaning("bridge_orig", schema) == Meaning(5, "WidowX")
    assert known_meaning("nyu_rot_dataset_converted_externally_to_rlds", schema) == Meaning(3, "xArm")
    assert known_meaning("toy", schema) is None


PAGE = (ROOT / "docs" / "reference" / "meaning.md").read_text()
ROWS = {line.split(" | ")[0].removeprefix("| "): line for line in PAGE.splitlines() if line.startswith("| ")}
ROWS.pop("dataset")


@pytest.fixture(scope="module")
def table() -> Any:
    """docs/meaning_table.py."""
    for package in ("h5py", "rosbags", "mcap", "pyarrow"):
        pytest.importorskip(package)
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        return importlib.import_module("meaning_table")
    finally:
        sys.path.remove(str(ROOT / "docs"))


@pytest.mark.parametrize("title", ROWS)
def test_each_row_of_the_page_is_up_to_date(table: Any, title: str, tmp_path: Path) -> None:
    if title == table.BRIDGE_TITLE and not table.BRIDGE.exists():
        pytest.skip("no real data; set $RLDS_BEAM_REAL_DATA to their path")
    assert table.make_row(title, tmp_path) == f"{ROWS[title]}\n", "run python docs/meaning_table.py"
