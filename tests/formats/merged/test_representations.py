"""Datasets whose values are represented differently: marked, refused with the connectors that correct it, or noted."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlds_beam.cli.main import main
from rlds_beam.connectors.configuration import parse
from rlds_beam.episodes.representations import Representation
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import UsageError
from rlds_beam.formats.format_options import MergeOptions
from rlds_beam.formats.inputs import open_source
from rlds_beam.formats.merged.representations import (
    RepresentationsDifferError,
    merge_representations,
    propose_conversions,
)
from rlds_beam.testing import make_episode, write_dataset

AXIS, EULER = Representation(((3, "axis_angle"),)), Representation(((3, "euler_xyz"),))
HAND = Representation(((3, "6d"),), "state", "hand", (9,))
BASE = Representation(((3, "6d"),), "state", "base", (9,))
PREVIOUS = Representation((), "previous")


@pytest.mark.parametrize(
    ("own", "wanted", "expected"),
    [
        (AXIS, AXIS, []),
        (None, AXIS, []),
        (AXIS, EULER, ["ConvertRotation: {field: action, from: axis_angle, to: euler_xyz, at: 3}"]),
        (
            Representation(((3, "6d"), (13, "6d"))),
            Representation(((3, "axis_angle"), (10, "axis_angle"))),
            ["ConvertRotation: {field: action, from: 6d, to: axis_angle, at: [3, 13]}"],
        ),
        (
            Representation(((0, "6d"), (7, "matrix"))),
            Representation(((0, "axis_angle"), (4, "euler_xyz"))),
            [
                "ConvertRotation: {field: action, from: matrix, to: euler_xyz, at: 7}",
                "ConvertRotation: {field: action, from: 6d, to: axis_angle, at: 0}",
            ],
        ),
        (PREVIOUS, Representation((), "state"), ["AbsoluteActions: {to: previous}", "RelativeActions: {to: state}"]),
        (PREVIOUS, EULER, []),
        (
            HAND,
            BASE,
            [
                "AbsoluteActions: {to: state, absolute: [9], rotation: 6d, at: 3, frame: hand, position: 0}",
                "RelativeActions: {to: state, absolute: [9], rotation: 6d, at: 3, frame: base}",
            ],
        ),
    ],
)
def test_the_connectors_that_correct_it(own: Any, wanted: Any, expected: list[str]) -> None:
    assert propose_conversions("action", own, wanted) == expected
    for entry in expected:
        ((name, arguments),) = yaml.safe_load(entry).items()
        parse([{name: arguments}], "test")


def fields(*known: Representation | None) -> list[Field]:
    return [Field("action", "float32", (10,)).with_representation(own) for own in known]


def test_what_all_say_is_kept() -> None:
    assert merge_representations(fields(BASE, BASE), [None, None]) == BASE
    assert merge_representations(fields(None, None), [None, None]) is None
    assert merge_representations(fields(BASE, None), [None, None]) is None
    six = Representation(((3, "6d"),))
    assert merge_representations(fields(BASE, six), [None, None]) == six
    assert merge_representations(fields(six, BASE), [None, None]) == six
    moved, order = Representation(((0, "6d"),)), (9, 8, 7, 0, 1, 2, 3, 4, 5, 6)
    assert merge_representations(fields(six, moved), [None, order]) == six
    padded = (*range(10), -1)
    grown = Representation(((3, "6d"),), "state", "base", (9, 10))
    longer = Field("action", "float32", (11,)).with_representation(grown)
    assert merge_representations([*fields(BASE), longer], [padded, None]) == grown
    with pytest.raises(RepresentationsDifferError):
        merge_representations(fields(six, moved), [None, None])
    other = Representation(((3, "6d"),), "state", "base", (0, 9))
    with pytest.raises(RepresentationsDifferError):
        merge_representations(fields(BASE, other), [None, None])


def arm(path: Path, known: Representation | None, seed: int = 0) -> str:
    episodes = [make_episode(6 + i, seed=seed + i, observation={"state": 7}, action=7) for i in range(3)]
    data = write_dataset(path, episodes, name=path.name)
    said = {"fps": 10} | ({"representation": {"action": known.to_json()}} if known else {})
    (data / "meaning.json").write_text(json.dumps(said))
    return str(data)


def open_merged(*paths: str, fields: str = "same") -> Any:
    return open_source(list(paths), options=MergeOptions(merge_fields=fields))


def test_different_representations_are_refused_with_the_line_that_corrects_it(tmp_path: Path) -> None:
    one, other = arm(tmp_path / "one", AXIS), arm(tmp_path / "other", EULER, seed=9)
    with pytest.raises(UsageError, match=r"action: rotation axis_angle at 3 in one.*euler_xyz at 3 in other") as error:
        open_merged(one, other)
    line = "- ConvertRotation: {field: action, from: euler_xyz, to: axis_angle, at: 3}"
    assert f"give other/1.0.0 the connectors {line}" in str(error.value)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert main(["inspect", one, other]) == 0
    shown = output.getvalue()
    assert line in shown
    (row,) = (i for i, text in enumerate(shown.splitlines()) if text.startswith("# *  action"))
    assert "rotation axis_angle at 3" in shown.splitlines()[row + 1]
    (tmp_path / "fields.yaml").write_text(shown)
    merged = open_merged(one, other, fields=str(tmp_path / "fields.yaml"))
    assert dict(merged.schema.representations) == {"action": AXIS}


def test_what_one_does_not_say_is_noted(tmp_path: Path) -> None:
    one, other = arm(tmp_path / "one", AXIS), arm(tmp_path / "other", None, seed=9)
    merged = open_merged(one, other)
    assert not merged.schema.representations
    assert any("the representation is left out, because it is unknown in some: action" in note for note in merged.notes)
    same = open_merged(one, arm(tmp_path / "same", AXIS, seed=9))
    assert dict(same.schema.representations) == {"action": AXIS}
    assert not any("representation" in note for note in same.notes)


def test_rotations_at_other_places_are_refused(tmp_path: Path) -> None:
    one, other = arm(tmp_path / "one", AXIS), arm(tmp_path / "other", Representation(((0, "axis_angle"),)), seed=9)
    with pytest.raises(UsageError, match=r"action: .*ArrangeDimensions puts values in another order"):
        open_merged(one, other)
