"""Types as bags define them, and values in their messages."""

from __future__ import annotations

import numpy as np
import pytest

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
        ("a b", "a/msg/T0 has no field a b; it has t1, many, number"),
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
