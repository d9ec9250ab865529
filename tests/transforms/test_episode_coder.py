"""An episode is the same after it was sent, and takes little more than its record."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.coders import registry
from apache_beam.testing.util import assert_that, equal_to
from beam_runners import new_pipeline
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import rlds_beam
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import Violation
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import Segment
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.testing import make_episode
from rlds_beam.transforms import ReadFromRlds  # registers the coder
from rlds_beam.transforms.elements import EpisodeCoder

CODER = EpisodeCoder()
TEXTS = st.binary(max_size=80)
SHAPES = arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=6)
NUMBERS = arrays.arrays(st.sampled_from(["<f4", "<f8", "<i8", "u1", "?", "<f2", "<U3"]), SHAPES)
IMAGES = st.lists(TEXTS, max_size=5).map(lambda data: EncodedImages(of_objects(data), (8, None, 3), "uint8", "png"))
COLUMNS = NUMBERS | IMAGES | st.lists(TEXTS, max_size=5).map(lambda data: of_objects(data))
VALUES = COLUMNS | TEXTS | st.floats(allow_nan=False) | st.sampled_from([np.float32(2.5), np.int64(-1), np.True_, "a"])
FAULTS = st.lists(st.builds(Violation, st.text(max_size=5), st.text(max_size=5), st.none() | st.text(max_size=5)))


def of_objects(values: list[Any]) -> Any:
    return np.array([*values, None], object)[:-1]


def raw(value: Any) -> Any:
    """A value as something that `==` compares."""
    if isinstance(value, EncodedImages):
        return (raw(value.data), value.shape, value.dtype, value.encoding)
    if isinstance(value, np.ndarray | np.generic):
        content = value.tolist() if value.dtype == object else value.tobytes()
        return (type(value), value.dtype.str, value.shape, content)
    return value


def raw_episode(episode: Episode) -> Any:
    values = [[(path, raw(value)) for path, value in own.items()] for own in (episode.steps, episode.metadata)]
    rest = (episode.payload, episode.faults, episode.last_action_is_real, episode.payload_crc, episode.sound)
    return (episode.key, values, rest)


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    steps, metadata = (draw(st.dictionaries(st.text(max_size=4), values, max_size=4)) for values in (COLUMNS, VALUES))
    parts = [draw(st.binary(max_size=9))]  # the record has the bytes of some values
    for value in (*steps.values(), *metadata.values()):
        if draw(st.booleans()):
            data = value.data if isinstance(value, EncodedImages) else value
            values = data.tolist() if isinstance(data, np.ndarray) and data.dtype == object else [data]
            parts += [bytes(v) if isinstance(v, bytes) else np.asarray(v).tobytes() for v in values]
    key = EpisodeKey("d/1.0.0", "train", 3, draw(st.integers(0, 2**62)), 1)
    made = Episode(key, steps, metadata, b"".join(parts), tuple(draw(FAULTS)), draw(st.booleans()))
    return made.note(sound=draw(st.booleans()), payload_crc=draw(st.integers(0, 2**32 - 1)))


@settings(deadline=None)
@given(episodes())
def test_an_episode_is_the_same_after_it_was_sent(episode: Episode) -> None:
    encoded = CODER.encode(episode)
    again = CODER.decode(encoded)
    assert raw_episode(again) == raw_episode(episode)
    assert CODER.encode(again) == encoded
    assert CODER.encode(pickle.loads(pickle.dumps(episode))) == encoded  # whatever objects hold the values


@pytest.mark.parametrize("pixels", [False, True])
def test_an_episode_as_read_takes_little_more_than_its_record(tmp_path: Path, pixels: bool) -> None:
    rng = np.random.default_rng(0)

    def make(steps: int) -> dict[str, Any]:
        images = {"image": rng.integers(0, 255, (steps, 32, 32, 3), np.uint8)} if pixels else {}
        state = rng.normal(size=(steps, 20)).astype(np.float32)
        return {"observation": {"state": state, **images}, "action": state[:, :4], "task": "open the drawer"}

    rlds_beam.write_rlds(tmp_path / "d" / "1.0.0", [make(steps) for steps in (200, 300)])
    (split,) = (source := rlds_beam.open_source(str(tmp_path / "d" / "1.0.0"))).splits
    for episode in EpisodeReader(source).read(split.name, Segment(split.shards[0], 0)):
        assert len(CODER.encode(episode)) < 1.2 * len(episode.payload)
        assert raw_episode(CODER.decode(CODER.encode(episode))) == raw_episode(episode)
        edited = episode.with_columns({path: column[::-1] for path, column in episode.steps.items()})
        assert raw_episode(CODER.decode(CODER.encode(edited))) == raw_episode(edited)


def test_pipelines_use_the_coder() -> None:
    assert ReadFromRlds and type(registry.get_coder(Episode)).__name__ == "EpisodeCoder"
    with new_pipeline() as root:
        spread = root | beam.Create([make_episode(n) for n in (3, 5)]) | beam.Reshuffle()
        assert_that(spread | beam.Map(len), equal_to([3, 5]))
