"""Parsing the tf.Example wire format, compared with protobuf."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam.encoding.example.reader import Feature, parse_example
from rlds_beam.encoding.wire import MalformedError, OutOfRangeError


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_int64_lists_equal_protobuf(values: list[int]) -> None:
    from tensorflow_datasets.proto import tf_example_pb2

    message = tf_example_pb2.Example()
    message.features.feature["x"].int64_list.value.extend(values)
    feature = parse_example(message.SerializeToString())["x"]
    check_ints(feature, np.array(values, np.int64))


@pytest.mark.parametrize("high", [2, 128, 1 << 14, 1 << 21, 1 << 62])
def test_long_lists_of_every_width(high: int) -> None:
    check_varints(np.random.default_rng(high % 97).integers(-high if high > 1 << 20 else 0, high, 100_000))


def check_varints(values: Any) -> None:
    from tensorflow_datasets.proto import tf_example_pb2

    body = tf_example_pb2.Example()
    body.features.feature["x"].int64_list.value.extend(values.tolist())
    feature = parse_example(body.SerializeToString())["x"]
    check_ints(feature, values)


def check_ints(feature: Feature, values: Any) -> None:
    """Checks the values as int64 and in narrower dtypes, which reject values that do not fit."""
    np.testing.assert_array_equal(feature.ints(), values)
    for dtype, low, high in ((np.uint8, 0, 255), (np.int32, -(2**31), 2**31 - 1), (np.bool_, 0, 1)):
        if ((values >= low) & (values <= high)).all():
            np.testing.assert_array_equal(feature.ints(dtype), values.astype(dtype))
        else:
            with pytest.raises(OutOfRangeError):
                feature.ints(dtype)


def message(number: int, content: bytes) -> bytes:
    size = len(content)
    length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    return bytes([number << 3 | 2]) + length + content


@st.composite
def wire_features(draw: st.DrawFn) -> tuple[bytes, bool]:
    """A Feature in an unusual encoding (packed or not, in pieces, of several kinds), and whether readers agree on it.

    Protobuf merges the pieces, but TensorFlow's parser takes the first one and drops the others.
    """
    feature, kinds = b"", draw(st.lists(st.integers(1, 3), max_size=3))
    agreed = len(kinds) < 2
    for kind in kinds:
        parts, packed = [], []
        for _ in range(draw(st.integers(0, 3))):
            one = draw(st.binary(min_size=4, max_size=4)) if kind < 3 else draw(st.sampled_from(VARINTS))
            packed.append(kind > 1 and draw(st.booleans()))
            tag = bytes([13 if kind == 2 else 8])
            if packed[-1]:
                parts.append(message(1, one * draw(st.integers(0, 2))))
            else:
                parts.append(message(1, one) if kind == 1 else tag + one)
        agreed &= not any(packed) or len(packed) == 1
        feature += message(kind, b"".join(parts))
    return feature, agreed


def check_all(wire: bytes) -> None:
    for feature in parse_example(wire).values():
        feature.check()


VARINTS = (b"\x05", b"\xac\x02", b"\xff" * 9 + b"\x01")


@given(st.lists(st.tuples(st.sampled_from(("a", "b")), st.lists(wire_features(), max_size=2)), min_size=1, max_size=3))
def test_any_wire_form_equals_protobuf_or_is_malformed(entries: list[tuple[str, list[tuple[bytes, bool]]]]) -> None:
    from tensorflow_datasets.proto import tf_example_pb2

    wire = b"".join(
        message(1, message(1, message(1, key.encode()) + b"".join(message(2, v) for v, _ in values)))
        for key, values in entries
    )
    if not all(len(values) == 1 and values[0][1] for _, values in entries):
        with pytest.raises(MalformedError):
            check_all(wire)
        return
    expected = tf_example_pb2.Example.FromString(wire)
    ours = parse_example(wire)
    assert set(ours) == set(expected.features.feature)
    for key, feature in expected.features.feature.items():
        kind = feature.WhichOneof("kind")
        assert (ours[key].kind and f"{ours[key].kind}_list") == kind
        if kind == "bytes_list":
            assert ours[key].strings() == list(feature.bytes_list.value)
        elif kind == "float_list":
            assert ours[key].floats().tobytes() == np.array(feature.float_list.value, np.float32).tobytes()
        elif kind == "int64_list":
            assert ours[key].ints().tolist() == list(feature.int64_list.value)
