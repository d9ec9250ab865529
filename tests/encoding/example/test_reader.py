"""Parsing the tf.Example wire format, compared with protobuf."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam.encoding.example.reader import Feature, parse_example
from rlds_beam.encoding.wire import OutOfRangeError


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
