"""Parsing dataset_info.json, and rejecting hostile content."""

import json
from typing import Any

import pytest

from rlds_beam.encoding.tfds.dataset_info import DatasetInfo, SplitInfo, dataset_info_json, read_dataset_info
from rlds_beam.errors import UsageError

SPLIT = {"name": "train", "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}", "numBytes": "347"}
INFO: dict[str, Any] = {
    "name": "bridge_dataset",
    "version": "1.0.0",
    "fileFormat": "tfrecord",
    "splits": [SPLIT | {"shardLengths": ["25", "3"]}],
}


def read(**changes: Any) -> DatasetInfo:
    return read_dataset_info(json.dumps({k: v for k, v in (INFO | changes).items() if v is not None}), "info.json")


def read_split(**changes: Any) -> SplitInfo:
    split = {k: v for k, v in (INFO["splits"][0] | changes).items() if v is not None}
    return read(splits=[split]).splits[split["name"]]


def test_output_of_tfds() -> None:
    info = read()
    assert info == DatasetInfo("bridge_dataset", "1.0.0", None, "tfrecord", {"train": SplitInfo("train", (25, 3), 347)})
    assert (
        info.splits["train"].filename(info.name, info.file_format, 1) == "bridge_dataset-train.tfrecord-00001-of-00002"
    )


def test_output_of_the_episode_writer() -> None:
    split = read_split(filepathTemplate="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}")
    assert split.filename("catch", "tfrecord", 1) == "catch-train.tfrecord-00001"


def test_defaults_of_tfds() -> None:
    assert read(fileFormat=None).file_format == "tfrecord"
    assert read_split(filepathTemplate=None).filepath_template == SPLIT["filepathTemplate"]
    assert read(splits=[]).splits == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": None}, "no `name`"),
        ({"version": None}, "no `version`"),
        ({"name": "../other"}, r"name is '../other'"),
        ({"name": ".."}, r"name is '..'"),
        ({"name": 3}, "no `name`"),
        ({"version": "1.0.0/.."}, "version is"),
        ({"configName": "a/b"}, "configName is"),
        ({"fileFormat": "riegeli"}, "fileFormat is 'riegeli'"),
        ({"splits": {}}, "not a list"),
        ({"splits": ["train"]}, "not an object"),
        ({"splits": [INFO["splits"][0]] * 2}, "duplicate split names"),
    ],
)
def test_invalid_files(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^info.json: .*{message}"):
        read(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"filepathTemplate": "/etc/passwd"}, "no directories"),
        ({"filepathTemplate": "../{SPLIT}-{SHARD_X_OF_Y}"}, "no directories"),
        ({"filepathTemplate": ".."}, "no directories"),
        ({"filepathTemplate": "a\\b"}, "no directories"),
        ({"filepathTemplate": "{SPLIT.__class__}"}, "no directories"),
        ({"filepathTemplate": "{HOME}"}, "no directories"),
        ({"filepathTemplate": "{SPLIT}\n"}, "no directories"),
        ({"filepathTemplate": 3}, "no directories"),
        ({"name": "a/../b"}, "name is"),
        ({"shardLengths": None}, "no shardLengths"),
        ({"shardLengths": ["many"]}, "has 'many', which is not a count"),
        ({"shardLengths": ["-1"]}, "not a count"),
        ({"shardLengths": 3}, "not a list"),
        ({"numBytes": "x"}, "numBytes of train"),
    ],
)
def test_invalid_splits(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"(?s)^info.json: .*{message}"):
        read_split(**changes)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[" * 100_000])
def test_invalid_json(text: str) -> None:
    with pytest.raises(UsageError, match=r"info\.json: (not|cannot read)"):
        read_dataset_info(text, "info.json")


def test_round_trip() -> None:
    splits = [SplitInfo("train", (3, 4), 99), SplitInfo("test", (), 0, "{SPLIT}-{SHARD_INDEX}")]
    info = dataset_info_json("made", "2.0.0", splits, config_name="small", file_format="array_record")
    assert read_dataset_info(json.dumps(info), "x") == DatasetInfo(
        "made", "2.0.0", "small", "array_record", {split.name: split for split in splits}
    )
