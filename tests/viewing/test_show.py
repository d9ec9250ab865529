"""`rlds_beam.show`, and what a notebook and `print` show of objects."""

from __future__ import annotations

import html.parser
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from camera_episodes import write_camera_episodes
from exchanging import export

import rlds_beam
from rlds_beam.errors import UsageError, Violation
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.testing import flip_byte, make_episode, shard_paths, write_dataset

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202e\"'&"


class Checked(html.parser.HTMLParser):
    """Checks that HTML is well formed and self-contained, and has only the elements and attributes of `viewing`."""

    ELEMENTS = frozenset(("div", "figure", "img", "pre"))
    ATTRIBUTES = frozenset(("alt", "src", "style"))

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.images = 0
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag in self.ELEMENTS
        for name, value in attributes:
            assert name in self.ATTRIBUTES
            if name == "src":
                assert value is not None and value.startswith("data:image/jpeg;base64,")
                self.images += 1
        if tag != "img":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag != "img":
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def checked(value: Any) -> Checked:
    """The HTML of a value in a notebook."""
    return Checked(value._repr_html_())


@pytest.fixture(scope="module")
def camera(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_camera_episodes(tmp_path_factory.mktemp("data"), 6)


def test_a_row_of_a_dataset(camera: str) -> None:
    dataset = rlds_beam.open_dataset(camera)
    view = rlds_beam.show(dataset[3])
    assert "steps, return" in str(view) and '"push the point to the goal' in str(view)
    assert re.search(r"^observation/position 0  [▁-█]{10,}  -?\d", str(view), re.MULTILINE)
    shown = checked(view)
    assert shown.images == 8 and "observation/image" in shown.text
    encoded = rlds_beam.open_dataset(camera, images="encoded")[3]
    assert checked(rlds_beam.show(encoded)).images == 8
    assert str(rlds_beam.show(camera, 3)).splitlines()[1:] != []


def test_the_number_of_an_episode(camera: str, tmp_path: Path) -> None:
    last = str(rlds_beam.show(camera, -1))
    assert last == str(rlds_beam.show(camera, 5)) != str(rlds_beam.show(camera, 4))
    key = last.splitlines()[0]
    assert str(rlds_beam.show(camera, key)) == last
    assert str(rlds_beam.show(camera, 0, split="train[5:]")) == last
    for wrong in (6, -7):
        with pytest.raises(UsageError, match="has 6 episodes, numbered from 0"):
            rlds_beam.show(camera, wrong)
    with pytest.raises(UsageError, match="is not an episode key"):
        rlds_beam.show(camera, "nothing")
    with pytest.raises(UsageError, match="no such shard"):
        rlds_beam.show(camera, "point_mass_camera/1.0.0:test:00000@0")
    with pytest.raises(UsageError, match="missing"):
        rlds_beam.show(str(tmp_path / "missing"), 3)


def test_items_and_columns(camera: str, tmp_path: Path) -> None:
    export(camera, tmp_path / "pairs", "trajectories")
    export(camera, tmp_path / "columns", "columns")
    assert "2 steps" in str(rlds_beam.show(tmp_path / "pairs", 4))
    view = rlds_beam.show(tmp_path / "columns", 4)
    assert re.search(r"^rewards +-\d", str(view), re.MULTILINE) and checked(view).images == 1
    with pytest.raises(UsageError, match="out of range"):
        rlds_beam.show(tmp_path / "columns", 1_000_000)
    assert checked(rlds_beam.open_dataset(tmp_path / "columns")).images == 6


def test_datasets_and_sources(camera: str) -> None:
    dataset, source = rlds_beam.open_dataset(camera), rlds_beam.open_source(camera)
    assert checked(dataset).images == 6
    assert "row 5" in checked(dataset).text
    assert "└── steps" in repr(dataset) and "6 rows" in repr(dataset)
    assert str(rlds_beam.show(camera)) == str(source) and "├── observation" in str(source)
    assert checked(rlds_beam.open_dataset(camera, unit="steps")).images == 6


def test_an_episode_with_violations() -> None:
    episode = make_episode(10, breaks={"non_finite", "missing_is_last"})
    view = rlds_beam.show(episode)
    lines = str(view).splitlines()
    assert "non_finite: reward: nan at step 5" in lines
    assert "  --repair=missing_is_last marks the final step as a truncation" in lines
    reward = next(i for i, line in enumerate(lines) if line.startswith("reward "))
    assert lines[reward + 1].index("▲") == lines[reward].index("·")


def test_a_damaged_record(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, [make_episode(5, seed=i) for i in range(4)])
    flip_byte(shard_paths(data)[0], record=2)
    view = rlds_beam.show(data, 2)
    assert "corrupt_record" in str(view) and "checksum" in str(view)


def test_damaged_and_many_images() -> None:
    images = encode_jpeg(np.zeros((3, 16, 16, 3), np.uint8))
    images[1] = images[1][:100]
    columns = {
        f"observation/camera_{i}": rlds_beam.EncodedImages(np.array(images, object), (16, 16, 3)) for i in range(6)
    }
    shown = checked(make_episode(3).with_columns(columns))
    assert shown.images == 4 * 3


def test_hostile_text_is_not_markup() -> None:
    steps = 3
    episode = make_episode(
        steps,
        columns={HOSTILE: np.arange(steps), "language_instruction": np.full(steps, HOSTILE.encode(), object)},
        metadata={"name": HOSTILE, HOSTILE: 1, "array": np.array([HOSTILE] * 9)},
    ).replace(faults=(Violation("non_finite", HOSTILE, HOSTILE, 1),))
    view = rlds_beam.show(episode)
    assert "<script>alert(1)" in "".join(checked(view).text)


def test_other_values(tmp_path: Path) -> None:
    for value in (3, object(), [1, 2], rlds_beam.Report()):
        with pytest.raises(UsageError, match="cannot be shown"):
            rlds_beam.show(value)
    with pytest.raises(UsageError, match="split is for the path of a dataset, not for an Episode"):
        rlds_beam.show(make_episode(3), split="train")
    with pytest.raises(UsageError, match="an Episode has no episodes"):
        rlds_beam.show(make_episode(3), 3)


def test_rows_of_several_episodes_and_empty_ones(camera: str) -> None:
    dataset = rlds_beam.open_dataset(camera)
    assert "arrays of several shapes" in str(rlds_beam.show(dataset[1:3]))
    assert checked(rlds_beam.show(dataset[0:0]))
    assert checked(rlds_beam.show({}))
    assert checked(make_episode(3, breaks={"empty_episode"}))


def test_an_episode_is_printed_as_a_tree() -> None:
    episode = make_episode(4, observation={"state": 7}, metadata={"episode_id": 12, "file": "a.h5"})
    assert repr(episode).splitlines() == [
        "Episode testing/1.0.0:train:00000@0: 4 steps",
        "step",
        "├── action       float32 (2,)",
        "├── discount     float32",
        "├── is_first     bool",
        "├── is_last      bool",
        "├── is_terminal  bool",
        "├── observation",
        "│   └── state    float32 (7,)",
        "└── reward       float32",
        "episode",
        "├── episode_id   12",
        "└── file         a.h5",
    ]
