"""Types as bags define them, and values in their messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("rosbags")

from rlds_beam.errors import UsageError
from rlds_beam.formats.ros2.bags import Topic
from rlds_beam.formats.ros2.messages import MessageType, message_type

RULE = "=" * 80 + "\n"


def type_of(definition: str, language: str = "ros2msg") -> MessageType:
    return message_type(Topic("/x", "a/msg/T0", definition, language))


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ("string[10000000] x\n", "has 10,000,000 fields"),
        ("uint8 a\n" * 30_000, "has 240,000 characters|has 30,000 fields"),
        ("# x\n" * 100_000, "has 400,000 characters"),
        ("T0 first\n", "cannot be read: RecursionError"),
        ("a/Unknown first\n", "cannot be read: KeyError"),
        ("import os\n", "cannot be read"),
        ("float64 a'); exit(1)\n", "cannot be read"),
        ("", "a/msg/T0 is unknown"),
    ],
)
def test_absurd_types(definition: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        type_of(definition).find("first")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("t1.g", "a/msg/T1 has no field g"),
        ("t1", "t1 is a a/msg/T1; name what to take of it: t1.f0, t1.f1"),
        ("many", r"many cannot be read; of a list of messages, name one: many\[0\]"),
        ("number[0]", "number is not a list"),
        ("number.x", "x is not in a message"),
        ("a b", "is not the path of a field"),
    ],
)
def test_wrong_paths(path: str, said: str) -> None:
    kind = type_of(f"T1 t1\nT1[] many\nfloat64 number\n{RULE}MSG: a/T1\nstring f0\nint32 f1\n")
    with pytest.raises(UsageError, match=f"/x: .*{said}"):
        kind.find(path)


def test_a_message_of_numbers_is_a_vector() -> None:
    kind = type_of(f"T1 t1\n{RULE}MSG: a/T1\nfloat32 x\nfloat32[2] y\n")
    message = kind.decode(b"\0\1\0\0" + np.array([1, 2, 3], "<f4").tobytes())
    value = kind.find("t1").read(message)
    assert value.tolist() == [1, 2, 3] and value.dtype == np.float32


BASES = ["bool", "uint8", "int16", "uint16", "int32", "int64", "float32", "float64", "string"]
FORMS = ["", "[]", "[1]", "[3]", "[<=5]"]


@st.composite
def definitions(draw: Any) -> list[list[tuple[str, str]]]:
    """Types, each of fields (type, form) that are bases or the types after it."""
    count = draw(st.integers(1, 4))
    types = []
    for i in range(count):
        names = st.sampled_from([*BASES, *(f"T{j}" for j in range(i + 1, count))])
        types.append(draw(st.lists(st.tuples(names, st.sampled_from(FORMS)), min_size=1, max_size=5)))
    return types


@settings(max_examples=60, deadline=None)
@given(definitions(), st.randoms(use_true_random=False), st.booleans())
def test_every_value_of_any_type(types: list[list[tuple[str, str]]], random: Any, little: bool) -> None:
    """Against what rosbags wrote: each field of the first type, and of the messages in it."""
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    texts = ["".join(f"{kind}{form} f{i}\n" for i, (kind, form) in enumerate(fields)) for fields in types]
    text = texts[0] + "".join(f"{RULE}MSG: a/T{i}\n{text}" for i, text in enumerate(texts[1:], 1))
    store = get_typestore(Stores.EMPTY)
    store.register(get_types_from_msg(text, "a/msg/T0"))

    def value(kind: str, form: str) -> Any:
        if form:
            count = random.randint(0, 4) if form in ("[]", "[<=5]") else int(form[1:-1])
            values = [value(kind, "") for _ in range(count)]
            return values if kind == "string" or kind[0] == "T" else np.array(values, kind)
        if kind[0] == "T":
            made = [value(*field) for field in types[int(kind[1:])]]
            return store.types[f"a/msg/{kind}"](*made)
        return "x" * random.randint(0, 9) if kind == "string" else np.dtype(kind).type(random.randint(0, 1))

    whole = value("T0", "")
    read_type = type_of(text)
    message = read_type.decode(bytes(store.serialize_cdr(whole, "a/msg/T0", little_endian=little)))

    def check(sent: Any, kind: str, path: str) -> None:
        for i, (inner, form) in enumerate(types[int(kind[1:])]):
            here, expected = f"{path}f{i}", getattr(sent, f"f{i}")
            if inner[0] != "T":
                got = read_type.find(here).read(message)
                if inner == "string":
                    expected = [one.encode() for one in expected] if form else expected.encode()
                    assert got == expected
                else:
                    np.testing.assert_array_equal(got, expected)
                    assert got.dtype == inner
            else:
                for j, one in enumerate(expected if form else [expected]):
                    check(one, inner, f"{here}[{j}]." if form else f"{here}.")

    check(whole, "T0", "")


GENERATED = r"""// generated from rosidl_adapter/resource/msg.idl.em
// with input from a/msg/T0.msg

module a {
  module msg {
    typedef double double__36[36];
    module T0_Constants {
      @verbatim (language="comment", text=
        "A constant." "\n"
        "(one \"of\" two) // * << (")
      const int32 N = -1;
      const string S = "a (b) // c";
    };
    @verbatim (language="comment", text="The covariance (row-major)")
    struct T0 {
      @default (value="x (y")
      @unit (value="m/s^2")
      string<5> frame;
      double__36 covariance;
      sequence<double, 4> last;
    };
  };
};
"""


def test_generated_idl() -> None:
    assert type_of(GENERATED, "ros2idl").find("covariance").dtype == "float64"
    assert type_of(GENERATED, "ros2idl").find("frame").dtype == "string"
