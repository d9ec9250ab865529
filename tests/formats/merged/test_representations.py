"""Datasets whose values are represented differently: marked, refused with the connectors that correct it, or noted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlds_beam.episodes.representations import Representation
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import UsageError
from rlds_beam.formats.format_options import MergeOptions
from rlds_beam.formats.inputs import open_source
from rlds_beam.formats.merged.schemas import DatasetsDifferError, merge_representations
from rlds_beam.testing import make_episode, write_dataset

AXIS, EULER = Representation(((3, "axis_angle"),)), Representation(((3, "euler_xyz"),))
BASE = Representation(((3, "6d"),), "state", "base", (9,))


def fields(*known: Representation | None) -> list[Field]:
    return [Field("action", "float32", (10,)).with_representation(own) for own in known]


def test_what_all_say_is_kept() -> None:
    assert merge_representations(fields(BASE, BASE)) == BASE
    assert merge_representations(fields(None, None)) is None
    six = Representation(((3, "6d"),))
    assert merge_representations(fields(six, None)) is None
    unknown = Representation((), "unknown", None, (9,))
    assert merge_representations(fields(BASE, unknown)) == unknown
    moved, other = Representation(((0, "6d"),)), Representation(((3, "6d"),), "state", "base", (0, 9))
    for absolute in (None, six):
        for pair in (fields(BASE, absolute), fields(absolute, BASE), fields(unknown, absolute)):
            with pytest.raises(DatasetsDifferError):
                merge_representations(pair)
    for pair in (fields(six, moved), fields(BASE, other)):
        with pytest.raises(DatasetsDifferError):
            merge_representations(pair)


def arm(path: Path, known: Representation | None, seed: int = 0) -> str:
    episodes = [make_episode(6 + i, seed=seed + i, observation={"state": 7}, action=7) for i in range(3)]
    data = write_dataset(path, episodes, name=path.name)
    said = {"fps": 10} | ({"representation": {"action": known.to_json()}} if known else {})
    (data / "meaning.json").write_text(json.dumps(said))
    return str(data)


def open_merged(*paths: str, fields: str | None = None) -> Any:
    return open_source(list(paths), options=MergeOptions(merge_fields=fields))


def test_different_representations_are_refused_until_they_are_converted(tmp_path: Path) -> None:
    one, other = arm(tmp_path / "one", AXIS), arm(tmp_path / "other", EULER, seed=9)
    with pytest.raises(UsageError, match=r"action: rotation axis_angle at 3 in one.*euler_xyz at 3 in other") as error:
        open_merged(one, other)
    assert "ConvertRotation converts rotations" in str(error.value)
    turn = {"ConvertRotation": {"field": "action", "from": "euler_xyz", "to": "axis_angle", "at": 3}}
    (tmp_path / "fields.json").write_text(json.dumps({"inputs": [{}, {"connectors": [turn]}]}))
    merged = open_merged(one, other, fields=str(tmp_path / "fields.json"))
    assert dict(merged.schema.representations) == {"action": AXIS}


def test_what_one_does_not_say_is_noted(tmp_path: Path) -> None:
    one, other = arm(tmp_path / "one", AXIS), arm(tmp_path / "other", None, seed=9)
    merged = open_merged(one, other)
    assert not merged.schema.representations
    assert any(note.startswith("rotations are left out") and note.endswith(": action") for note in merged.details.notes)
    same = open_merged(one, arm(tmp_path / "same", AXIS, seed=9))
    assert dict(same.schema.representations) == {"action": AXIS}
    assert not any("rotations" in note for note in same.details.notes)


@pytest.mark.parametrize("absolute", [(), ("x", "y", "z", "roll", "pitch", "yaw", "gripper")])
def test_differences_do_not_merge_with_other_actions(absolute: tuple[str, ...], tmp_path: Path) -> None:
    one, other = arm(tmp_path / "one", None), arm(tmp_path / "other", None, seed=9)
    deltas = (*(f"delta_{name}" for name in ("x", "y", "z", "roll", "pitch", "yaw")), "gripper")
    for path, names in ((one, deltas), (other, absolute)):
        Path(path, "meaning.json").write_text(json.dumps({"fps": 10, "names": {"action": names} if names else {}}))
    with pytest.raises(UsageError, match=r"action: relative_to unknown.*in one/1.0.0, unknown in .*ArrangeDimensions"):
        open_merged(one, other)
    if not absolute:
        named = {"ArrangeDimensions": {"field": "action", "order": [*range(7)], "names": [*deltas]}}
        mapping = {"inputs": [{}, {"connectors": [named]}]}
        (tmp_path / "fields.json").write_text(json.dumps(mapping))
        assert open_merged(one, other, fields=str(tmp_path / "fields.json")).schema.names["action"] == deltas


def test_rotations_at_other_places_are_refused(tmp_path: Path) -> None:
    one, other = arm(tmp_path / "one", AXIS), arm(tmp_path / "other", Representation(((0, "axis_angle"),)), seed=9)
    with pytest.raises(UsageError, match=r"action: .*ArrangeDimensions puts values in another order"):
        open_merged(one, other)
