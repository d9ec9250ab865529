"""Fault cases 11 to 20, by number, through the real command: faults in episodes."""

from __future__ import annotations

import dataclasses
import resource
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import EPISODES, STEPS, complaints, dataset, episodes, pairs

from rlds_beam.encoding.tfds.rlds_dataset import default_schema, encode_example
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.testing import make_episode, record_offsets, shard_paths, write_dataset


def broken_record(tmp_path: Path, record: Any, **kwargs: Any) -> Path:
    """Writes valid episodes and one bad record, with the schema of the valid ones."""
    good = episodes()
    schema = default_schema(good[0])
    payload = record if isinstance(record, bytes) else encode_example(record, schema)
    return dataset(tmp_path, [*good[:2], payload, *good[2:]], schema=schema, **kwargs)


@pytest.mark.parametrize("field", ["observation", "is_last"])
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
    foreign = encode_example(episode.replace(steps=own))  # with its own schema, not the dataset's
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
    packer, row = zlib.compressobj(1), bytes(1 + 3 * width)  # never the whole image in the test's memory
    rows = b"".join([*(packer.compress(row) for _ in range(height)), packer.flush()])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def damaged_body(image: bytes) -> bytes:
    """Replaces everything between the header and the end with garbage."""
    return image[:60] + bytes(b ^ 0x5A for b in image[60:-12]) + image[-12:]


GOOD = seen(50).steps["observation/camera"].data[2]
BAD_IMAGES = {
    "empty": (b"", "undecodable_image"),
    "text": (b"not an image", "undecodable_image"),
    "cut": (GOOD[: len(GOOD) // 2], "undecodable_image"),
    "body": (damaged_body(GOOD), "undecodable_image"),
    "size": (png_of(9, 8), "image_size_mismatch"),
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
    import apache_beam  # noqa: F401 - the size of what is imported is not what is measured

    if case == "hidden_bomb":
        import tensorflow  # noqa: F401 - it decides on such an image
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ran = convert_only(source, f"--images={kind}")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # kB; the bomb has 192 MB of pixels
    if rule is None:  # data beyond the header's size is never unpacked
        assert ran.code == 0
        return
    line, payload = ran.assert_one_rejected(rule, "step 2", field="observation/camera")
    assert payload == encode_example(bad)
    assert "observation/camera" in line["detail"]
    assert len(ran.items) == pairs(3)


def test_13_empty_episode(tmp_path, convert_only):
    empty = make_episode(STEPS, breaks=["empty_episode"])
    ran = convert_only(broken_record(tmp_path, empty))
    _, payload = ran.assert_one_rejected("empty_episode")
    assert payload == encode_example(empty)


def test_14_never_ends(tmp_path, convert_only):
    source = broken_record(tmp_path, make_episode("F M M M M", seed=50))
    ran = convert_only(source)
    ran.assert_one_rejected("missing_is_last", "step 4", field="is_last")
    assert "--repair=missing_is_last" in ran.out  # the advice
    repaired = convert_only(source, "--repair=missing_is_last", output=tmp_path / "repaired")
    assert repaired.code == 0
    assert repaired.report["repaired"] == 1
    assert repaired.rejected == []
    assert len(repaired.items) == pairs(EPISODES + 1)
    # A truncation: values are bootstrapped through the end.
    last = [item for item in repaired.items if item["next_step_type"][0] == 2 and item["discount"][0] == 1]
    assert len(last) == 1


def test_14_fails_at_the_first_with_fail(tmp_path, convert_only):
    source = broken_record(tmp_path, make_episode("F M M M M", seed=50), shards=1)
    ran = convert_only(source, "--fail=missing_is_last")
    assert ran.code == 1
    assert ran.out == ""
    offset = record_offsets(shard_paths(source)[0])[2]
    for text in ("split train", "shard 0", f"position {offset}", "--fail=missing_is_last"):
        assert text in ran.err
    assert len(complaints(ran.err)) == 1
    assert not (ran.output / "manifest.json").exists()
    assert not list(ran.output.glob("*.tfrecord-*"))


@pytest.mark.parametrize(("steps", "rule"), [("M M M M L", "missing_is_first"), ("F M F M L", "unexpected_is_first")])
def test_16_first(tmp_path, convert_only, steps, rule):
    source = broken_record(tmp_path, make_episode(steps, seed=50))
    convert_only(source).assert_one_rejected(rule, field="is_first")
    repaired = convert_only(source, f"--repair={rule},missing_is_last", output=tmp_path / "repaired")
    assert repaired.code == 0
    assert repaired.report["repaired"] == 1
    assert len(repaired.items) == pairs(EPISODES) + (4 if rule == "missing_is_first" else 1 + 2)


def test_16_several_episodes_in_a_record(tmp_path, convert_only):
    source = broken_record(tmp_path, make_episode("F M L | F M M L", seed=50))
    convert_only(source).assert_one_rejected("unexpected_is_last", "step 2", field="is_last")
    repaired = convert_only(source, "--repair=unexpected_is_last", output=tmp_path / "repaired")
    assert repaired.code == 0
    assert repaired.report["episodes"] == EPISODES + 2
    assert len(repaired.items) == pairs(EPISODES) + 2 + 3


@pytest.mark.parametrize("flags", ["FL", "FLT"])
def test_17_one_step(tmp_path, convert_only, flags):
    ran = convert_only(broken_record(tmp_path, make_episode(flags, seed=50)), "--items=frames")
    assert ran.code == 0
    assert ran.report["valid"] == EPISODES + 1
    assert len(ran.items) == EPISODES * STEPS + 1
    ran = convert_only(
        broken_record(tmp_path, make_episode(flags, seed=50)),
        "--items=sequences",
        "--sequence_length=3",
        "--pad_end_of_episodes",
        output=tmp_path / "padded",
    )
    assert ran.code == 0
    assert sum(item["step_type"].tolist() == [2, 2, 2] for item in ran.items) == 1


@pytest.mark.parametrize(("field", "value"), [("reward", np.nan), ("observation", np.inf)])
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


def test_19_duplicates_across_shards_and_splits(tmp_path, convert, check_rules):
    good = episodes()
    source = dataset(tmp_path, [*good, good[1]], shards=3)
    write_dataset(tmp_path / "data", [good[4], make_episode(STEPS, seed=99)], split="val")
    ran = convert(source)
    assert ran.code == 3
    assert ran.rules == {"duplicate_episode": 2}
    for line, payload in ran.rejected:
        assert payload in (encode_example(good[1]), encode_example(good[4]))
        assert "byte-identical to testing/1.0.0:train" in line["detail"] or "val" not in line["key"]
    assert len(ran.items) == pairs(EPISODES + 1)
    assert check_rules(source)[1]["rules"]["duplicate_episode"]["rejected"] == 2
    kept = convert(source, "--accept=duplicate_episode", output=tmp_path / "kept")
    assert kept.code == 0
    assert len(kept.items) == pairs(EPISODES + 3)
