"""`convert --to=rlds`: unedited data is copied, edits are described, and TFDS reads all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchanging import export
from hypothesis import given, settings
from hypothesis import strategies as st
from rlds_data import LENGTHS, EditSome, Halves, episode, random, schemas

import rlds_beam
from rlds_beam import Field
from rlds_beam.connectors import EpisodeConnector, MinimumLength, SplitEpisodes
from rlds_beam.encoding.tfds.features import parse_features
from rlds_beam.encoding.tfds.rlds_dataset import default_schema, edited_features, encode_example
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.formats.rlds.records import RecordEncoder
from rlds_beam.reading.decoding import EpisodeDecoder
from rlds_beam.testing import make_episode, read_payloads, write_dataset

KEY = EpisodeKey("toy/1.0.0", "train", 0, 0)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Two shards, one bad record, and extra entries in dataset_info.json and features.json."""
    records = [episode(length, seed) for seed, length in enumerate(LENGTHS)]
    bad = make_episode(
        "F M M",
        observation={"state": 3},
        columns={p: c[:3] for p, c in episode(3, 9).steps.items() if p.startswith(("observation/", "lang", "extra"))},
        metadata=episode(3, 9).metadata,
    )
    path = write_dataset(tmp_path_factory.mktemp("data"), [*records, bad], name="toy", version="2.1.0", shards=2)
    info = json.loads((path / "dataset_info.json").read_text())
    info |= {"description": "Toys.", "citation": "@toy", "redistributionInfo": {"license": "CC-BY-4.0"}}
    (path / "dataset_info.json").write_text(json.dumps(info))
    features = json.loads((path / "features.json").read_text())
    steps = features["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
    steps["action"]["description"] = "Velocities."
    (path / "features.json").write_text(json.dumps(features))
    return path


@pytest.fixture(scope="module")
def copied(data, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("copied") / "toy" / "2.1.0"
    done = rlds_beam.convert(data, output, to="rlds", shards=2)
    assert (done.report.records, done.report.rejected, done.report.items_written) == (6, 1, 5)
    return output


@pytest.fixture(scope="module")
def edited(data, tmp_path_factory) -> Path:
    pytest.importorskip("array_record")
    output = tmp_path_factory.mktemp("edited") / "out"
    export(data, output, "rlds", connectors=[MinimumLength(3), EditSome()], shards=2, format="array_record")
    return output


def payloads(directory: Path) -> list[bytes]:
    return [payload for file in sorted(directory.glob("*.tfrecord-*")) for payload in read_payloads(file)]


def rows(directory: Path, **options: Any) -> list[dict[str, Any]]:
    return list(rlds_beam.open_dataset(directory, images="encoded", **options))


def test_unedited_records_keep_their_bytes(data, copied):
    assert payloads(copied) == payloads(data)[:-1]
    assert (copied / "features.json").read_text() == (data / "features.json").read_text()
    info, before = (json.loads((path / "dataset_info.json").read_text()) for path in (copied, data))
    assert {k: v for k, v in info.items() if k != "splits"} == {k: v for k, v in before.items() if k != "splits"}
    assert info["splits"][0]["shardLengths"] == ["3", "2"]
    assert read_payloads(next((copied / "rejected").glob("*.tfrecord"))) == payloads(data)[-1:]


def test_provenance_is_written(data, edited, tmp_path):
    made = json.loads((edited / "provenance.json").read_text())
    assert made["source"]["dataset"] == "toy/2.1.0"
    assert made["source"]["info"]["redistributionInfo"] == {"license": "CC-BY-4.0"}
    assert [shard["bytes"] for shard in made["source"]["shards"]["train"]] == [
        file.stat().st_size for file in sorted(data.glob("*.tfrecord-*"))
    ]
    assert made["connectors"]["connectors"][0] == {"name": "MinimumLength", "arguments": {"transitions": 3}}
    assert made["counts"] == {
        "records": 6,
        "valid": 5,
        "repaired": 0,
        "rejected": 1,
        "dropped": {"MinimumLength": 1},
        "written": 4,
    }
    assert made["splits"] == [{"name": "train", "episodes": 4}]
    assert str(edited) not in json.dumps(made)


def test_licenses_and_provenance_are_kept(copied, tmp_path):
    (copied / "LICENSE.txt").write_text("Do as you like.")
    try:
        export(copied, tmp_path / "out", "rlds")
    finally:
        (copied / "LICENSE.txt").unlink()
    assert (tmp_path / "out/LICENSE.txt").read_text() == "Do as you like."
    made = json.loads((tmp_path / "out/provenance.json").read_text())
    assert made["source_provenance"]["source"]["dataset"] == "toy/2.1.0"


def test_episodes_are_divided_among_splits(data, tmp_path):
    pieces = [SplitEpisodes({"train": 0.5, "val": 0.5})]
    done = rlds_beam.convert(data, tmp_path / "out", to="rlds", connectors=pieces, shards=2)
    assert done.report.items_written == 5
    found = {split: rows(tmp_path / "out", split=split) for split in ("train", "val")}
    assert all(found.values())
    read = sorted(row["episode_metadata/seed"] for own in found.values() for row in own)
    assert read == [0, 1, 2, 3, 4]
    assert "output_split" not in (tmp_path / "out/features.json").read_text()
    assert sorted(payloads(tmp_path / "out")) == sorted(payloads(data)[:-1])
    with pytest.raises(UsageError, match="SplitEpisodes needs --to=rlds, not --to=trajectories"):
        rlds_beam.convert(data, tmp_path / "other", connectors=pieces)


def test_edits_are_in_the_features_and_the_rest_is_unchanged(data, edited):
    features = json.loads((edited / "features.json").read_text())["featuresDict"]["features"]
    steps = features["steps"]["sequence"]["feature"]["featuresDict"]["features"]
    assert steps["action"]["description"] == "Velocities."
    assert "extra" not in steps
    assert steps["observation"]["featuresDict"]["features"]["half"]["tensor"]["dtype"] == "float32"
    assert features["length"]["tensor"]["dtype"] == "int32"
    before = [row for row in rows(data)[:-1] if len(row["steps/reward"]) > 3]
    for old, new in zip(before, rows(edited), strict=True):
        assert new["steps/observation/image"].tolist() == old["steps/observation/image"].tolist()
        assert new["steps/observation/depth"].tolist() == old["steps/observation/depth"].tolist()
        np.testing.assert_array_equal(new["steps/reward"], old["steps/reward"] * 2)
        np.testing.assert_array_equal(new["steps/observation/half"], old["steps/observation/state"] / 2)
        assert new["length"] == len(old["steps/reward"])
        assert new["episode_metadata/file_path"] == old["episode_metadata/file_path"]


def test_tfds_reads_copied_and_edited_records(data, copied, edited):
    tfds = pytest.importorskip("tensorflow_datasets")
    before = [
        dict(e, steps=list(e["steps"]))
        for e in tfds.as_numpy(tfds.builder_from_directory(str(data)).as_dataset("train"))
    ]
    after = [
        dict(e, steps=list(e["steps"]))
        for e in tfds.as_numpy(tfds.builder_from_directory(str(copied)).as_dataset("train"))
    ]
    assert len(after) == 5
    for old, new in zip(before, after, strict=False):
        assert new["episode_metadata"] == old["episode_metadata"]
        for a, b in zip(old["steps"], new["steps"], strict=True):
            np.testing.assert_equal(b, a)
    source = tfds.builder_from_directory(str(edited)).as_data_source("train")
    assert [len(one["steps"]) for one in source] == [4, 9, 6, 5]
    step = source[1]["steps"][2]
    np.testing.assert_array_equal(step["observation"]["depth"], before[1]["steps"][2]["observation"]["depth"])
    assert step["observation"]["image"].shape == (8, 12, 3)
    np.testing.assert_array_equal(step["observation"]["half"], before[1]["steps"][2]["observation"]["state"] / 2)
    assert tfds.builder_from_directory(str(copied)).info.citation == "@toy"


def test_rlds_tools_read_it(copied):
    rlds = pytest.importorskip("rlds")
    tfds = pytest.importorskip("tensorflow_datasets")
    dataset = tfds.builder_from_directory(str(copied)).as_dataset("train")
    pairs = rlds.transformations.map_nested_steps(dataset, lambda step: step["reward"])
    assert [len(list(one["steps"])) for one in pairs] == list(LENGTHS)


def test_a_repair_changes_nothing_else(data, tmp_path):
    export(data, tmp_path / "out", "rlds", repair=("missing_is_last",))
    assert payloads(tmp_path / "out")[:-1] == payloads(data)[:-1]
    old, new = rows(data)[-1], rows(tmp_path / "out")[-1]
    assert new["steps/is_last"].tolist() == [False, False, True]
    assert old.keys() == new.keys()
    for path in old.keys() - {"steps/is_last"}:
        np.testing.assert_array_equal(new[path], old[path], err_msg=path)


def test_parts_of_an_episode_are_records(data, tmp_path):
    done = rlds_beam.convert(data, tmp_path / "out", to="rlds", connectors=[Halves()])
    assert done.report.items_written == 10
    assert [len(row["steps/reward"]) for row in rows(tmp_path / "out")][:4] == [2, 2, 2, 7]


def test_the_directory_names_the_dataset_in_tfds_layout(data, tmp_path):
    export(data, tmp_path / "clean_toy" / "3.0.0", "rlds")
    info = json.loads((tmp_path / "clean_toy/3.0.0/dataset_info.json").read_text())
    assert (info["name"], info["version"]) == ("clean_toy", "3.0.0")
    tfds = pytest.importorskip("tensorflow_datasets")
    assert tfds.builder("clean_toy", data_dir=str(tmp_path)).info.splits["train"].num_examples == 5


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (Field("stack", "uint8", (4, 8, 8, 3), "png"), r"stack has images of shape \(4, 8, 8, 3\)"),
        (Field("cloud", "float32", (None, 3)), "cloud has shape .* only with encoding bytes"),
        (Field("tokens", "int64", (None,), fast=False, feature="Sequence(Tensor)"), r"tokens is a Sequence\(Tensor\)"),
    ],
)
def test_fields_that_tfds_cannot_hold_are_refused_by_name(field, message):
    schema = default_schema(make_episode(3)).with_columns(field)
    with pytest.raises(UsageError, match=message):
        edited_features(schema)


