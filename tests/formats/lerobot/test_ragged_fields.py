"""Fields of varying length, to LeRobot: step fields are refused by name, episode fields are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lerobot_data as data
import numpy as np
import pytest

import rlds_beam
from rlds_beam import Field, Schema
from rlds_beam.encoding.example.row_decoder import objects
from rlds_beam.encoding.tfds.rlds_dataset import default_schema
from rlds_beam.errors import UsageError
from rlds_beam.testing import make_episode, write_dataset

VERSIONS = ["3.0", "2.1"]
TOKENS = Field("observation/tokens", "int64", (None,), "zlib")


def write(folder: Path, made: Any, *, steps: Field | None = None, metadata: Field | None = None) -> Path:
    """A dataset with one more field, whose value in episode i, or its step t, is `made(i, t)`."""
    episodes, schema = [], default_schema(make_episode(3, observation={"state": 3}))
    for i in range(4):
        episode = make_episode(3 + i, seed=i, observation={"state": 3})
        if steps is not None:
            values = objects([made(i, t) for t in range(len(episode))])
            episode = episode.replace(steps={**episode.steps, steps.path: values})
        if metadata is not None:
            episode = episode.replace(metadata={metadata.path: made(i, 0)})
        episodes.append(episode)
    if steps is not None:
        schema = schema.with_columns(steps)
    if metadata is not None:
        schema = Schema(schema.steps, {metadata.path: metadata})
    return write_dataset(folder, episodes, name="toy", schema=schema)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("length", [lambda i, t: t + i, lambda i, t: 4], ids=["varies", "equal by chance"])
def test_a_field_of_the_steps_is_refused_by_name(tmp_path: Path, version: str, length: Any) -> None:
    source = write(tmp_path / "data", lambda i, t: np.arange(length(i, t)), steps=TOKENS)
    with pytest.raises(UsageError, match=r"observation/tokens: int64\(\?\).*--map=-observation/tokens") as caught:
        data.convert_here(source, tmp_path / "out", lerobot_version=version)
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match="not a numeric vector"):
        data.convert_here(
            source, tmp_path / "out", lerobot_version=version, map="x=observation/state+observation/tokens"
        )
    survey = rlds_beam.inspect(source, to="lerobot", fps=data.FPS, lerobot_version=version)
    assert survey.error is not None and "observation/tokens" in survey.error
    report = data.convert_here(source, tmp_path / "out", lerobot_version=version, map="-observation/tokens")
    assert (report.valid, report.rejected) == (4, 0)
    for episode in data.read_episodes(str(tmp_path / "out"), "lerobot"):
        assert "observation/tokens" not in episode.steps


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("field", "made"),
    [
        (Field("x", "int64", (None,)), lambda i, t: np.arange(i)),
        (Field("x", "float32", (None,)), lambda i, t: np.arange(i, dtype=np.float32) / 3),
        (Field("x", "float32", (None, 2)), lambda i, t: np.full((i, 2), 0.1, np.float32)),
        (Field("x", "string", (None,)), lambda i, t: objects([b"a", "\u00e4".encode(), b""][:i])),
        (Field("x", "bool", (None,)), lambda i, t: np.arange(i) % 2 == 0),
    ],
    ids=["int64", "float32", "pairs", "text", "bool"],
)
def test_a_field_of_the_episodes_is_stored_and_read_back(tmp_path: Path, version: str, field: Field, made: Any) -> None:
    source = write(tmp_path / "data", made, metadata=field)
    assert data.convert_here(source, tmp_path / "out", lerobot_version=version).rejected == 0
    for i, episode in enumerate(data.read_episodes(str(tmp_path / "out"), "lerobot")):
        found, wanted = episode.metadata["episode_metadata/x"], made(i, 0)
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(found, wanted)
