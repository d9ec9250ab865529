"""ConvertToTrajectories, and steps between converting and writing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.testing.util import assert_that, equal_to
from beam_runners import RUNS, new_pipeline

from rlds_beam import Field, ItemOptions, Items, Schema, TrajectorySpec
from rlds_beam.encoding.tfds.rlds_dataset import default_schema
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.testing import make_episode, read_items, read_rejected
from rlds_beam.transforms import ConvertToTrajectories, WriteRejected, WriteToTrajectoryRecords

LENGTHS = (4, 1, 6, 3)
EPISODES = [make_episode(n, seed=n) for n in LENGTHS]
SCHEMA = default_schema(EPISODES[0])
SPEED = Field("policy_info/speed", "float32")


def with_payload(episode: Any) -> Any:
    return episode.replace(payload=str(episode.key).encode())


def with_speed(items: Items) -> Items:
    return items.with_columns({SPEED.path: np.full(len(items.frames), 7, np.float32)})


def described(items: Items) -> tuple[str, int, tuple[int, ...]]:
    return str(items.key), len(items), np.shape(items.gather("observation"))


@pytest.mark.parametrize("runner", RUNS)
def test_each_episode_becomes_one_element_with_all_its_items(runner: str) -> None:
    expected = [(str(e.key), max(0, n - 1), (max(0, n - 1), 2, 3)) for e, n in zip(EPISODES, LENGTHS, strict=True)]
    with new_pipeline(runner) as root:
        episodes = root | beam.Create(EPISODES) | beam.Reshuffle()  # into several bundles
        converted = episodes | ConvertToTrajectories(SCHEMA)
        assert_that(converted.items | beam.Map(described), equal_to(expected))
        assert_that(converted.rejected, equal_to([]), label="rejected")


def test_too_long_episodes_are_rejected_with_their_records() -> None:
    convert = ConvertToTrajectories(SCHEMA, items=ItemOptions(items="episodes", max_sequence_length=4))
    with new_pipeline() as root:
        converted = root | beam.Create([*map(with_payload, EPISODES)]) | convert
        assert_that(converted.items | beam.Map(len), equal_to([1, 1, 1]))
        rejected = converted.rejected | beam.Map(lambda r: (str(r.key), r.rule, r.payload))
        key = str(EPISODES[2].key)
        assert_that(rejected, equal_to([(key, "too_long", key.encode())]), label="rejected")


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_step_between_converting_and_writing(tmp_path: Path, shuffle: bool) -> None:
    convert = ConvertToTrajectories(SCHEMA, keep=["episode_key"])
    with new_pipeline() as root:
        converted = (root | beam.Create(EPISODES) | convert).items
        items = converted | beam.Map(with_speed)
        if shuffle:
            items |= beam.Reshuffle()
        items | WriteToTrajectoryRecords(str(tmp_path / "out"), convert.spec.with_columns(SPEED))
        converted | "Plain" >> WriteToTrajectoryRecords(str(tmp_path / "plain"), convert.spec)
    edited, plain = read_items(tmp_path / "out"), read_items(tmp_path / "plain")
    assert [item.pop(SPEED.path).tolist() for item in edited] == [[7, 7]] * 10
    assert sorted(map(str, edited)) == sorted(map(str, plain))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (with_speed, r"policy_info/speed is not in the spec.*spec.with_columns\(Field\('policy_info/speed'"),
        (lambda items: items.with_columns({"reward": np.zeros(len(items.frames))}), "reward is float64"),
        (lambda items: items.with_columns({"reward": np.zeros(1, np.float32)}), "reward has 1 values"),
    ],
)
def test_items_that_differ_from_the_spec_are_an_error(tmp_path: Path, edit: Any, message: str) -> None:
    convert, root = ConvertToTrajectories(SCHEMA), new_pipeline()
    items = (root | beam.Create(EPISODES) | convert).items | beam.Map(edit)
    items | WriteToTrajectoryRecords(str(tmp_path / "out"), convert.spec)
    with pytest.raises(Exception, match=message):
        root.run()


def test_items_with_a_damaged_image_are_rejected_with_the_record(tmp_path: Path) -> None:
    images = EncodedImages(np.array([b"\x89PNG damaged"] * 3, object), (2, 2, 3), "uint8")
    episode = make_episode(3, key=EpisodeKey("d/1.0.0", "val", 0, 9), columns={"observation": images})
    field = Field("observation", "uint8", (2, 2, 3), "png")
    convert = ConvertToTrajectories(default_schema(make_episode(3)).with_columns(field))
    with new_pipeline() as root:
        items = (root | beam.Create([episode.replace(payload=b"record")]) | convert).items
        written = items | WriteToTrajectoryRecords(str(tmp_path / "out"), convert.spec)
        written.rejected | WriteRejected(str(tmp_path / "out"))
    ((line, payload),) = read_rejected(tmp_path / "out")
    assert (line["key"], line["rule"], payload) == ("d/1.0.0:val:00000@9", "undecodable_image", b"record")


def test_what_cannot_be_used_is_refused_on_construction(tmp_path: Path) -> None:
    spec = ConvertToTrajectories(SCHEMA).spec
    with pytest.raises(UsageError, match="does not say which frames make an item"):
        WriteToTrajectoryRecords(str(tmp_path), TrajectorySpec(spec.leaves, (2,)))
    with pytest.raises(UsageError, match="numbers of a fixed shape below step_type, observation, action"):
        spec.with_columns(Field("speed", "float32"))
    with pytest.raises(UsageError, match="observation is a value"):
        spec.with_columns(Field("observation/speed", "float32"))
    with pytest.raises(UsageError, match="a trajectory needs action"):
        ConvertToTrajectories(Schema({"observation": SCHEMA.steps["observation"]}))