@settings(deadline=None, max_examples=40)
@given(schemas(), st.integers(1, 6), st.integers(0, 1 << 30), st.data())
def test_records_are_read_back_unchanged_and_copying_equals_encoding(schema, length, seed, data):
    rng = np.random.default_rng(seed)
    steps = {path: random(field, length, rng) for path, field in schema.steps.items()}
    made = Episode(KEY, steps, {path: random(field, 1, rng)[0] for path, field in schema.metadata.items()})
    text = json.dumps(edited_features(schema))
    stored = parse_features(text, "features.json")
    record = RecordEncoder(schema, None).encode(made, None)
    read = EpisodeDecoder(stored, text).decode(record, KEY)
    for path, column in made.steps.items():
        np.testing.assert_array_equal(read.steps[path], column, err_msg=path)
    for path, value in made.metadata.items():
        np.testing.assert_array_equal(read.metadata[path], value, err_msg=path)
    encoder = RecordEncoder(stored, stored)
    assert encoder.encode(read, read) is read.payload
    changed = data.draw(st.sets(st.sampled_from(sorted(schema.steps))))
    other = read.replace(steps={p: c.copy() if p in changed else c for p, c in read.steps.items()})
    assert encoder.encode(other, read) == encoder.encode(other, None) == record


def test_a_dataset_without_discounts_gets_them_only_with_connectors(tmp_path):
    steps = {p: c for p, c in make_episode(4).steps.items() if p != "discount"}
    made = make_episode(4).replace(steps=steps)
    path = write_dataset(tmp_path / "data", [made], schema=default_schema(made))
    export(path, tmp_path / "copy", "rlds")
    assert payloads(tmp_path / "copy") == payloads(path) == [encode_example(made)]
    export(path, tmp_path / "long", "rlds", connectors=[MinimumLength(1)])
    assert rows(tmp_path / "long")[0]["steps/discount"].tolist() == [1, 1, 1, 1]
    assert payloads(tmp_path / "long") == [
        encode_example(make_episode(4).replace(steps={**steps, "discount": np.ones(4, np.float32)}))
    ]


