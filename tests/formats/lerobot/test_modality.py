"""`--modality`: meta/modality.json for GR00T."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lerobot_data as data
import pytest

from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import UsageError
from rlds_beam.formats.lerobot.feature_map import map_features
from rlds_beam.formats.lerobot.output import auto_modality, modality_text
from rlds_beam.testing import make_episode, write_dataset

FIELDS = (
    Field("observation/image_0", "uint8", (32, 32, 3), "jpeg"),
    Field("observation/arm", "float32", (7,)),
    Field("observation/gripper", "float32"),
    Field("observation/mode", "int64"),
    Field("action", "float32", (8,)),
    Field("language_instruction", "string", (), "text"),
)
MAP = ("observation.state=observation/arm+observation/gripper",)


def features(*entries: str, fields: tuple[Field, ...] = FIELDS) -> Any:
    return map_features(Schema({field.path: field for field in fields}, {}), entries)


def test_auto_names_the_parts():
    found = features(*MAP)
    assert auto_modality(found, found.images) == {
        "state": {"arm": {"start": 0, "end": 7}, "gripper": {"start": 7, "end": 8}},
        "action": {"action": {"start": 0, "end": 8}},
        "video": {"image_0": {"original_key": "observation.images.image_0"}},
        "annotation": {"human.task_description": {"original_key": "task_index"}},
    }


def test_auto_without_text_or_cameras_and_with_equal_names():
    fields = (*(Field(f"observation/{arm}/joint", "float32", (2,)) for arm in ("left", "right")), FIELDS[4])
    found = features("observation.state=observation/left/joint+observation/right/joint", fields=fields)
    assert auto_modality(found, ()) == {
        "state": {"observation.left.joint": {"start": 0, "end": 2}, "observation.right.joint": {"start": 2, "end": 4}},
        "action": {"action": {"start": 0, "end": 8}},
        "video": {},
    }


def test_auto_is_refused_if_gr00t_would_find_nothing():
    with pytest.raises(UsageError, match=r"--map=action=PATH\+PATH"):
        auto_modality(features(*MAP, "-action"), ())
    with pytest.raises(UsageError, match="--images=video"):
        auto_modality(features(*MAP), ())


GOOD = {
    "state": {"arm": {"start": 0, "end": 7}, "mode": {"start": 0, "end": 1, "original_key": "observation.mode"}},
    "action": {"all": {"start": 0, "end": 8, "absolute": False}},
    "video": {"front": {"original_key": "observation.images.image_0"}},
    "annotation": {"human.task_description": {"original_key": "task_index"}},
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state": {"arm": {"start": 0, "end": 9}}}, "state.arm: start 0 and end 9 are outside observation.state"),
        ({"state": {"arm": {"start": 2}}}, "are outside observation.state"),
        ({"action": {"a": {"start": 0, "end": 1, "original_key": "actoin"}}}, "did you mean action"),
        ({"video": {"front": {"original_key": "observation.images.front"}}}, "video.front: there is no video"),
        ({"annotation": {"human.task_description": {}}}, "annotation.human.task_description"),
        ({"sate": {}}, "did you mean state"),
        ({"state": [1]}, "each an object"),
        ({"video": {"front": 3}}, "expected an object"),
    ],
)
def test_a_file_is_checked_against_the_features(tmp_path, change, message):
    found = features(*MAP)
    path = tmp_path / "modality.json"
    path.write_text(json.dumps(GOOD, indent=1))
    assert modality_text(str(path), found, found.images) == path.read_text()
    path.write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(UsageError, match=message):
        modality_text(str(path), found, found.images)
    path.write_text("{")
    with pytest.raises(UsageError, match="not valid JSON"):
        modality_text(str(path), found, found.images)


def test_it_is_written_only_for_v21(tmp_path):
    source = write_dataset(tmp_path, [make_episode(3, seed=i) for i in range(2)], name="toy")
    data.convert_here(source, tmp_path / "auto", lerobot_version="2.1", modality="auto")
    text = (tmp_path / "auto/meta/modality.json").read_text()
    assert json.loads(text)["state"] == {"observation": {"start": 0, "end": 3}}
    data.convert_here(source, tmp_path / "own", lerobot_version="2.1", modality=tmp_path / "auto/meta/modality.json")
    assert (tmp_path / "own/meta/modality.json").read_text() == text
    assert not Path(tmp_path, "none/meta/modality.json").exists()
    with pytest.raises(UsageError, match="add --lerobot_version"):
        data.convert_here(source, tmp_path / "none", modality="auto")
    with pytest.raises(UsageError, match="another plan"):
        data.convert_here(source, tmp_path / "auto", lerobot_version="2.1")
