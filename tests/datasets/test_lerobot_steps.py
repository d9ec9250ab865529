"""LeRobot datasets as steps: images from the Parquet files, frames from the videos, the same samples as offline."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import lerobot_data as data
import numpy as np
import pytest
from directories import bytes_of
from exchanging import export

import rlds_beam
from rlds_beam import open_dataset
from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.datasets.steps import IndexedSteps

pytest.importorskip("av")

KINDS = ("3.0 copy", "2.1 copy", "3.0 video", "2.1 video")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Any]]:
    return data.write_moving_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module", params=KINDS)
def dataset(request: pytest.FixtureRequest, source: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    version, images = request.param.split()
    path: Path = tmp_path_factory.mktemp("lerobot") / request.param.replace(" ", "_")
    data.convert_here(source[0], path, shards=2, images=images, lerobot_version=version)
    return path


def steps_of(path: Path, **options: Any) -> rlds_beam.datasets.dataset.Dataset:
    return open_dataset(path, unit="steps", **options)


def read(path: Path) -> dict[str, Any]:
    """All steps, by reading the episodes."""
    episodes = data.read_episodes(str(path), "lerobot")
    columns: dict[str, Any] = {}
    for name in episodes[0].steps:
        parts: list[Any] = [episode.steps[name] for episode in episodes]
        columns[name] = np.concatenate([p.decode() if hasattr(p, "decode") else p for p in parts])
    return columns


def assert_equal(found: Any, wanted: Any) -> None:
    assert set(wanted) <= set(found)
    for name, column in wanted.items():
        np.testing.assert_array_equal(found[name], column, name)
        assert found[name].dtype == column.dtype


def test_steps_and_episodes(dataset):
    wanted, found = read(dataset), steps_of(dataset)
    assert_equal(found.columns, wanted)
    order = np.random.default_rng(0).permutation(len(found))
    assert_equal(found[order], {name: column[order] for name, column in wanted.items()})
    again = pickle.loads(pickle.dumps(found))
    assert_equal(again[order[:5]], {name: column[order[:5]] for name, column in wanted.items()})
    episodes = open_dataset(dataset)
    assert sum(map(len, episodes.columns["steps/action"])) == len(found)
    for name, column in wanted.items():
        joined = np.concatenate([episodes[i][f"steps/{name}"] for i in range(len(episodes))])
        np.testing.assert_array_equal(joined, column, name)


def test_nothing_is_copied(dataset):
    rows = steps_of(dataset).rows
    assert isinstance(rows, IndexedSteps)
    assert Path(rows.index.files[-1]).stat().st_size == 0


@pytest.mark.parametrize("image_size", [None, 16])
def test_batches(dataset, image_size):
    found, wanted = steps_of(dataset), read(dataset)
    sizes = {} if image_size is None else {"columns": ["action", "observation/image_0", "observation/wrist"]}
    seen = 0
    for batch in found.batches(
        7, shuffle=True, history={"observation/image_0": 3}, chunk=4, image_size=image_size, **sizes
    ):
        assert batch["action"].shape[1] == batch["action_is_pad"].shape[1] == 4
        seen += len(batch["action"])
        if image_size is None:
            np.testing.assert_array_equal(batch["observation/image_0"][:, -1], images_at(wanted, batch))
    assert seen == len(found)


def images_at(wanted: Any, batch: Any) -> Any:
    rows = [np.flatnonzero((wanted["action"] == action).all(axis=-1))[0] for action in batch["action"][:, 0]]
    return wanted["observation/image_0"][rows]


def test_encoded_images_and_splits(dataset):
    images = steps_of(dataset, images="encoded")[3]["observation/wrist"]
    assert images[:4] in (b"\x89PNG", b"\xff\xd8\xff\xe0")
    rows = open_dataset(dataset, images="encoded")[1]["steps/observation/wrist"]
    assert rows[0][:4] == images[:4]
    info = dataset / "meta" / "info.json"
    text = info.read_text()
    try:
        info.write_text(json.dumps({**json.loads(text), "splits": {"train": "0:3", "val": "3:5"}}))
        whole, val = (steps_of(dataset, split=split) for split in (None, "val"))
        count = len(val)
        assert 0 < count < len(whole)
        assert_equal(val.columns, {name: whole.columns[name][-count:] for name in ("action", "observation/wrist")})
        assert len(open_dataset(dataset, "train[1:]")) == 2
    finally:
        info.write_text(text)


class Thinned(EpisodeConnector):
    """Drops every third step, and halves actions."""

    def edit(self, episode: Any, fields: Any) -> Any:
        keep = np.arange(len(episode)) % 3 != 1
        keep[[0, -1]] = True
        steps = {name: column[keep] for name, column in episode.steps.items()}
        return episode.replace(steps={**steps, "action": steps["action"] * np.float32(0.5)})


@pytest.mark.parametrize("to", ["rlds", "lerobot"])
def test_offline_and_online_connectors_give_the_same_samples(dataset, tmp_path, to):
    same_samples(dataset, tmp_path / "out", to)


@pytest.mark.parametrize("to", ["rlds", "lerobot"])
def test_an_rlds_source(source, tmp_path, to):
    same_samples(source[0], tmp_path / "out", to)


def same_samples(path: Any, output: Path, to: str) -> None:
    connectors = [Thinned()]
    online = open_dataset(path, unit="steps", connectors=connectors)
    exact = {"fps": data.FPS, "images": "copy"} if to == "lerobot" else {}  # videos would be encoded again
    export(path, output, to, connectors=connectors, **exact)
    root = next(file.parent for file in output.rglob("features.json")) if to == "rlds" else output
    offline = open_dataset(root, unit="steps")
    names = online.fields.keys() & offline.fields.keys()
    assert {"action", "observation/image_0", "observation/wrist"} <= names
    assert_equal(online.columns, {name: offline.columns[name] for name in names})
    rows = online.rows
    assert isinstance(rows, IndexedSteps)
    assert Path(rows.index.files[-1]).stat().st_size == 0
    one, other = (d.batches(5, shuffle=True, history=2, columns=sorted(names)) for d in (online, offline))
    for batch, same in zip(one, other, strict=True):
        assert_equal(batch, same)


def test_episodes_without_their_video_are_left_out(dataset, tmp_path):
    if "video" not in str(dataset):
        pytest.skip("it has no videos")
    copy = copied(dataset, tmp_path)
    max(copy.rglob("*.mp4")).unlink()
    with pytest.warns(UserWarning, match="undecodable_image"):
        assert len(steps_of(copy)) < len(steps_of(dataset))


def copied(dataset: Path, directory: Path) -> Path:
    for name, content in bytes_of(dataset).items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    return directory