def test_ragged_fields_are_copied_and_not_edited(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    import tensorflow as tf

    step = {
        "observation": tf.float32,
        "action": tf.float32,
        "reward": tf.float32,
        "discount": tf.float32,
        "is_first": tf.bool,
        "is_last": tf.bool,
        "is_terminal": tf.bool,
    }
    features = tfds.features.FeaturesDict(
        {
            "steps": tfds.features.Dataset({**step, "tokens": tfds.features.Sequence(tf.int64)}),
            "kind": tfds.features.ClassLabel(names=["a", "b"]),
        }
    )
    halves = dict.fromkeys(("observation", "action", "reward", "discount"), 0.5)
    flags = [{"is_first": i == 0, "is_last": i == 2, "is_terminal": False} for i in range(3)]
    values = [halves | flags[i] | {"tokens": list(range(i))} for i in range(3)]
    record = features.serialize_example(features.encode_example({"steps": values, "kind": "b"}))
    path = write_dataset(tmp_path / "data", [record], schema=default_schema(make_episode(3)))
    features.save_config(path)  # class names are in a separate file

    export(path, tmp_path / "out", "rlds", connectors=[DoubleRewards()])
    built = tfds.builder_from_directory(str(tmp_path / "out"))
    assert built.info.features["kind"].names == ["a", "b"]
    (found,) = built.as_dataset("train")
    assert [s["tokens"].numpy().tolist() for s in found["steps"]] == [[], [0], [0, 1]]
    assert [float(s["reward"]) for s in found["steps"]] == [1, 1, 1]
    with pytest.raises(
        rlds_beam.errors.RldsBeamError, match=r"tokens is a Sequence\(Tensor\), which can only be copied"
    ):
        rlds_beam.convert(path, tmp_path / "halves", to="rlds", connectors=[Halves()])


class DoubleRewards(EpisodeConnector):
    def edit(self, episode, fields):
        return episode.with_columns({"reward": episode.steps["reward"] * 2})
