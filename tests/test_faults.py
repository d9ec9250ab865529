"""The fault cases of reliability_facts_and_cases.md, section 5, each by its number, through the real command.

Cases 21 to 26 are about Reverb; 27 (kill and rerun) has a file of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds_beam.images import EncodedImages
from rlds_beam.keys import EpisodeKey
from rlds_beam.pipelines.cli import main
from rlds_beam.testing import (
    cut,
    encode_example,
    features_json,
    flip_byte,
    insert_bytes,
    make_episode,
    read_items,
    read_payloads,
    read_rejected,
    record_offsets,
    schema_of,
    set_length,
    shard_paths,
    write_dataset,
)

STEPS = 5
EPISODES = 6


def episodes(count: int = EPISODES) -> list[Any]:
    return [make_episode(STEPS, seed=i) for i in range(count)]


@dataclasses.dataclass
class Ran:
    """A command that ran: its exit code, what it printed, and where it wrote."""

    code: int
    out: str
    err: str
    output: Path

    @property
    def report(self) -> dict[str, Any]:
        return json.loads((self.output / "report.json").read_text())

    @property
    def rules(self) -> dict[str, int]:
        return {rule: count["rejected"] for rule, count in self.report["rules"].items()}

    @property
    def rejected(self) -> list[tuple[dict[str, Any], bytes]]:
        return read_rejected(self.output)

    @property
    def items(self) -> list[dict[str, Any]]:
        return read_items(self.output)

    def assert_nothing_done(self, *mentioned: str) -> None:
        """Exit code 2: refused before any work, with a message that names what is wrong."""
        assert self.code == 2, self.err
        assert self.out == ""
        assert self.err.startswith("rlds-beam: ")
        assert len(self.err.splitlines()) == 1
        for text in mentioned:
            assert text in self.err
        assert not self.output.exists()

    def assert_one_rejected(self, rule: str, *mentioned: str, field: str | None = None) -> tuple[dict[str, Any], bytes]:
        """Exit code 3: one record is set aside for `rule`, and all others are written."""
        assert self.code == 3, self.err
        assert self.err == ""
        ((line, payload),) = self.rejected
        assert line["rule"] == rule
        assert rule in self.out
        if field is not None:
            assert field in [v.get("field") for v in line["violations"]]
        for text in mentioned:
            assert text in line["detail"]
        report = self.report
        assert report["records"] == report["valid"] + report["rejected"]
        assert report["rejected"] == 1
        assert report["items_written"] == len(self.items) == report["items_predicted"]
        EpisodeKey.parse(line["key"])
        return line, payload


@pytest.fixture
def convert(tmp_path, capsys):
    def run(source: Path | str, *flags: str, output: Path = tmp_path / "out") -> Ran:
        code = main(["convert", str(source), str(output), *flags])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err, output)

    return run


@pytest.fixture
def convert_only(convert):
    """Without the look for duplicates, which is most of what a tiny job takes."""

    def run(source: Path | str, *flags: str, **kwargs: Any) -> Ran:
        return convert(source, "--accept=duplicate_episode", *flags, **kwargs)

    return run


@pytest.fixture
def validate(tmp_path, capsys):
    def run(source: Path | str, *flags: str) -> tuple[int, dict[str, Any], str]:
        code = main(["validate", str(source), "--json", *flags])
        captured = capsys.readouterr()
        return code, json.loads(captured.out) if captured.out else {}, captured.err

    return run


def dataset(tmp_path: Path, records: Any = None, shards: int = 2, **kwargs: Any) -> Path:
    return write_dataset(tmp_path / "data", episodes() if records is None else records, shards=shards, **kwargs)


def pairs(records: int) -> int:
    return records * (STEPS - 1)


# Bytes (1 to 10)


@pytest.mark.parametrize("part", ["payload", "payload_crc"])
def test_1_data_checksum(tmp_path, convert, validate, part):
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
    code, report, _ = validate(source)
    assert code == 3
    assert report["rules"]["corrupt_record"]["samples"][0]["key"] == line["key"]


@pytest.mark.parametrize("part", ["length", "length_crc"])
def test_1_length_checksum_costs_one_record(tmp_path, convert, part):
    source = dataset(tmp_path)
    flip_byte(shard_paths(source)[0], record=1, part=part)
    ran = convert(source)
    ran.assert_one_rejected("corrupt_record")
    assert len(ran.items) == pairs(EPISODES - 1)


@pytest.mark.parametrize("extra", [5, 12, 60, -4, -1], ids=["header", "no-payload", "payload", "no-footer", "footer"])
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
def test_3_and_4_short_shard(tmp_path, convert, validate, keep):
    source = dataset(tmp_path)
    shard = shard_paths(source)[1]
    cut(shard, record=keep)
    ran = convert(source)
    assert ran.code == 3
    assert ran.rules == {"short_shard": 1}
    assert f"{shard} holds {keep} records; dataset_info.json says 3" in ran.out
    assert ran.rejected == []
    assert len(ran.items) == pairs(3 + keep)  # everything that is there was done
    code, report, _ = validate(source)
    assert (code, report["rules"]["short_shard"]["rejected"]) == (3, 1)


def test_3_accepted_when_asked(tmp_path, convert):
    source = dataset(tmp_path)
    cut(shard_paths(source)[1], record=1)
    ran = convert(source, "--accept=short_shard")
    assert ran.code == 0
    assert ran.report["rules"]["short_shard"]["accepted"] == 1


def test_3_fails_when_asked(tmp_path, convert):
    source = dataset(tmp_path)
    cut(shard_paths(source)[1], record=1)
    ran = convert(source, "--fail=short_shard")
    assert ran.code == 1
    assert "short_shard" in ran.err
    assert not (ran.output / "manifest.json").exists()


def test_4_all_shards_empty(tmp_path, convert):
    source = dataset(tmp_path)
    for shard in shard_paths(source):
        shard.write_bytes(b"")
    ran = convert(source)
    assert ran.code == 3
    assert ran.rules == {"short_shard": 2}
    assert ran.items == []


def test_5_missing_shard(tmp_path, convert, validate):
    source = dataset(tmp_path)
    shard = shard_paths(source)[1]
    shard.unlink()
    convert(source).assert_nothing_done("missing_shard", str(shard), "3 episodes")
    code, _, err = validate(source)
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
    assert len(ran.items) == pairs(EPISODES)  # what dataset_info.json names, and nothing twice


def test_7_gzip_is_told_by_its_bytes(tmp_path, convert):
    source = dataset(tmp_path)
    plain = convert(source, output=tmp_path / "plain")
    for shard in shard_paths(source):
        shard.write_bytes(gzip.compress(shard.read_bytes()))
    ran = convert(source)
    assert ran.code == 0
    key = [item["observation"].tobytes() for item in ran.items]
    assert key == [item["observation"].tobytes() for item in plain.items]


def test_7_torn_gzip(tmp_path, convert):
    source = dataset(tmp_path)
    shard = shard_paths(source)[0]
    packed = gzip.compress(shard.read_bytes())
    shard.write_bytes(packed[: len(packed) * 2 // 3])
    ran = convert(source)
    assert ran.code == 3
    assert all(line["rule"] == "corrupt_record" and str(shard) in line["detail"] for line, _ in ran.rejected)
    assert ran.rules["corrupt_record"] == len(ran.rejected) >= 1
    assert len(ran.items) >= pairs(3)


@pytest.mark.parametrize("garbage", [b"this is a text file, no TFRecord\n" * 50, os.urandom(3000), bytes(3000)])
def test_7_garbage_file_is_named(tmp_path, convert, garbage):
    source = dataset(tmp_path)
    shard = shard_paths(source)[0]
    shard.write_bytes(garbage)
    ran = convert(source)
    assert ran.code == 3
    assert {line["rule"] for line, _ in ran.rejected} == {"corrupt_record"}
    assert all(str(shard) in line["detail"] for line, _ in ran.rejected)
    assert b"".join(payload for _, payload in ran.rejected) == garbage
    assert "short_shard" in ran.rules
    assert len(ran.items) == pairs(3)


@pytest.mark.parametrize("length", [1 << 20, 1 << 40, (1 << 63) - 1, (1 << 64) - 1])
def test_8_huge_length(tmp_path, convert, length):
    source = dataset(tmp_path)
    set_length(shard_paths(source)[0], record=1, length=length)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ran = convert(source)
    ran.assert_one_rejected("corrupt_record")
    assert len(ran.items) == pairs(EPISODES - 1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # kB


def test_8_junk_between_records(tmp_path, convert):
    source = dataset(tmp_path)
    insert_bytes(shard_paths(source)[0], record=1, data=b"junk" * 100)
    ran = convert(source)
    _, payload = ran.assert_one_rejected("corrupt_record")
    assert payload == b"junk" * 100
    assert len(ran.items) == pairs(EPISODES)


@pytest.mark.parametrize("record", [b"", b"\xff not an example", encode_example(make_episode(3))[:-1]])
def test_9_not_an_example(tmp_path, convert, record):
    source = dataset(tmp_path, [*episodes(), record])
    _, payload = convert(source).assert_one_rejected("not_an_example")
    assert payload == record


def test_9_an_example_of_something_else(tmp_path, convert):
    other = make_episode(2, columns={"label": np.zeros(2, np.int64)})
    foreign = encode_example(other.replace(steps={"label": other.steps["label"]}))
    _, payload = convert(dataset(tmp_path, [*episodes(), foreign])).assert_one_rejected("missing_field")
    assert payload == foreign


@pytest.mark.parametrize("missing", ["features.json", "dataset_info.json"])
def test_10_metadata_missing(tmp_path, convert, missing):
    source = dataset(tmp_path)
    (source / missing).unlink()
    convert(source).assert_nothing_done(missing, "dataset" if missing == "features.json" else "Restore")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pythonClassName": "os.system"}'])
@pytest.mark.parametrize("file", ["features.json", "dataset_info.json"])
def test_10_metadata_broken(tmp_path, convert, file, text):
    source = dataset(tmp_path)
    (source / file).write_text(text)
    convert(source).assert_nothing_done(str(source / file))


def test_10_dtype_mismatch(tmp_path, convert, validate):
    source = dataset(tmp_path)
    schema = schema_of(episodes(1)[0])
    wrong = dataclasses.replace(schema.steps["observation"], dtype="int64")
    other = dataclasses.replace(schema, steps={**schema.steps, "observation": wrong})
    (source / "features.json").write_text(json.dumps(features_json(other)))
    convert(source).assert_nothing_done("schema_mismatch", "observation", "int64")
    assert validate(source)[0] == 2


def test_10_field_that_no_record_has(tmp_path, convert):
    source = dataset(tmp_path)
    schema = schema_of(make_episode(2, columns={"observation_2": np.zeros((2, 3), np.float32)}))
    (source / "features.json").write_text(json.dumps(features_json(schema)))
    convert(source).assert_nothing_done("schema_mismatch", "observation_2")


def test_10_path_that_leaves_the_dataset(tmp_path, convert):
    source = dataset(tmp_path)
    info = json.loads((source / "dataset_info.json").read_text())
    info["splits"][0]["filepathTemplate"] = "../../{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    (source / "dataset_info.json").write_text(json.dumps(info))
    convert(source).assert_nothing_done("dataset_info.json")


# Episodes (11 to 20)


def broken_record(tmp_path: Path, record: Any, **kwargs: Any) -> Path:
    """Sound episodes with one record of another kind among them; their schema is the dataset's."""
    good = episodes()
    schema = schema_of(good[0])
    payload = record if isinstance(record, bytes) else encode_example(record, schema)
    return dataset(tmp_path, [*good[:2], payload, *good[2:]], schema=schema, **kwargs)


