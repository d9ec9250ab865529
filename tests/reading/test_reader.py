"""Records decoded together equal the same records decoded one by one, whatever their bytes are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlds_beam
from rlds_beam.encoding.base import Damage
from rlds_beam.encoding.tfds.rlds_dataset import default_schema, encode_example
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.episodes.schema import Field, Schema, compare_with_schema
from rlds_beam.errors import BadEpisode, UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.formats.rlds.source import RldsSource
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading import reader as reading
from rlds_beam.reading.base import Segment
from rlds_beam.reading.decoding import EpisodeDecoder
from rlds_beam.reading.reader import EpisodeReader, episode_at, read_episode
from rlds_beam.testing import flip_byte, make_episode, record_offsets, shard_paths, write_dataset

KEY = EpisodeKey("a/1.0.0", "train", 0, 0)


def episode(length: int, seed: int = 0) -> Episode:
    """An episode with every kind of column that is decoded together, and some that are not."""
    rng = np.random.default_rng(seed)
    jpegs = np.empty(length, object)
    jpegs[:] = encode_jpeg(rng.integers(0, 255, (length, 8, 8, 3), np.uint8)) if length else []
    columns: dict[str, Any] = {
        "observation/image": EncodedImages(jpegs, (8, 8, 3)),
        "observation/text": [f"step {i}" for i in range(length)],
        "observation/count": np.arange(length, dtype=np.uint8) * 3,
        "observation/large": rng.integers(-(2**40), 2**40, (length, 2)),
        "observation/grid": rng.integers(0, 2, (length, 2, 3)).astype(bool),
        "observation/half": rng.random((length, 2)).astype(np.float16),
        "observation/exact": rng.random(length),
    }
    metadata = {"id": np.int64(seed), "name": f"episode {seed}", "scores": np.float32([seed, 1])}
    return make_episode(length, seed=seed, observation={"state": 3}, columns=columns, metadata=metadata)


SCHEMA = default_schema(episode(2))
RECORDS = [encode_example(episode(length, seed), SCHEMA) for seed, length in enumerate((1, 3, 3, 10, 200, 10))]
LESS = encode_example(episode(3).replace(steps={"action": np.zeros((3, 2), np.float32)}, metadata={}), SCHEMA)
UNEQUAL = encode_example(episode(3).replace(steps={**episode(3).steps, "reward": np.zeros(2, np.float32)}), SCHEMA)
MORE = encode_example(make_episode(3, observation={"state": 3}, columns={"observation/more": np.zeros(3, np.float32)}))


def outcome(decoded: Episode | BadEpisode) -> Any:
    if isinstance(decoded, BadEpisode):
        return decoded.violations
    assert not compare_with_schema(decoded, SCHEMA)
    columns = {**decoded.steps, **{f"metadata/{name}": np.asarray(v) for name, v in decoded.metadata.items()}}
    arrays = {path: c.data if isinstance(c, EncodedImages) else c for path, c in columns.items()}
    return decoded.payload, {path: (type(columns[path]), a.dtype, a.shape, a.tolist()) for path, a in arrays.items()}


def alone(payload: bytes, schema: Schema = SCHEMA) -> Any:
    try:
        return outcome(EpisodeDecoder(schema).decode(payload, KEY))
    except BadEpisode as bad:
        return outcome(bad)


def check(payloads: list[bytes], schema: Schema = SCHEMA, decoder: EpisodeDecoder | None = None) -> None:
    decoder = decoder or EpisodeDecoder(schema)
    together = decoder.decode_all(payloads, [KEY] * len(payloads))
    assert [*map(repr, map(outcome, together))] == [repr(alone(payload, schema)) for payload in payloads]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*RECORDS, LESS, UNEQUAL, MORE]),
            st.integers(0, 100_000),
            st.sampled_from(("sound", "sound", "cut", "byte", "more")),
        ),
        min_size=1,
        max_size=8,
    ),
    st.binary(min_size=1, max_size=12),
)
def test_intact_and_damaged_records(chosen: list[tuple[bytes, int, str]], other: bytes) -> None:
    payloads = []
    for payload, place, kind in chosen:
        at = place % len(payload)
        rest = {
            "sound": payload[at:],
            "cut": b"",
            "byte": other + payload[at + len(other) :],
            "more": other + payload[at:],
        }
        payloads.append(payload[:at] + rest[kind])
    check(payloads)


@pytest.mark.parametrize(
    "path", ["reward", "observation/grid", "observation/image", "observation/text", "observation/count"]
)
def test_a_field_that_does_not_match_the_schema(path: str) -> None:
    for field in (
        Field(path, "float32", (5,)),
        Field(path, "bool"),
        Field(path, "int8", (3,)),
        Field(path, "string", (), "text"),
        Field(path, "uint8", (8, 8, 3), "jpeg", "Image"),
        Field(path, "float32", (0,)),
        Field(path, "uint8", (), "zlib"),
    ):
        for extra in ([], [LESS], [UNEQUAL]):
            decoder = EpisodeDecoder(SCHEMA.with_columns(field))
            together = decoder.decode_all([*RECORDS, *extra], [KEY] * (len(RECORDS) + len(extra)))
            for payload, decoded in zip([*RECORDS, *extra], together, strict=True):
                try:
                    expected: Any = EpisodeDecoder(SCHEMA.with_columns(field)).decode(payload, KEY)
                except BadEpisode as bad:
                    expected = bad.violations
                    assert isinstance(decoded, BadEpisode)
                    assert decoded.violations == expected
                else:
                    assert isinstance(decoded, Episode)
                    assert {*decoded.steps} == {*expected.steps}


def test_a_damaged_file_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episodes = [episode(seed % 7, seed) for seed in range(60)]
    directory = write_dataset(tmp_path, episodes, name="toy")
    source = RldsSource.open(str(directory))
    shard = source.splits[0].shards[0]
    content = bytearray(Path(shard.path).read_bytes())
    for at in (5_000, 30_000, 30_001, 60_000):
        content[at] ^= 0xFF
    Path(shard.path).write_bytes(content)
    reader, segment = EpisodeReader(source), Segment(shard)
    records = [*source.files.read(segment.shard.path, segment.start, segment.stop)]
    assert any(isinstance(record, Damage) for record in records)
    expected = [reader.episodes("train", segment, [record])[0] for record in records]
    for size, most in ((1 << 20, 64), (4_000, 64), (1 << 20, 3), (1, 64)):
        monkeypatch.setattr(reading, "BATCH_BYTES", size)
        monkeypatch.setattr(reading, "MAX_RECORDS", most)
        batches = [*reader.batches("train", segment)]
        assert all(len(b) == 1 or (len(b) <= most and sum(len(e.payload) for e in b) <= size) for b in batches)
        found = [one for batch in batches for one in batch]
        assert [*map(described, found)] == [*map(described, expected)]
        assert [*map(described, reader.read("train", segment))] == [*map(described, expected)]


def described(read: Episode) -> Any:
    columns = {p: c.data.tolist() if isinstance(c, EncodedImages) else c.tolist() for p, c in read.steps.items()}
    return read.key, read.faults, read.payload, read.payload_crc, repr(read.metadata), columns


# Reading one episode by its key gives the same as reading all of them.


def test_every_episode_can_be_read_by_its_key(tmp_path: Path) -> None:
    rlds_beam.example(str(tmp_path))
    source = open_source(str(tmp_path / "point_mass" / "1.0.0"))
    reader = EpisodeReader(source)
    every = [
        episode
        for split in source.splits
        for shard in split.shards
        for episode in reader.read(split.name, Segment(shard))
    ]
    assert every
    for episode in every:
        again = read_episode(source, episode.key)
        assert again.key == episode.key and again.payload == episode.payload and again.faults == episode.faults
        for path, column in episode.steps.items():
            np.testing.assert_array_equal(again.steps[path], column)
    first = every[0].key
    for key in (
        EpisodeKey(first.dataset, "nope", 0, 0),
        EpisodeKey(first.dataset, first.split, 99, 0),
        EpisodeKey(first.dataset, first.split, first.shard, first.position + 1),
        EpisodeKey(first.dataset, first.split, first.shard, 1 << 40),
    ):
        with pytest.raises(UsageError, match=r"no (such|record)"):
            read_episode(source, key)


def test_a_damaged_record_can_be_read_by_its_key_and_number(tmp_path: Path) -> None:
    directory = write_dataset(tmp_path, [make_episode(5, seed=i) for i in range(6)])
    (shard,) = shard_paths(directory)
    places = record_offsets(shard)
    for record in (0, 3, 4):
        flip_byte(shard, record=record)
    source = open_source(str(directory))
    for record in range(6):
        key = EpisodeKey(source.dataset, "train", 0, places[record])
        for episode in (read_episode(source, key), episode_at(source, record), episode_at(source, record - 6)):
            assert episode.key == key
            assert [fault.rule for fault in episode.faults] == ["corrupt_record"] * (record in (0, 3, 4))


def test_the_number_of_an_episode_counts_within_slices_and_splits(tmp_path: Path) -> None:
    directory = rlds_beam.example(str(tmp_path), episodes=10)
    every = [episode_at(open_source(directory), i).key for i in range(10)]
    assert every == sorted(set(every))
    sliced = open_source(directory, split="train[2:7]")
    assert [episode_at(sliced, i).key for i in range(5)] == every[2:7]
    for number in (5, -6):
        with pytest.raises(UsageError, match="has 5 episodes, numbered from 0"):
            episode_at(sliced, number)
