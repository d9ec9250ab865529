"""Jobs that need no images do not read them: the same statistics, and stated differences in what is checked."""

from __future__ import annotations

import json

import cv2
import msgspec
import numpy as np
import pytest
from cases import cases
from lerobot_data import convert_here, write_moving_data

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.validation import validate_episode
from rlds_beam.cli.main import main
from rlds_beam.connectors import DropNoOpSteps, KeepSuccessful, MinimumLength, Normalize, RotateImages
from rlds_beam.connectors.statistics.episode_statistics import DatasetStatistics
from rlds_beam.formats.inputs import open_source
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.pipelines.stats import without_images
from rlds_beam.processing.report import Report
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.testing import BREAKABLE, flip_byte, make_episode, shard_paths, write_dataset

CAMERAS = {"observation/front": "jpeg", "observation/wrist": "png"}


def camera(encoding: str, steps: int, seed: int) -> EncodedImages:
    pixels = np.random.default_rng(seed).integers(0, 255, (steps, 6, 8, 3), np.uint8)
    data = np.fromiter((cv2.imencode(f".{encoding}", image)[1].tobytes() for image in pixels), object, steps)
    return EncodedImages(data, (6, 8, 3), "uint8", encoding)


def episode(seed: int, steps: int = 5, breaks=(), **columns):
    images = {path: camera(encoding, steps, seed) for path, encoding in CAMERAS.items()}
    texts = np.full(steps, b"pick it up", object)
    return make_episode(
        steps,
        seed=seed,
        breaks=breaks,
        observation={"state": 4},
        metadata={"task": "pick"},
        columns={**images, "language_instruction": texts, "action": states(seed, steps), **columns},
    )


def states(seed: int, steps: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(steps, 3)) * 10.0 ** rng.integers(-9, 9, 3)).astype(np.float32)


def damaged(image: int, steps: int = 5, seed: int = 0) -> EncodedImages:
    images = camera("jpeg", steps, seed)
    data = images.data.copy()
    data[image] = b"not an image"
    return images.with_data(data)


def read(source, **options):
    """The report on all records, and the statistics of the accepted episodes."""
    reader, report, accepted = EpisodeReader(source), Report(), []
    for work in plan_ranges(source):
        for segment in work.segments:
            for one in reader.read(work.split, segment):
                verdict = validate_episode(one, CheckOptions(**options))
                report.add(verdict)
                accepted += verdict.episodes
    return report, DatasetStatistics.from_episodes(accepted).to_json()


@pytest.mark.parametrize("seed", range(cases(12)))
def test_statistics_and_reports_are_the_same_with_and_without_images(tmp_path, seed):
    rng = np.random.default_rng(seed)
    broken = [[], [], *([rule] for rule in rng.choice(BREAKABLE, 3, replace=False))]
    episodes = [
        episode(100 * seed + i, int(rng.integers(3, 9)), breaks)
        for i, breaks in enumerate(broken * 3)
        if "empty_episode" not in breaks
    ]
    data = write_dataset(tmp_path, episodes, shards=2)
    if seed % 3 == 0:  # in an image, or not
        flip_byte(shard_paths(data)[0], 1, at=int(rng.integers(20, 400)))
    whole = open_source(str(data))
    fewer = without_images(whole, CheckOptions(), ())
    assert [*fewer.details.left_out] == sorted(CAMERAS)
    options = {"repair": ("missing_is_last",), "accept": ("non_finite",)}
    (report, found), (expected_report, expected) = read(fewer, **options), read(whole, **options)
    assert json.dumps(found) == json.dumps(expected)  # text, because NaN is not equal to itself
    assert msgspec.to_builtins(report) == msgspec.to_builtins(expected_report)


class Mine(KeepSuccessful):
    """It may look at anything."""


@pytest.mark.parametrize(
    ("options", "connectors", "needed"),
    [
        ({}, [], False),
        ({"accept": ("non_finite",), "repair": ("missing_is_last",), "fail": ("non_finite",)}, [], False),
        ({}, [DropNoOpSteps(), KeepSuccessful(), MinimumLength(3), Normalize(["action"])], False),
        ({}, [RotateImages(180)], True),
        ({}, [Mine()], True),
        ({}, [lambda batch: batch], True),
        ({"check_unused": True}, [], True),
        ({"decode_images": True}, [], True),
        ({"reject": "frozen_camera > 0.5"}, [], True),
        ({"propensity_fn": "os:getcwd"}, [], True),
    ],
)
def test_images_are_read_if_something_needs_them(tmp_path, options, connectors, needed):
    source = open_source(str(write_dataset(tmp_path, [episode(1)])))
    assert (without_images(source, CheckOptions(**options), connectors) is source) == needed
    kept = without_images(source, CheckOptions(**options), connectors, ["observation/wrist"])
    assert "observation/wrist" in kept.schema.steps


def stats(data, capsys, *flags: str, code: int = 0) -> dict:
    assert main(["stats", str(data), "--json", "--workers=1", *flags]) == code
    return json.loads(capsys.readouterr().out)


def test_stats_says_what_it_does_not_read_and_reads_it_if_asked(tmp_path, capsys):
    good = [episode(i) for i in range(4)]
    whole = write_dataset(tmp_path / "a", good)
    data = write_dataset(tmp_path / "b", [*good, episode(9, **{"observation/front": damaged(3)})])
    found, checked = stats(data, capsys), stats(data, capsys, "--check_unused", code=3)
    assert (found["statistics"]["episodes"], found["rejected"]) == (5, 0)
    assert found["left_out"].keys() == CAMERAS.keys()
    assert (checked["statistics"]["episodes"], checked["rejected"]) == (4, 1)
    assert "undecodable_image" in checked["rules"]
    assert not checked["left_out"]
    assert checked["statistics"] == stats(whole, capsys)["statistics"] | {"dataset": checked["statistics"]["dataset"]}


def test_lerobot_videos_are_not_decoded(tmp_path, monkeypatch):
    pytest.importorskip("av")
    path, _ = write_moving_data(tmp_path / "rlds")
    convert_here(path, tmp_path / "lerobot", images="video")
    whole = open_source(str(tmp_path / "lerobot"))
    fewer = without_images(whole, CheckOptions(), ())
    expected = read(whole)[1]
    monkeypatch.setattr("rlds_beam.images.video_frames.VideoFrames.pixels", None)
    assert read(fewer)[1] == expected
    assert fewer.schema.steps.keys() < whole.schema.steps.keys()
