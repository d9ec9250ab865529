"""Serialized tf.Examples, well-formed and malformed, and how protobuf reads them."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from rlds_beam.encoding.example.reader import parse_example
from rlds_beam.encoding.wire import MalformedError

Values = dict[str, tuple[str | None, list[Any]]]
"""Maps a key to the kind of its list and its values (floats as bits, so that NaN equals NaN)."""

KEYS = (b"a", b"b", b"steps/x", b"", "\u00e9".encode())


@functools.cache
def example_class() -> Any:
    """Builds tf.Example from its public definition, without TensorFlow."""
    file = descriptor_pb2.FileDescriptorProto(name="fuzz_example.proto", package="fuzz", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto

    def message(parent: Any, name: str) -> Any:
        made = parent.add()
        made.name = name
        return made

    def add(made: Any, name: str, number: int, kind: int, type_name: str = "", repeated: bool = False) -> Any:
        label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
        return made.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)

    for name, kind in (
        ("BytesList", field.TYPE_BYTES),
        ("FloatList", field.TYPE_FLOAT),
        ("Int64List", field.TYPE_INT64),
    ):
        add(message(file.message_type, name), "value", 1, kind, repeated=True)
    feature = message(file.message_type, "Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("BytesList", "FloatList", "Int64List"), 1):
        add(feature, name, number, field.TYPE_MESSAGE, f".fuzz.{name}").oneof_index = 0
    features = message(file.message_type, "Features")
    entry = message(features.nested_type, "FeatureEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, field.TYPE_STRING)
    add(entry, "value", 2, field.TYPE_MESSAGE, ".fuzz.Feature")
    add(features, "feature", 1, field.TYPE_MESSAGE, ".fuzz.Features.FeatureEntry", repeated=True)
    add(message(file.message_type, "Example"), "features", 1, field.TYPE_MESSAGE, ".fuzz.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("fuzz.Example"))


_NAMES = {"BytesList": "bytes", "FloatList": "float", "Int64List": "int64", None: None}


def by_protobuf(data: bytes) -> Values | None:
    """Reads with protobuf; None if it refuses."""
    try:
        example = example_class().FromString(data)
    except DecodeError:
        return None
    found = {}
    for key, feature in example.features.feature.items():
        which = feature.WhichOneof("kind")
        values = list(getattr(feature, which).value) if which else []
        found[key] = (_NAMES[which], bits(values) if which == "FloatList" else values)
    return found


def by_us(data: bytes) -> Values | None:
    """Reads all features with our parser; None if it refuses."""
    try:
        read = {}
        for key, feature in parse_example(data).items():
            if feature.kind is None:
                values: list[Any] = []
            elif feature.kind == "float":
                values = bits(feature.floats().tolist())
            else:
                values = feature.ints().tolist() if feature.kind == "int64" else feature.strings()
            read[key] = (feature.kind, values)
    except MalformedError:
        return None
    return read


def bits(values: list[float]) -> list[int]:
    return np.array(values, "<f4").view("<u4").tolist()


class Fuzz:
    """Generates messages by the grammar of the wire format, including some that it forbids."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.odd = 0.0

    def example(self) -> bytes:
        self.odd = self.random.choice([0.0, 0.02, 0.1, 0.3])
        made = b"".join(self.field(1, self.features()) for _ in range(self.pick(1, 1, 1, 2)))
        if self.random.random() < self.odd:
            made = self.mutated(made)
        return made

    def features(self) -> bytes:
        return b"".join(self.field(1, self.entry()) for _ in range(self.random.randrange(1, 4))) + self.stray()

    def entry(self) -> bytes:
        parts = [self.field(1, self.key()), self.field(2, self.feature())]
        if self.is_odd():
            self.random.shuffle(parts)
        if self.is_odd():
            parts.append(self.random.choice([self.field(1, self.key()), self.field(2, self.feature()), self.stray()]))
        if self.is_odd():
            del parts[self.random.randrange(len(parts))]
        return b"".join(parts)

    def key(self) -> bytes:
        return b"\xff\xc0" if self.is_odd() else self.random.choice(KEYS)

    def feature(self) -> bytes:
        kinds = [self.random.randrange(1, 4) for _ in range(1 + self.is_odd() + self.is_odd())]
        return b"".join(self.field(kind, self.values(kind)) for kind in kinds) + self.stray()

    def values(self, kind: int) -> bytes:
        chunks = self.random.randrange(0, 3) if self.is_odd() else 1
        return b"".join(self.chunk(kind) for _ in range(chunks)) + self.stray()

    def chunk(self, kind: int) -> bytes:
        count = self.random.randrange(0, 5)
        if kind == 1:
            return b"".join(self.field(1, self.random.randbytes(self.random.randrange(4))) for _ in range(count))
        each = [self.random.randbytes(4) if kind == 2 else self.varint(self.number()) for _ in range(count)]
        if self.is_odd():  # not packed
            return b"".join(self.tag(1, 5 if kind == 2 else 0) + value for value in each)
        return self.field(1, b"".join(each) + (self.random.randbytes(1) if self.is_odd() else b""))

    def number(self) -> int:
        return self.random.choice(
            [0, 1, 127, 128, 300, 1 << 31, (1 << 63) - 1, (1 << 64) - 1, self.random.getrandbits(64)]
        )

    def stray(self) -> bytes:
        """Returns an unknown field, or usually nothing."""
        if not self.is_odd():
            return b""
        number, wire = self.pick(1, 2, 3, 9, 15, 16, 5000, 0), self.random.randrange(8)
        content = {0: self.varint(self.number()), 1: bytes(8), 2: self.length(2) + b"xx", 5: bytes(4)}
        if wire == 3:
            inner = b"".join(self.stray() for _ in range(2))
            return self.tag(number, 3) + inner + self.tag(self.pick(number, number, 7), 4)
        return self.tag(number, wire) + content.get(wire, b"")

    def field(self, number: int, content: bytes) -> bytes:
        wire = self.random.randrange(8) if self.random.random() < self.odd / 4 else 2
        return self.tag(number, wire) + self.length(len(content)) + content

    def length(self, size: int) -> bytes:
        return self.varint(max(0, size + (self.random.choice([-1, 1]) if self.random.random() < self.odd / 4 else 0)))

    def tag(self, number: int, wire: int) -> bytes:
        return self.varint(number << 3 | wire)

    def varint(self, value: int) -> bytes:
        """Usually the shortest encoding; otherwise one with extra bytes, or with bits beyond 64."""
        groups = []
        while value > 0x7F:
            groups.append(value & 0x7F)
            value >>= 7
        groups.append(value)
        if self.random.random() < self.odd / 8:
            groups += [0] * self.random.randrange(1, 11)
            if self.is_odd():
                groups[-1] = self.random.randrange(128)
        return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])

    def mutated(self, data: bytes) -> bytes:
        if not data:
            return data
        at, how = self.random.randrange(len(data)), self.random.randrange(4)
        if how == 0:
            return data[:at] + bytes([data[at] ^ 1 << self.random.randrange(8)]) + data[at + 1 :]
        if how == 1:
            return data[:at]
        if how == 2:
            return data[:at] + data[at + 1 :]
        return data[:at] + self.random.randbytes(1) + data[at:]

    def is_odd(self) -> bool:
        return self.random.random() < self.odd

    def pick(self, *values: int) -> int:
        return self.random.choice(values)
