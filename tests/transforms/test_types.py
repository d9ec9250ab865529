"""Beam checks the element types of the public transforms when a pipeline is built."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.metrics.metric import Lineage
from apache_beam.pvalue import PCollection
from apache_beam.transforms.display import DisplayData
from apache_beam.typehints import typehints
from apache_beam.typehints.decorators import TypeCheckError
from beam_runners import new_pipeline

import rlds_beam
from rlds_beam import transforms as rb
from rlds_beam.checking.verdicts import Rejection
from rlds_beam.cli.commands.example import ExampleConfig, example
from rlds_beam.encoding.tfds.rlds_dataset import default_schema
from rlds_beam.errors import Violation
from rlds_beam.processing.report import Report
from rlds_beam.testing import make_episode
from rlds_beam.trajectories.frames import to_frames
from rlds_beam.trajectories.items import ItemMaker
from rlds_beam.trajectories.options import FrameOptions, ItemOptions

EPISODE = make_episode(4)
SCHEMA = default_schema(EPISODE)
REJECTION = Rejection(EPISODE.key, "non_finite", (Violation("non_finite", "nan"),), b"")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    example(ExampleConfig(str(folder), episodes=2))
    return folder / "point_mass" / "1.0.0"


New = Callable[[Path, Path], "beam.PTransform[Any, Any]"]
"""A transform of a dataset and an output directory."""

OVER_EPISODES: dict[str, New] = {
    "ValidateEpisodes": lambda data, out: rb.ValidateEpisodes(),
    "ConnectEpisodes": lambda data, out: rb.ConnectEpisodes([], SCHEMA),
    "ConvertToTrajectories": lambda data, out: rb.ConvertToTrajectories(SCHEMA),
    "ComputeStatistics": lambda data, out: rb.ComputeStatistics(),
    "EpisodesToRows": lambda data, out: rb.EpisodesToRows(SCHEMA),
    "WriteEpisodes": lambda data, out: rb.WriteEpisodes(str(out), rlds_beam.open_source(str(data)), to="columns"),
}
CONVERT = rb.ConvertToTrajectories(SCHEMA)
ITEMS = ItemMaker(ItemOptions()).push(to_frames(EPISODE, FrameOptions()))
OVER_OTHERS: dict[str, tuple[New, Any]] = {
    "WriteToTrajectoryRecords": (lambda data, out: rb.WriteToTrajectoryRecords(str(out), CONVERT.spec), ITEMS),
    "WriteRejected": (lambda data, out: rb.WriteRejected(str(out)), REJECTION),
    "RejectionsToRows": (lambda data, out: rb.RejectionsToRows(), REJECTION),
    "WriteReport": (lambda data, out: rb.WriteReport(str(out / "report.json")), Report()),
}
FROM_NOTHING: dict[str, New] = {
    "ReadFromRlds": lambda data, out: rb.ReadFromRlds(str(data)),
    "FindDuplicateEpisodes": lambda data, out: rb.FindDuplicateEpisodes(rlds_beam.open_source(str(data))),
}
OTHERS = {
    "WriteToReverb",  # needs a server: tests/reverb
    "WriteToRlds",  # takes (key, dict of arrays)
    "ReadAllFromRlds",  # takes paths, or the results of a match
}


def find_collections(result: Any) -> Iterator[PCollection[Any]]:
    yield from [result] if isinstance(result, PCollection) else result


def test_the_tables_have_every_transform() -> None:
    public = {
        name for name in rb.__all__ if inspect.isclass(kind := getattr(rb, name)) and issubclass(kind, beam.PTransform)
    }
    assert public == {*OVER_EPISODES, *OVER_OTHERS, *FROM_NOTHING, *OTHERS}


@pytest.mark.parametrize("name", [*OVER_EPISODES, *OVER_OTHERS])
def test_elements_of_another_type_are_refused_when_the_pipeline_is_built(name: str, data: Path, tmp_path: Path) -> None:
    new = OVER_EPISODES.get(name) or OVER_OTHERS[name][0]
    with pytest.raises(TypeCheckError, match=f"violation at {name}: expected"):
        new_pipeline() | beam.Create([1, 2]) | new(data, tmp_path / "out")


@pytest.mark.parametrize("name", [*OVER_EPISODES, *OVER_OTHERS, *FROM_NOTHING])
def test_outputs_have_types(name: str, data: Path, tmp_path: Path) -> None:
    root: Any = new_pipeline()
    if name in OVER_EPISODES:
        result = root | beam.Create([EPISODE]) | OVER_EPISODES[name](data, tmp_path / "out")
    elif name in OVER_OTHERS:
        result = root | beam.Create([OVER_OTHERS[name][1]]) | OVER_OTHERS[name][0](data, tmp_path / "out")
    else:
        result = root | FROM_NOTHING[name](data, tmp_path / "out")
    types = [collection.element_type for collection in find_collections(result)]
    assert types and typehints.Any not in types


@pytest.mark.parametrize(
    "name", ["ReadFromRlds", "ConnectEpisodes", "ConvertToTrajectories", "WriteToTrajectoryRecords", "WriteEpisodes"]
)
def test_transforms_show_what_they_do(name: str, data: Path, tmp_path: Path) -> None:
    make = OVER_OTHERS[name][0] if name in OVER_OTHERS else {**OVER_EPISODES, **FROM_NOTHING}[name]
    new = make(data, tmp_path / "out")
    shown = {item.key: item.value for item in DisplayData.create_from(new).items}
    expected = {"dataset": "point_mass/1.0.0", "items": "pairs", "output": str(tmp_path / "out"), "connectors": "none"}
    assert shown and all(expected.get(key, value) == value for key, value in shown.items())


def test_the_lineage_names_what_was_read_and_written(data: Path, tmp_path: Path) -> None:
    root = new_pipeline()
    read = rb.ReadFromRlds(str(data))
    _ = root | read | rb.WriteEpisodes(str(tmp_path / "out"), read.source, to="columns")
    metrics = root.run().metrics()
    sources = {name.rpartition("/")[2].partition("-")[0] for name in Lineage.query(metrics, Lineage.SOURCE)}
    assert sources == {"point_mass"}
    assert [name.rpartition("/")[2] for name in Lineage.query(metrics, Lineage.SINK)] == ["out"]
