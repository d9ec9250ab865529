"""EpisodesToRows makes a row of each step that Beam's own transforms understand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.testing.util import assert_that, equal_to
from beam_runners import RUNS, new_pipeline

from rlds_beam import Field
from rlds_beam.encoding.tfds.rlds_dataset import default_schema
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.testing import make_episode
from rlds_beam.transforms import EpisodesToRows, RejectionsToRows, ValidateEpisodes

EPISODES = [make_episode(n, seed=n, observation={"state": 2}, action=3) for n in (3, 1, 5)]
SCHEMA = default_schema(EPISODES[0])


def columns(value: Any, *shape: int, dtype: str = "float32") -> Any:
    return np.full((2, *shape), value, dtype)


def find_episode(**steps: Any) -> tuple[Episode, Schema]:
    """An episode of two steps with only these columns, and its schema."""
    episode = Episode(EPISODES[0].key, {path.replace("__", "/"): column for path, column in steps.items()})
    fields = {}
    for path, column in episode.steps.items():
        if isinstance(column, EncodedImages):
            fields[path] = Field(path, column.dtype, column.shape, column.encoding)
        else:
            dtype = "string" if column.dtype == object else str(column.dtype)
            fields[path] = Field(path, dtype, column.shape[1:])
    return episode, Schema(fields)


@pytest.mark.parametrize("runner", RUNS)
def test_each_step_is_a_row_that_beam_can_group(runner: str) -> None:
    with new_pipeline(runner) as root:
        rows = root | beam.Create(EPISODES) | beam.Reshuffle() | EpisodesToRows(SCHEMA)
        totals = rows | beam.GroupBy("episode").aggregate_field("reward", sum, "total").aggregate_field(
            "step", max, "last"
        )
        expected = [
            (str(e.key), pytest.approx(float(np.sum(e.steps["reward"], dtype=float))), len(e) - 1) for e in EPISODES
        ]
        assert_that(totals | beam.Map(tuple), equal_to(expected))


def test_values_and_types() -> None:
    images = EncodedImages(np.array([b"one", b"two"], object), (4, 4, 3), encoding="png")
    episode, schema = find_episode(
        observation__state=columns(0.1, 2),
        count=columns(7, dtype="uint8"),
        flag=columns(True, dtype="bool"),
        text=np.array([b"pick \xff", "drop"], object),
        words=np.array([[b"a", b"b"]] * 2, object),
        matrix=columns(1, 2, 2),
        image=images,
    )
    with new_pipeline() as root:
        rows = root | beam.Create([episode]) | EpisodesToRows(schema)
        named = ["episode", "step", "observation_state", "count", "flag", "text", "words"]
        types = [str, int, Sequence[float], int, bool, str, Sequence[str]]
        assert [name for name, _ in rows.element_type._fields] == named
        assert [kind for _, kind in rows.element_type._fields] == types
        value = float(np.float32(0.1))
        expected = [
            {
                "episode": str(episode.key),
                "step": step,
                "observation_state": [value, value],
                "count": 7,
                "flag": True,
                "text": text,
                "words": ["a", "b"],
            }
            for step, text in enumerate(["pick \\xff", "drop"])
        ]
        assert_that(rows | beam.Reshuffle() | beam.Map(lambda row: row._asdict()), equal_to(expected), label="all")
        chosen = root | "C" >> beam.Create([episode]) | "R" >> EpisodesToRows(schema, ["image", "matrix"])
        given = chosen | "S" >> beam.Reshuffle() | beam.Map(lambda row: (row.step, row.image, row.matrix))
        assert_that(given, equal_to([(i, image, [[1.0, 1.0]] * 2) for i, image in enumerate(images)]), label="chosen")


@pytest.mark.parametrize(
    ("steps", "fields", "message"),
    [
        ({"a": columns(1)}, ["b"], "there is no step field b"),
        ({"a__b": columns(1), "a_b": columns(1)}, None, "a_b cannot be a column, since another column is named a_b"),
        ({"step": columns(1)}, None, "another column is named step"),
        ({"class": columns(1)}, None, "class cannot name a column"),
        ({"a": columns(1, dtype="uint64")}, None, "Beam's rows have no uint64"),
    ],
)
def test_what_cannot_be_a_column_is_refused(steps: dict[str, Any], fields: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EpisodesToRows(find_episode(**steps)[1], fields)


def test_rejected_records_are_rows_with_a_schema() -> None:
    broken = [make_episode(4, seed=seed, breaks=["missing_is_last"]) for seed in (1, 2)]
    with new_pipeline() as root:
        checked = root | beam.Create([EPISODES[0], *broken]) | ValidateEpisodes()
        rows = checked.rejected | RejectionsToRows()
        counts = rows | beam.GroupBy("rule", "field").aggregate_field("bytes", beam.combiners.CountCombineFn(), "count")
        assert_that(counts | beam.Map(tuple), equal_to([("missing_is_last", "is_last", 2)]))
