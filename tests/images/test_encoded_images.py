"""Images stored in a record behave like images in an object array of bytes."""

from __future__ import annotations

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam.encoding.example.reader import Feature
from rlds_beam.encoding.example.row_decoder import objects
from rlds_beam.encoding.wire import encode_delimited
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages, StoredImages


def both(images: list[bytes]) -> tuple[EncodedImages, StoredImages]:
    record = b"before" + b"".join(encode_delimited(1, image) for image in images) + b"after"
    starts, stops, _ = Feature("bytes", record, 6, len(record) - 5).spans()
    return EncodedImages(objects(images), (8, 8, 3)), StoredImages(record, starts, stops, (8, 8, 3))


@given(st.lists(st.binary(max_size=300), max_size=150), st.binary(max_size=3), st.binary(max_size=2), st.data())
def test_equals_encoded_images(images: list[bytes], start: bytes, end: bytes, data: st.DataObject) -> None:
    own, stored = both([start * (i % 3 > 0) + image + end * (i % 2) for i, image in enumerate(images)])
    assert len(stored) == len(own)
    assert stored.unlike(start, end) == own.unlike(start, end)
    feature = Feature("bytes", stored.record, 6, len(stored.record) - 5)
    again = StoredImages.in_record(stored.record, feature.spans, (8, 8, 3), "uint8", "jpeg")  # finds it on the way
    assert "_last" in vars(again) or not start
    assert again.places == stored.places
    assert again.unlike(start, end) == own.unlike(start, end)
    assert pickle.loads(pickle.dumps(stored)).data.tolist() == stored.data.tolist() == own.data.tolist()
    low = data.draw(st.integers(-2, len(images)))
    some = data.draw(st.lists(st.integers(0, max(0, len(images) - 1)), max_size=len(images)))
    for index in (slice(low, None, 2), np.array(some, np.int64), np.arange(len(images)) % 3 == 0):
        assert stored[index].data.tolist() == own[index].data.tolist()
    assert [stored.image(i) for i in range(len(images))] == own.data.tolist()
    assert type(stored.with_data(own.data)) is EncodedImages


def test_each_image_is_checked() -> None:
    count = 10
    pixels = np.random.default_rng(0).integers(0, 255, (count, 8, 8, 3), np.uint8)
    images = encode_jpeg(pixels)
    assert both(images)[1].check(1 << 20) == []
    for step, damaged in ((0, images[0][:-2]), (3, images[3][:-1]), (count - 1, encode_jpeg(pixels[:1, :4])[0])):
        changed = [*images[:step], damaged, *images[step + 1 :]]
        own, stored = both(changed)
        found = stored.check(1 << 20, "camera")
        assert [violation.step for violation in found] == [step]
        assert found == own.check(1 << 20, "camera")
