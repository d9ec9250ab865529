"""Representations of vectors: values, JSON, and what is no representation."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam.episodes.representations import ROTATIONS, Dimension, Representation, value_names
from rlds_beam.episodes.schema import Field, describe_type

SIX = Representation(((3, "6d"),), "state", "base", (9,))


@st.composite
def vectors(draw: st.DrawFn) -> tuple[int, Representation]:
    """The size of a vector, and how it is represented."""
    rotations, size = [], 0
    for name in draw(st.lists(st.sampled_from([*ROTATIONS, "euler_xyz", "euler_ZYX_degrees"]), max_size=3)):
        start = size + draw(st.integers(0, 3))
        rotations.append((start, name))
        size = start + len(value_names(name))
    size += draw(st.integers(1, 3))
    relative_to = draw(st.sampled_from([None, "state", "previous"] if rotations else ["state", "previous"]))
    if relative_to is None:
        return size, Representation(tuple(rotations))
    absolute = draw(st.sets(st.integers(0, size - 1), max_size=size - 1))
    frame = draw(st.sampled_from([None, "base", "hand"]))
    return size, Representation(tuple(rotations), relative_to, frame, tuple(sorted(absolute)))


@given(vectors())
def test_values_and_json_round_trip(vector):
    size, known = vector
    assert known.fits(size) and Representation.join(known.split(size, "action")) == known
    assert Representation.from_json(json.loads(json.dumps(known.to_json()))) == known
    field = Field("action", "float32", (size,)).with_representation(known)
    assert field.representation == known and str(known) in describe_type(field)


def test_the_stored_form_has_the_words_of_the_connectors():
    assert SIX.to_json() == {"rotation": {"6d": [3]}, "relative_to": "state", "frame": "base", "absolute": [9]}
    assert str(SIX) == "rotation 6d at 3, relative_to state, frame base, absolute 9"
    two = Representation(((0, "axis_angle"), (7, "axis_angle"), (14, "matrix")))
    assert str(two) == "rotation axis_angle at 0 7, rotation matrix at 14"


def test_parts_and_other_orders_are_not_rotations():
    values = SIX.split(10, "action")
    assert Representation.join(values[:9]) == Representation(((3, "6d"),), "state", "base")
    assert Representation.join(values[3:9]) == Representation(((0, "6d"),), "state", "base")
    assert Representation.join(values[3:8]) == Representation((), "state", "base")
    assert Representation.join([*reversed(values)]) == Representation((), "state", "base", (0,))
    assert Representation.join([Dimension()] * 3) is None and Representation.join([]) is None
    other = Representation((), "previous").split(2, "action")
    assert Representation.join([*values, *other]) == Representation(((3, "6d"),))  # two references: unknown
    turned = Representation(((0, "axis_angle"), (3, "axis_angle"))).split(6, "action")
    mixed = Representation.join([*turned[:2], turned[5], *turned[3:5], turned[2]])
    assert mixed is None


HOSTILE = [
    None,
    [],
    "6d",
    {},
    {"rotation": []},
    {"rotation": {"6d": 3}},
    {"rotation": {"6d": [-1]}},
    {"rotation": {"6d": [True]}},
    {"rotation": {"6d": [3, 3]}},
    {"rotation": {"6d": []}},
    {"rotation": {"euler_xxy": [0]}},
    {"rotation": {"no" * 10_000: [0]}},
    {"rotation": {"6d": [0]}, "frame": "base"},
    {"rotation": {"6d": [0]}, "absolute": [0]},
    {"relative_to": "state", "frame": {}},
    {"relative_to": ["state"]},
    {"relative_to": "state", "absolute": {"0": 1}},
    {"relative_to": "state", "absolute": [2, 1]},
    {"relative_to": "state", "absolute": list(range(1 << 17))},
]


@pytest.mark.parametrize("content", HOSTILE, ids=lambda content: str(content)[:40])
def test_what_is_no_representation(content):
    assert Representation.from_json(content) is None


@pytest.mark.parametrize(
    ("dtype", "shape", "known"),
    [
        ("float32", (8,), SIX),
        ("float32", (9,), SIX),
        ("float32", (None,), SIX),
        ("float32", (10, 10), SIX),
        ("int32", (10,), SIX),
        ("float32", (10**6,), Representation(((10**9, "6d"),))),
        ("float32", (20,), Representation(((0, "matrix"), (8, "6d")))),
    ],
)
def test_a_field_that_it_does_not_fit_has_none(dtype, shape, known):
    assert Field("action", dtype, shape).with_representation(known).representation is None
