"""Types: as bags define them, and values in their messages. The texts of definitions are untrusted."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("rosbags")
from ros2_bags import opened

from rlds_beam.errors import NeedsMappingError, UsageError
from rlds_beam.formats.ros2.cdr import BadMessage, Reader
from rlds_beam.formats.ros2.messages import Topic, find_definitions
from rlds_beam.formats.ros2.source import Ros2Source

RULE = "=" * 80 + "\n"
MAPPING = "reference: /x\nfields: {observation/x: {topic: /x, field: last}}"


def reader_of(definition: str, kind: str = "a/msg/Top", language: str = "ros2msg") -> Reader:
    return Reader(find_definitions([Topic("/x", kind, 1, definition, language)], "", ""))


def chain(levels: int, leaf: str, field: str = "") -> str:
    """A type with two of the next type, and so on: skipping them one by one takes 2^levels steps."""
    types = [f"a/A{i + 1} a\na/A{i + 1}{field} b\n" for i in range(levels)] + [f"{leaf}\n"]
    return "a/A0 first\nfloat64 last\n" + "".join(f"{RULE}MSG: a/A{i}\n{text}" for i, text in enumerate(types))


def test_events_of_a_service() -> None:
    """rosbag2 stores the text of the service as the definition of its events."""
    topic = Topic("/add/_service_event", "example/srv/Add_Event", 1, "int64 a\nint64 b\n---\nint64 sum\n", "ros2msg")
    reader = Reader(find_definitions([topic], "", ""))
    assert reader.find(topic.type, "request[0].a").dtype == "int64"
    assert reader.find(topic.type, "info.event_type").dtype == "uint8"
    nothing = topic._replace(definition="---\nbool success\n")
    assert Reader(find_definitions([nothing], "", "")).find(topic.type, "response[0].success").dtype == "bool"
    only_a_comment = topic._replace(definition="# nothing\n\n---\nbool success\n")
    assert Reader(find_definitions([only_a_comment], "", "")).find(topic.type, "request[0]").dtype == "uint8"


@pytest.mark.parametrize(
    ("definition", "size"),
    [
        (chain(31, "uint8[0] x"), 0),
        (chain(31, ""), 0),
        (chain(31, "", "[4000000000]"), 0),
        ("E[4000000000] x\nE[] y\nfloat64 last\n" + RULE + "MSG: a/E\n", 4),
        ("E[0] x\nfloat64 last\n" + RULE + "MSG: a/E\nstring a\n", 0),
    ],
)
def test_values_of_no_bytes(definition: str, size: int) -> None:
    reader = reader_of(definition)
    message = memoryview(b"\0\1\0\0" + bytes(-size % 8 + size) + struct.pack("<d", 7))
    assert reader.read(reader.find("a/msg/Top", "last"), message) == 7


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        (chain(31, "uint8 x"), "ends early"),
        (chain(31, "string x"), "more than 300,000 texts"),
        (chain(20, "uint8[] x"), "more than 300,000 texts"),
        ("string[4000000000] x\nfloat64 last\n", "more than 300,000 texts"),
        ("float64[4000000000] last\n", "ends early"),
    ],
)
def test_values_that_a_message_has_no_bytes_for(definition: str, said: str) -> None:
    reader = reader_of(definition)
    with pytest.raises(BadMessage, match=said):
        reader.read(reader.find("a/msg/Top", "last"), memoryview(b"\0\1\0\0" + bytes(2 << 20)))


def test_numbers_of_a_nested_type() -> None:
    """A value of many messages that have no numbers is found, and read, at once."""
    reader = reader_of(chain(31, "uint8[0] x"))
    path = reader.find("a/msg/Top", "first")
    assert path.dtype == "uint8" and len(reader.read(path, memoryview(b"\0\1\0\0"))) == 0
    reader = reader_of(chain(31, "uint8 x"))
    with pytest.raises(BadMessage, match="ends early"):
        reader.read(reader.find("a/msg/Top", "first"), memoryview(b"\0\1\0\0" + bytes(100)))


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        (chain(40, "uint8 x"), "nested more than 32 levels deep"),
        (chain(5000, "uint8 x"), "nested more than 32 levels deep|characters without its comments"),
        ("Top first\nfloat64 last\n", "a/msg/Top is nested more than 32 levels deep"),
        ("Top[] first\nfloat64 last\n", "a/msg/Top is nested more than 32 levels deep"),
        ("uint8[-8] first\nfloat64 last\n", "has -8 elements"),
        ("uint8[99999999999] first\nfloat64 last\n", "has 99999999999 elements"),
        ("uint8 a\n" * 20_000 + "float64 last\n", "has 160,013 characters without its comments"),
        ("#" * (1 << 20) + "\nfloat64 last\n", "has 1,048,590 characters"),
    ],
)
def test_absurd_types(definition: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        reader_of(definition).find("a/msg/Top", "last")


def test_all_definitions_of_a_bag() -> None:
    topics = [Topic(f"/{i}", f"a/msg/T{i}", 1, "uint8 a\n" * 8_000, "ros2msg") for i in range(5)]
    with pytest.raises(UsageError, match="more than 262,144 characters"):
        find_definitions(topics, "", "")


def test_comments_take_no_time() -> None:
    reader = reader_of("# a comment\n\n" * 70_000 + "float64 last # here\n")
    assert reader.find("a/msg/Top", "last").dtype == "float64"


IDL = "module a {{ module msg {{ const uint32 N = {}; struct Top {{ double last[N]; }}; }}; }};"


@pytest.mark.parametrize("value", ["((((((((1))))))))", "1<<99999999999", "9 * 9", "/* */ (1)"])
def test_values_that_idl_computes(value: str) -> None:
    with pytest.raises(UsageError, match="computes a value"):
        reader_of(IDL.format(value), language="ros2idl")


@pytest.mark.parametrize("value", ["3", "1 + 2", "3 /* (((( */", "3; // ((((\n const uint32 M = 1"])
def test_idl_with_comments_and_annotations(value: str) -> None:
    annotation = '@verbatim (language="comment", text="a (b) \\" * << c" "d")\n@default (value=3.0)\n@key '
    text = IDL.format(value).replace("double", f"{annotation} double")
    path = reader_of(text, language="ros2idl").find("a/msg/Top", "last")
    assert (path.dtype, path.length) == ("float64", 3)


@pytest.mark.parametrize("text", ["/*", '"\\', '@a("', "@a(", '"', "/*\n", "-", "module a {", '@a("(@b("'])
def test_idl_that_repeats_an_opening(text: str) -> None:
    with pytest.raises(UsageError, match="definition of a/msg/Top"):
        reader_of(text * (100_000 // len(text)), language="ros2idl")


def write(path: Path, definition: str, name: str, data: bytes) -> Path:
    """A file with ten messages of a type."""
    if path.suffix == ".db3":
        from rosbags.rosbag2 import StoragePlugin, Writer

        writer = Writer(path.parent / "bag", version=9, storage_plugin=StoragePlugin.SQLITE3)
        with writer:
            topic = writer.add_connection("/x", name, msgdef=definition, rihs01="RIHS01_" + "0" * 64)
            for i in range(10):
                writer.write(topic, 10**18 + i * 10**8, data)
        (file,) = (path.parent / "bag").glob("*.db3")
        return file
    from mcap.writer import CompressionType
    from mcap.writer import Writer as McapWriter

    with path.open("wb") as file_:
        mcap = McapWriter(file_, compression=CompressionType.NONE)
        mcap.start("ros2")
        channel = mcap.register_channel("/x", "cdr", mcap.register_schema(name, "ros2msg", definition.encode()))
        for i in range(10):
            mcap.add_message(channel, 10**18 + i * 10**8, data, 10**18 + i * 10**8)
        mcap.finish()
    return path


@pytest.mark.parametrize("name", ["a.mcap", "a.db3"])
def test_a_bag_whose_types_are_nested(tmp_path: Path, name: str) -> None:
    """With a mapping, and without one: `inspect` looks at joint states to propose one."""
    bag = write(tmp_path / name, chain(31, "uint8[0] x"), "a/msg/Top", b"\0\1\0\0" + struct.pack("<d", 7))
    assert opened(bag, MAPPING).schema.steps["observation/x"].dtype == "float64"
    (tmp_path / "b").mkdir()
    definition = chain(31, "uint8[0] x").replace("float64 last", "string[] name\nfloat64[] position")
    data = b"\0\1\0\0" + struct.pack("<II2sxxI", 1, 2, b"q", 0)
    bag = write(tmp_path / "b" / name, definition, "sensor_msgs/msg/JointState", data)
    with pytest.raises(NeedsMappingError) as error:
        Ros2Source.open(str(bag))
    assert 'names: ["q"]' in error.value.propose()


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


@settings(max_examples=150, deadline=None)
@given(definitions(), st.randoms(use_true_random=False), st.booleans())
def test_every_value_of_any_type(types: list[list[tuple[str, str]]], random: Any, little: bool) -> None:
    """Against rosbags: each field of the first type, and of the messages in it, behind all that is before it."""
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
    data = memoryview(store.serialize_cdr(whole, "a/msg/T0", little_endian=little))
    reader = reader_of(text, "a/msg/T0")

    def check(message: Any, kind: str, path: str) -> None:
        for i, (inner, form) in enumerate(types[int(kind[1:])]):
            here, expected = f"{path}f{i}", getattr(message, f"f{i}")
            if inner[0] != "T":
                got = reader.read(reader.find("a/msg/T0", here), data)
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
// with input from a/msg/Top.msg

#include "builtin_interfaces/msg/Time.idl"

module a {
  module msg {
    typedef double double__36[36];
    module Top_Constants {
      @verbatim (language="comment", text=
        "A constant." "\n"
        "(one \"of\" two) // * << (")
      const int32 N = -1;
      const string S = "a (b) // c";
    };
    @verbatim (language="comment", text="The covariance (row-major)")
    struct Top {
      builtin_interfaces::msg::Time stamp;

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
    """As rosbags reads it with its comments and annotations; it does not read includes."""
    from rosbags.typesys import get_types_from_idl

    types = get_types_from_idl(GENERATED.replace('#include "builtin_interfaces/msg/Time.idl"', ""))
    known = find_definitions([Topic("/x", "a/msg/Top", 1, GENERATED, "ros2idl")], "", "")
    assert list(known["a/msg/Top"]) == list(types["a/msg/Top"][1])
    assert Reader(known).find("a/msg/Top", "covariance").length == 36
