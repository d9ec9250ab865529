"""Fault cases 1 to 10, by number, through the real command: faults in files."""

from __future__ import annotations

import dataclasses
import gzip
import json
import resource
import shutil

import numpy as np
import pytest
from damage import set_length
from jobs import EPISODES, dataset, episodes, pairs

from rlds_beam.encoding.tfds.rlds_dataset import default_schema, encode_example
from rlds_beam.testing import (
    cut,
    features_json,
    flip_byte,
    make_episode,
    record_offsets,
    shard_paths,
)


@pytest.mark.parametrize("part", ["payload", "payload_crc"])
def test_1_data_checksum(tmp_path, convert, check_rules, part):
    source = dataset(tmp_path)
    shard = shard_paths(source)[1]
    offset = record_offsets(shard)[1]
    flip_byte(shard, record=1, part=part, at=0)
    damaged = shard.read_bytes()[offset + 12 : record_offsets(shard)[2] - 4]
    ran = convert(source)
    line, payload = ran.assert_one_rejected("corrupt_record", str(shard), str(offset))
    assert line["key"] == f"testing/1.0.0:train:00001@{offset}"
    assert payload == damaged
    assert len(ran.items) == pairs(EPISODES - 1)
    code, report, _ = check_rules(source)
    assert code == 3
    assert report["rules"]["corrupt_record"]["samples"][0]["key"] == line["key"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda shard: flip_byte(shard, record=1, part="length"),
        lambda shard: flip_byte(shard, record=1, part="length_crc"),
        lambda shard: set_length(shard, record=1, length=1 << 20),
        lambda shard: set_length(shard, record=1, length=(1 << 64) - 1),
    ],
    ids=["1_length", "1_length_crc", "8_huge_length", "8_largest_length"],
)
def test_1_and_8_a_wrong_length_costs_one_record(tmp_path, convert, damage):
    source = dataset(tmp_path)
    damage(shard_paths(source)[0])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ran = convert(source)
    ran.assert_one_rejected("corrupt_record")
    assert len(ran.items) == pairs(EPISODES - 1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # kB


@pytest.mark.parametrize("extra", [5, 60], ids=["header", "payload"])
def test_2_torn_record(tmp_path, convert, extra):
    source = dataset(tmp_path)
    shard = shard_paths(source)[0]
    offset = record_offsets(shard)[2]
    cut(shard, record=2, extra=extra)
    torn = shard.read_bytes()[offset:]
    ran = convert(source)
    line, payload = ran.assert_one_rejected("corrupt_record", str(shard), str(offset))
    assert line["key"] == f"testing/1.0.0:train:00000@{offset}"
    assert torn == payload
    assert len(ran.items) == pairs(EPISODES - 1)


@pytest.mark.parametrize("keep", [2, 0], ids=["3_boundary", "4_empty"])
def test_3_and_4_short_shard(tmp_path, convert, check_rules, keep):
    source = dataset(tmp_path)
    shard = shard_paths(source)[1]
    cut(shard, record=keep)
    ran = convert(source)
    assert ran.code == 3
    assert ran.rules == {"short_shard": 1}
    assert f"{shard} holds {keep} records; dataset_info.json says 3" in ran.out
    assert ran.rejected == []
    assert len(ran.items) == pairs(3 + keep)  # everything that exists was converted
    code, report, _ = check_rules(source)
    assert (code, report["rules"]["short_shard"]["rejected"]) == (3, 1)


def test_5_missing_shard(tmp_path, convert, check_rules):
    source = dataset(tmp_path)
    shard = shard_paths(source)[1]
    shard.unlink()
    convert(source).assert_nothing_done("missing_shard", str(shard), "3 episodes")
    code, _, err = check_rules(source)
    assert code == 2
    assert "missing_shard" in err
    ran = convert(source, "--accept=missing_shard")
    assert ran.code == 0
    assert len(ran.items) == pairs(3)


def test_6_stale_shard(tmp_path, convert):
    source = dataset(tmp_path)
    stale = source / "testing-train.tfrecord-00002-of-00003"
    shutil.copy(shard_paths(source)[1], stale)
    convert(source).assert_nothing_done("extra_shard", str(stale))
    ran = convert(source, "--accept=extra_shard")
    assert ran.code == 0
    assert len(ran.items) == pairs(EPISODES)  # the files of dataset_info.json, each once


def test_7_gzip_is_recognized_by_its_bytes(tmp_path, convert):
    source = dataset(tmp_path)
    plain = convert(source, output=tmp_path / "plain")
    for shard in shard_paths(source):
        shard.write_bytes(gzip.compress(shard.read_bytes()))
    ran = convert(source)
    assert ran.code == 0
    key = [item["observation"].tobytes() for item in ran.items]
    assert key == [item["observation"].tobytes() for item in plain.items]


@pytest.mark.parametrize(
    ("record", "rule"),
    [
        (b"", "not_an_example"),
        (b"\xff not an example", "not_an_example"),
        (encode_example(make_episode(3))[:-1], "not_an_example"),
        (encode_example(make_episode(2).replace(steps={"label": np.zeros(2, np.int64)})), "missing_field"),
    ],
)
def test_9_not_an_example(tmp_path, convert, record, rule):
    source = dataset(tmp_path, [*episodes(), record])
    _, payload = convert(source).assert_one_rejected(rule)
    assert payload == record


@pytest.mark.parametrize("missing", ["features.json", "dataset_info.json"])
def test_10_metadata_missing(tmp_path, convert, missing):
    source = dataset(tmp_path)
    (source / missing).unlink()
    convert(source).assert_nothing_done(missing, "dataset" if missing == "features.json" else "Restore")


@pytest.mark.parametrize(
    ("path", "dtype"), [("observation", "int64"), ("observation_2", "float32")], ids=["dtype", "a field of no record"]
)
def test_10_schema_mismatch(tmp_path, convert, check_rules, path, dtype):
    source = dataset(tmp_path)
    schema = default_schema(episodes(1)[0])
    wrong = dataclasses.replace(schema.steps["observation"], path=path, dtype=dtype)
    other = dataclasses.replace(schema, steps={**schema.steps, path: wrong})
    (source / "features.json").write_text(json.dumps(features_json(other)))
    convert(source).assert_nothing_done("schema_mismatch", path, dtype if path == "observation" else "")
    assert check_rules(source)[0] == 2
