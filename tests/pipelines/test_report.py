"""`rlds-beam report`: the same bytes for any number of workers; every kind of dataset; conversions."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from camera_episodes import camera_episodes

import rlds_beam
from rlds_beam.cli.commands.example import make_episodes
from rlds_beam.cli.main import main
from rlds_beam.encoding.tfds.rlds_dataset import default_schema
from rlds_beam.episodes.episode import Episode
from rlds_beam.pipelines.report import ReportConfig, prepare
from rlds_beam.processing.job import run_stages
from rlds_beam.testing import flip_byte, make_episode, shard_paths, write_dataset
from rlds_beam.viewing.episode_view import Json
from rlds_beam.viewing.report.report_file import render

HOSTILE = "<script>alert(1)</script>&\u202e\"'\x00\x1b[31m"


def document(path: object, **options: Any) -> Json:
    """The report of a dataset, made in this process; it must be possible to render it."""
    writer, opened = prepare(ReportConfig(str(path), **options))
    with tempfile.TemporaryDirectory() as parts:
        totals = run_stages(writer.stages(None if opened is None else opened.connecting, parts)[:-1])
    found = writer.document(totals.get("measured"))
    assert len(render(found)) < 10_000_000
    return found


def part(path: object, **options: Any) -> Json:
    return dict(document(path, **options)["dataset"])


def episode_of(part: Json, key: str) -> Json:
    return next(view for view in part["episodes"] if view["key"] == key)


@pytest.fixture(scope="module")
def camera(tmp_path_factory: pytest.TempPathFactory) -> Path:
    episodes = camera_episodes(20, broken=2)
    return write_dataset(tmp_path_factory.mktemp("camera"), episodes, name="camera", shards=4)


def test_the_bytes_do_not_depend_on_workers(camera: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = []
    for i, chosen in enumerate((["--workers=1"], ["--workers=2"])):
        (tmp_path / str(i)).mkdir()
        monkeypatch.chdir(tmp_path / str(i))
        assert main(["report", str(camera), "-o", "report.html", *chosen]) == 0
        pages.append(Path("report.html").read_bytes())
    assert pages[0] == pages[1]
    assert str(tmp_path).encode() not in pages[0]


def test_it_shows_frames_curves_and_the_step_that_broke_a_rule(camera: Path) -> None:
    found = part(camera)
    assert (found["facts"]["records"], found["facts"]["rejected"]) == (20, 2)
    assert len(found["grid"]) == 20
    assert {cell["marks"][0]["kind"] for cell in found["grid"][:2]} == {"rule"}
    assert not any(mark["kind"] == "rule" for cell in found["grid"][2:] for mark in cell["marks"])
    assert len(found["samples"]) == 6
    view = episode_of(found, found["samples"][0])
    assert [camera["path"] for camera in view["cameras"]] == ["observation/image"]
    steps = [picture["step"] for picture in view["cameras"][0]["pictures"]]
    assert (steps[0], steps[-1], len(steps)) == (0, view["steps"] - 1, min(16, view["steps"]))
    assert {"action", "reward", "observation/position"} <= {series["path"] for series in view["curves"]}
    assert view["instruction"].startswith("push the point")
    (rule,) = found["rules"]
    assert (rule["rule"], rule["rejected"], len(rule["samples"])) == ("missing_is_last", 2, 2)
    assert rule["command"] == f"rlds-beam convert {camera} OUTPUT --repair=missing_is_last"
    broken = episode_of(found, rule["samples"][0]["key"])
    (mark,) = [mark for mark in broken["marks"] if mark["kind"] == "rule"]
    assert (mark["name"], mark["field"], mark["step"], rule["samples"][0]["step"]) == (
        "missing_is_last",
        "is_last",
        broken["steps"] - 1,
        broken["steps"] - 1,
    )
    assert sum(found["distributions"]["length"]["histogram"]["counts"]) == 18
    assert next(table for table in found["texts"] if table["field"] == "instruction")["missing"] == 0
    assert {"outlier_length", "frozen_camera"} <= {signal["name"] for signal in found["signals"]}


def text_only(episode: Episode) -> Episode:
    flags = {path: column for path, column in episode.steps.items() if path.startswith("is_")}
    texts = {path: np.full(len(episode), b"x", object) for path in ("observation", "action", "reward")}
    return episode.replace(steps={**flags, **texts})


def hostile(episode: Episode) -> Episode:
    columns = {
        '<b>&"x"': np.arange(len(episode)),
        "language_instruction": np.full(len(episode), HOSTILE.encode(), object),
    }
    return episode.with_columns(columns).replace(metadata={"<img src=x onerror=alert(1)>": HOSTILE.encode()})


def odd_datasets(directory: Path) -> dict[str, Path]:
    good = [make_episode(5 + i, seed=i) for i in range(4)]
    ragged = [make_episode(5, seed=i, columns={"points": np.zeros((5, 3 + i, 2), np.float32)}) for i in range(4)]
    schema = default_schema(ragged[0])
    points = dataclasses.replace(schema.steps["points"], shape=(None, 2), encoding="bytes")
    broken = [make_episode(5, seed=i, breaks=["missing_is_last", "non_finite"]) for i in range(4)]
    wide = {f"f{k:03}": 3 for k in range(500)}
    made: dict[str, list[Any]] = {
        "empty": [],
        "all rejected": broken,
        "one": good[:1],
        "one step": [make_episode(1)],
        "no numbers": list(map(text_only, good)),
        "1000 dimensions": [make_episode(9, observation=1000)],
        "500 fields": [make_episode(9, observation=wide)],
        "hostile": list(map(hostile, good)),
        "ragged": ragged,
        "garbage": [*good[:2], b"not an example", *good[2:]],
        "huge": [make_episode(9, columns={"x": np.full(9, 3e38), "y": np.linspace(-1, 1, 9) * 3e38})],
    }
    schemas = {
        "empty": default_schema(good[0]),
        "ragged": dataclasses.replace(schema, steps={**schema.steps, "points": points}),
    }
    return {name: write_dataset(directory / name, records, schema=schemas.get(name)) for name, records in made.items()}


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = odd_datasets(tmp_path_factory.mktemp("odd"))
    flip_byte(shard_paths(made["garbage"])[0], record=0)
    return made


@pytest.mark.parametrize(
    ("name", "records", "rejected", "fields"),
    [
        ("empty", 0, 0, 0),
        ("all rejected", 4, 4, 0),
        ("one", 1, 0, 4),
        ("one step", 1, 0, 1),
        ("no numbers", 4, 0, 1),
        ("1000 dimensions", 1, 0, 4),
        ("500 fields", 1, 0, 135),
        ("hostile", 4, 0, 5),
        ("ragged", 4, 0, 4),
        ("garbage", 5, 2, 4),
        ("huge", 1, 0, 6),
    ],
)
def test_odd_datasets_have_a_report(odd: dict[str, Path], name: str, records: int, rejected: int, fields: int) -> None:
    found = part(odd[name])
    assert (found["facts"]["records"], found["facts"]["rejected"]) == (records, rejected)
    assert len(found["distributions"]["fields"]) == fields
    assert found["distributions"]["left_out"] == (503 - 135 if name == "500 fields" else 0)
    assert {*found["samples"]} <= {view["key"] for view in found["episodes"]}
    assert sum(rule["rejected"] > 0 for rule in found["rules"]) <= 2


def test_a_record_that_cannot_be_read_says_why(odd: dict[str, Path]) -> None:
    found = part(odd["garbage"])
    views = [episode_of(found, sample["key"]) for rule in found["rules"] for sample in rule["samples"]]
    assert {rule["rule"] for rule in found["rules"]} == {"corrupt_record", "not_an_example"}
    assert all(view["note"] and not view["curves"] for view in views)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("plain"), make_episodes(12, broken=2), name="plain")


@pytest.mark.parametrize("to", ["trajectories", "columns", "rlds", "lerobot"])
def test_a_conversion_shows_what_it_did(plain: Path, tmp_path: Path, to: str) -> None:
    connectors = tmp_path / "connectors.yaml"
    columns = ["AddObservationsFromEpisodesToBatch", "AddColumnsFromEpisodesToTrainBatch"] if to == "columns" else []
    lines = ["MinimumLength: {transitions: 15}", "Normalize: {fields: [action]}", *columns]
    connectors.write_text("".join(f"- {line}\n" for line in lines))
    output, options = tmp_path / "out", {"fps": 10} if to == "lerobot" else {}
    rlds_beam.convert(plain, output, to=to, connectors=str(connectors), workers=1, **options)
    found = document(output)
    conversion = found["conversion"]
    assert conversion is not None
    assert (conversion["read"], conversion["rejected"], conversion["to"]) == (12, 2, to)
    assert conversion["read"] == conversion["written"] + conversion["rejected"] + sum(
        one["records"] for one in conversion["dropped"]
    )
    assert [one["name"] for one in conversion["connectors"]] == ["MinimumLength", "Normalize", *columns]
    (rule,) = found["dataset"]["rules"]
    assert rule["rejected"] == 2 and rule["samples"][0]["key"].startswith("rejected/plain")
    assert found["dataset"]["facts"]["fields"]