@pytest.mark.parametrize("field", ["reward", "observation", "is_last"])
def test_11_missing_field(tmp_path, convert_only, field):
    episode = make_episode(STEPS, seed=50)
    steps = {path: column for path, column in episode.steps.items() if path != field}
    ran = convert_only(broken_record(tmp_path, episode.replace(steps=steps)))
    ran.assert_one_rejected("missing_field", field=field)
    assert len(ran.items) == pairs(EPISODES)


def test_11_unequal_lengths(tmp_path, convert_only):
    episode = make_episode(STEPS, seed=50)
    record = episode.replace(steps={**episode.steps, "reward": episode.steps["reward"][:-1]})
    convert_only(broken_record(tmp_path, record)).assert_one_rejected("unequal_lengths", "reward")


@pytest.mark.parametrize("values", [np.zeros((STEPS, 2), np.int64), np.zeros((STEPS, 3), np.float32)[:, :2]])
def test_11_wrong_dtype_or_shape(tmp_path, convert_only, values):
    episode = make_episode(STEPS, seed=50)
    own = {**episode.steps, "action": values, "observation": np.zeros((STEPS, 7), np.float32)}
    foreign = encode_example(episode.replace(steps=own))  # by its own schema, not the dataset's
    ran = convert_only(broken_record(tmp_path, foreign))
    ran.assert_one_rejected("wrong_dtype_or_shape", field="observation")


def images(pixels: np.ndarray[Any, Any], kind: str = "png") -> EncodedImages:
    import cv2

    data = np.empty(len(pixels), object)
    data[:] = [cv2.imencode("." + kind, image)[1].tobytes() for image in pixels]
    return EncodedImages(data, pixels.shape[1:])


def seen(seed: int, kind: str = "png", steps: int = STEPS) -> Any:
    pixels = np.random.default_rng(seed).integers(0, 255, (steps, 8, 8, 3), np.uint8)
    camera = {"observation/camera": images(pixels, kind)}
    return make_episode(steps, seed=seed, observation={"state": 3}, columns=camera)


def with_image(episode: Any, image: bytes, step: int = 2) -> Any:
    camera = episode.steps["observation/camera"]
    data = camera.data.copy()
    data[step] = image
    return episode.replace(steps={**episode.steps, "observation/camera": dataclasses.replace(camera, data=data)})


def png_of(width: int, height: int, claimed: tuple[int, int] | None = None) -> bytes:
    """A black RGB PNG; its header may claim another size."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", *(claimed or (width, height)), 8, 2, 0, 0, 0)
    packer, row = zlib.compressobj(1), bytes(1 + 3 * width)  # never the whole of it in the test's own memory
    rows = b"".join([*(packer.compress(row) for _ in range(height)), packer.flush()])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def damaged_body(image: bytes) -> bytes:
    """Header and end as they were, and rubbish between them."""
    return image[:60] + bytes(b ^ 0x5A for b in image[60:-12]) + image[-12:]


GOOD = seen(50).steps["observation/camera"].data[2]
BAD_IMAGES = {
    "empty": (b"", "undecodable_image"),
    "text": (b"not an image", "undecodable_image"),
    "cut": (GOOD[: len(GOOD) // 2], "undecodable_image"),
    "body": (damaged_body(GOOD), "undecodable_image"),
    "size": (png_of(9, 8), "image_too_large"),
    "bomb": (png_of(8_000, 8_000), "image_too_large"),
    "hidden_bomb": (png_of(8_000, 8_000, claimed=(8, 8)), None),
}


@pytest.mark.parametrize("kind", ["raw", "jpeg"])
@pytest.mark.parametrize("case", BAD_IMAGES)
def test_12_images(tmp_path, convert_only, case, kind):
    image, rule = BAD_IMAGES[case]
    good = [seen(i) for i in range(3)]
    bad = with_image(seen(50), image)
    source = dataset(tmp_path, [good[0], bad, *good[1:]])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ran = convert_only(source, f"--images={kind}")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # kB; the bomb has 192 MB of pixels
    if rule is None:  # what goes beyond the header's size is never unpacked
        assert ran.code == 0
        return
    line, payload = ran.assert_one_rejected(rule, "step 2", field="observation/camera")
    assert payload == encode_example(bad)
    assert "observation/camera" in line["detail"]
    assert len(ran.items) == pairs(3)


def test_12_more_pixels_than_allowed(tmp_path, validate, convert_only):
    source = dataset(tmp_path, [seen(i) for i in range(2)])
    code, report, _ = validate(source, "--max_image_pixels=63")
    assert code == 3
    assert report["rules"]["image_too_large"]["rejected"] == 2


def test_13_empty_episode(tmp_path, convert_only):
    empty = make_episode(STEPS, breaks=["empty_episode"])
    ran = convert_only(broken_record(tmp_path, empty))
    _, payload = ran.assert_one_rejected("empty_episode")
    assert payload == encode_example(empty)


def test_14_never_ends(tmp_path, convert_only):
    source = broken_record(tmp_path, make_episode("F M M M M", seed=50))
    ran = convert_only(source)
    ran.assert_one_rejected("last_not_last", "step 4", field="is_last")
    assert "--repair=last_not_last" in ran.out  # the advice
    repaired = convert_only(source, "--repair=last_not_last", output=tmp_path / "repaired")
    assert repaired.code == 0
    assert repaired.report["repaired"] == 1
    assert repaired.rejected == []
    assert len(repaired.items) == pairs(EPISODES + 1)
    # A truncation: values are bootstrapped through the end.
    last = [item for item in repaired.items if item["next_step_type"][0] == 2 and item["discount"][0] == 1]
    assert len(last) == 1


def test_14_fails_at_the_first_when_asked(tmp_path, convert_only):
    source = broken_record(tmp_path, make_episode("F M M M M", seed=50), shards=1)
    ran = convert_only(source, "--fail=last_not_last")
    assert ran.code == 1
    assert ran.out == ""
    offset = record_offsets(shard_paths(source)[0])[2]
    for text in ("split train", "shard 0", f"position {offset}", "--fail=last_not_last"):
        assert text in ran.err
    assert len(ran.err.splitlines()) == 1
    assert not (ran.output / "manifest.json").exists()
    assert not list(ran.output.glob("*.tfrecord-*"))


def test_15_terminal_but_not_last(tmp_path, convert_only):
    ran = convert_only(broken_record(tmp_path, make_episode("F M T M L", seed=50)))
    ran.assert_one_rejected("terminal_not_last", "step 2", field="is_terminal")


@pytest.mark.parametrize(("steps", "rule"), [("M M M M L", "first_not_first"), ("F M F M L", "first_inside")])
def test_16_first(tmp_path, convert_only, steps, rule):
    source = broken_record(tmp_path, make_episode(steps, seed=50))
    convert_only(source).assert_one_rejected(rule, field="is_first")
    repaired = convert_only(source, f"--repair={rule},last_not_last", output=tmp_path / "repaired")
    assert repaired.code == 0
    assert repaired.report["repaired"] == 1
    assert len(repaired.items) == pairs(EPISODES) + (4 if rule == "first_not_first" else 1 + 2)


def test_16_several_episodes_in_a_record(tmp_path, convert_only):
    source = broken_record(tmp_path, make_episode("F M L | F M M L", seed=50))
    convert_only(source).assert_one_rejected("last_inside", "step 2", field="is_last")
    repaired = convert_only(source, "--repair=last_inside", output=tmp_path / "repaired")
    assert repaired.code == 0
    assert repaired.report["episodes"] == EPISODES + 2
    assert len(repaired.items) == pairs(EPISODES) + 2 + 3


def test_16_a_repair_that_does_not_help_rejects_the_whole_record(tmp_path, convert_only):
    ran = convert_only(broken_record(tmp_path, make_episode("F M F M L", seed=50)), "--repair=first_inside")
    line, _ = ran.assert_one_rejected("last_not_last")
    assert {v["rule"] for v in line["violations"]} == {"first_inside", "last_not_last"}


@pytest.mark.parametrize("flags", ["FL", "FLT"])
def test_17_one_step(tmp_path, convert_only, flags):
    ran = convert_only(broken_record(tmp_path, make_episode(flags, seed=50)), "--items=frames")
    assert ran.code == 0
    assert ran.report["valid"] == EPISODES + 1
    assert len(ran.items) == EPISODES * STEPS + 1
    ran = convert_only(
        broken_record(tmp_path, make_episode(flags, seed=50)),
        "--items=sequences", "--sequence_length=3", "--pad_end_of_episodes", output=tmp_path / "padded",
    )  # fmt: skip
    assert ran.code == 0
    assert sum(item["step_type"].tolist() == [2, 2, 2] for item in ran.items) == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("field", ["reward", "observation", "action"])
def test_18_not_finite(tmp_path, convert_only, field, value):
    episode = make_episode(STEPS, seed=50)
    column = episode.steps[field].copy()
    column[3] = value
    source = broken_record(tmp_path, episode.replace(steps={**episode.steps, field: column}))
    convert_only(source).assert_one_rejected("non_finite", "step 3", field=field)
    if field == "reward":
        accepted = convert_only(source, "--accept=non_finite,duplicate_episode", output=tmp_path / "accepted")
        assert accepted.code == 0
        assert sum(not np.isfinite(item["reward"]).all() for item in accepted.items) == 2
        assert convert_only(source, "--fail=non_finite", output=tmp_path / "failed").code == 1


@pytest.mark.parametrize("value", [2.0, -1.0])
def test_18_discount(tmp_path, convert_only, value):
    episode = make_episode(STEPS, seed=50)
    discount = episode.steps["discount"].copy()
    discount[1] = value
    source = broken_record(tmp_path, episode.replace(steps={**episode.steps, "discount": discount}))
    convert_only(source).assert_one_rejected("discount_out_of_range", "step 1", field="discount")
    accepted = convert_only(source, "--accept=discount_out_of_range,duplicate_episode", output=tmp_path / "accepted")
    assert accepted.code == 0
    assert accepted.report["rules"]["discount_out_of_range"]["accepted"] == 1


def test_19_duplicates_across_shards_and_splits(tmp_path, convert, validate):
    good = episodes()
    source = dataset(tmp_path, [*good, good[1]], shards=3)
    write_dataset(tmp_path / "data", [good[4], make_episode(STEPS, seed=99)], split="val")
    ran = convert(source)
    assert ran.code == 3
    assert ran.rules == {"duplicate_episode": 2}
    for line, payload in ran.rejected:
        assert payload in (encode_example(good[1]), encode_example(good[4]))
        assert "the same bytes as testing/1.0.0:train" in line["detail"] or "val" not in line["key"]
    assert len(ran.items) == pairs(EPISODES + 1)
    assert validate(source)[1]["rules"]["duplicate_episode"]["rejected"] == 2
    kept = convert(source, "--accept=duplicate_episode", output=tmp_path / "kept")
    assert kept.code == 0
    assert len(kept.items) == pairs(EPISODES + 3)


def test_20_nested_observations(tmp_path, convert_only):
    nested = [
        make_episode(STEPS, seed=i, observation={"a": (2, 3), "b/c": (), "b/d": 4}, action={"x": 1, "y": 2})
        for i in range(4)
    ]
    ran = convert_only(dataset(tmp_path, nested))
    assert ran.code == 0
    item = ran.items[0]
    shapes = {path: leaf.shape for path, leaf in item.items()}
    assert shapes["observation/a"] == (2, 2, 3)
    assert shapes["observation/b/c"] == (2,)
    assert shapes["observation/b/d"] == (2, 4)
    assert shapes["action/x"] == (2, 1)
    assert shapes["action/y"] == (2, 2)
    for i, item in enumerate(ran.items):
        episode, start = nested[i // (STEPS - 1)], i % (STEPS - 1)
        for path in ("observation/a", "observation/b/c", "observation/b/d", "action/x", "action/y"):
            np.testing.assert_array_equal(item[path], episode.steps[path][start : start + 2])


# The machine (28)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "rlds_beam", *map(str, arguments)]


def bytes_of(output: Path) -> dict[str, bytes]:
    return {str(p.relative_to(output)): p.read_bytes() for p in sorted(output.rglob("*")) if p.is_file()}


@pytest.fixture
def big(tmp_path):
    """About 1 MB of output."""
    return dataset(tmp_path, [make_episode(200, seed=i, observation=100) for i in range(6)])


def assert_failed_cleanly(output: Path, code: int, err: str, mentioned: str) -> None:
    assert code in (1, 2, 4), err
    assert mentioned in err
    assert len(err.splitlines()) == 1
    assert not (output / "manifest.json").exists()
    assert not (output / "dataset_info.json").exists()


@contextlib.contextmanager
def small_filesystem(path: Path, size: str):
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no filesystem of its own to be had: {mounted.stderr.decode().strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_28_disk_full(tmp_path, convert, big):
    whole = convert(big, "--shards=3", output=tmp_path / "whole")
    assert whole.code == 0
    with small_filesystem(tmp_path / "disk", "700k") as disk:
        ran = convert(big, "--shards=3", output=disk / "out")
        assert_failed_cleanly(ran.output, ran.code, ran.err, "No space left on device")
        subprocess.run(["mount", "-o", "remount,size=16m", disk], check=True)
        again = convert(big, "--shards=3", output=disk / "out")
        assert again.code == 0
        assert bytes_of(again.output) == bytes_of(whole.output)


def test_28_file_too_large(tmp_path, convert, big):
    whole = convert(big, "--shards=2", output=tmp_path / "whole")
    output = tmp_path / "out"
    limited = subprocess.run(
        command("convert", big, output, "--shards=2"), capture_output=True, text=True, timeout=60, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )  # fmt: skip
    assert_failed_cleanly(output, limited.returncode, limited.stderr, "File too large")
    assert convert(big, "--shards=2").code == 0
    assert bytes_of(output) == bytes_of(whole.output)


@pytest.mark.skipif(os.geteuid() != 0, reason="root writes into a read-only directory, but not a read-only filesystem")
def test_28_read_only_output(tmp_path, convert, big):
    with small_filesystem(tmp_path / "disk", "16m") as disk:
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        ran = convert(big, output=disk / "out")
        assert_failed_cleanly(ran.output, ran.code, ran.err, "Read-only file system")
        assert ran.code == 2
        assert str(disk) in ran.err


def test_28_output_below_a_file(tmp_path, convert, big):
    (tmp_path / "file").write_text("")
    ran = convert(big, output=tmp_path / "file" / "out")
    assert_failed_cleanly(ran.output, ran.code, ran.err, str(tmp_path / "file"))
    assert ran.code == 2


def test_28_blocked_rename(tmp_path, convert, big):
    whole = bytes_of(convert(big, "--shards=2").output)
    output = tmp_path / "out"
    for name in ("manifest.json", "dataset_info.json", "_commits/train-00001-of-00002.json"):
        (output / name).unlink()
    shard = shard_paths(output)[2]
    assert shard.name == "testing-train.tfrecord-00001-of-00002"
    shard.unlink()
    (shard / "inside").mkdir(parents=True)
    ran = convert(big, "--shards=2")
    assert_failed_cleanly(output, ran.code, ran.err, shard.name)
    shutil.rmtree(shard)
    assert convert(big, "--shards=2").code == 0
    assert bytes_of(output) == whole


def workers_below(pid: int) -> list[int]:
    """The worker processes of a running command."""
    parents, found = {}, []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            one = int(entry.name)
            parents[one] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            line = (entry / "cmdline").read_bytes().split(b"\0")
            if b"rlds_beam.runners.worker" in line and line[0] != b"/bin/sh":
                found.append(one)

    def is_below(one: int) -> bool:
        while one in parents:
            if one == pid:
                return True
            one = parents[one]
        return False

    return [one for one in found if is_below(one)]


def wait_for(condition, process: subprocess.Popen[str], seconds: float = 30) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        if found := condition():
            return found
        time.sleep(0.005)
    raise AssertionError(f"did not happen; exit code {process.poll()}: {process.communicate()}")


@pytest.mark.parametrize("moment", ["starting", "working"])
def test_28_worker_killed_by_a_fault(tmp_path, convert, big, moment):
    output = tmp_path / "out"
    process = subprocess.Popen(
        command("convert", big, output, "--shards=6", "--workers=2"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        workers = wait_for(lambda: workers_below(process.pid), process)
        if moment == "working":
            wait_for(lambda: list(output.glob("*.tfrecord-*")) if output.exists() else [], process)
        os.kill(workers[0], signal.SIGSEGV)
        began = time.monotonic()
        _, err = process.communicate(timeout=60)
        assert time.monotonic() - began < 20
        if process.returncode == 0:
            assert moment == "working"  # it was faster than the signal
        else:
            assert_failed_cleanly(output, process.returncode, err, "a worker process died")
            assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert convert(big, "--shards=6").code == 0
    assert bytes_of(output) == bytes_of(convert(big, "--shards=6", output=tmp_path / "whole").output)
    assert Counter(len(item["reward"]) for item in read_items(output)) == {2: 6 * 199}


def test_rejected_records_are_the_originals(tmp_path, convert):
    """What `rejected/` holds is enough to make a dataset of it again."""
    source = dataset(tmp_path, [make_episode("F M M", seed=i) for i in range(4)])
    ran = convert(source)
    assert ran.code == 3
    originals = [payload for shard in shard_paths(source) for payload in read_payloads(shard)]
    assert [payload for _, payload in ran.rejected] == originals
    again = write_dataset(tmp_path / "again", [p for _, p in ran.rejected], schema=schema_of(make_episode(3)))
    mended = convert(again, "--repair=last_not_last", output=tmp_path / "mended")
    assert mended.code == 0
    assert len(mended.items) == 4 * 2
