"""`convert --to=columns`: a dataset for each module, in each file format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from exchanging import export

import rlds_beam
from rlds_beam.connectors import (
    AddColumnsFromEpisodesToTrainBatch,
    AddFieldsToBatch,
    AddIdsToBatch,
    AddObservationsFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
    AgentToModuleMapping,
    SplitAgents,
    connect,
)
from rlds_beam.connectors.base import Batch
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.formats.columns.output import ColumnsOutput
from rlds_beam.formats.format_options import ColumnsFormat
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import WorkRange
from rlds_beam.testing import make_episode, read_rejected, write_dataset

FORMATS = get_args(ColumnsFormat)
CONNECTORS = [
    SplitAgents({name: {"observation": "observation", "action": "action", "reward": "reward"} for name in "ab"}),
    AgentToModuleMapping({"a": "walker", "b": "runner-2"}),
    AddObservationsFromEpisodesToBatch(),
    AddColumnsFromEpisodesToTrainBatch(),
    AddIdsToBatch(("agent_id", "t")),
]


def episode(length: int) -> Episode:
    made = make_episode(length, seed=length, breaks=["missing_is_last"] if length == 9 else [])
    rng = np.random.default_rng(length)
    data = np.empty(length, object)
    data[:] = encode_jpeg(rng.integers(0, 255, (length, 8, 8, 3), np.uint8))
    steps = {**made.steps, "observation/state": made.steps["observation"], "observation/camera": data}
    del steps["observation"]
    return made.replace(steps={**steps, "observation/camera": EncodedImages(data, (8, 8, 3))})


LENGTHS = (5, 12, 3, 9, 20, 8, 30, 2)
EPISODES = [episode(length) for length in LENGTHS]
VALID = [e for e in EPISODES if len(e) != 9]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("data")
    return str(write_dataset(directory, EPISODES, name="toy", shards=4))


@pytest.fixture(scope="module")
def outputs(data: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The output for each file format."""
    directory = tmp_path_factory.mktemp("outputs")
    for name in FORMATS:
        if name == "array_record":
            pytest.importorskip("array_record")
        export(data, directory / name, "columns", format=name, connectors=CONNECTORS, shards=3)
    return {name: directory / name for name in FORMATS}


def expected(module: str) -> dict[str, Any]:
    """The columns of a module, from the connectors."""
    parts = [columns for e in VALID for columns in [connect(CONNECTORS, [e])]]
    agent = {"walker": 0, "runner-2": 1}[module]
    columns = [part.columns[agent] for part in parts]
    images = [c["obs/camera"].data for c in columns]
    rest = {path: np.concatenate([c[path] for c in columns]) for path in columns[0] if path != "obs/camera"}
    return {**rest, "obs/camera": np.concatenate(images)}


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_match_the_connectors(outputs, kind):
    output = outputs[kind]
    manifest = json.loads((output / "manifest.json").read_text())
    rows = sum(len(e) - 1 for e in VALID)
    assert manifest["items"] == 2 * rows == sum(shard["predicted"] for shard in manifest["shards"])
    assert [line["rule"] for line, _ in read_rejected(output)] == ["missing_is_last"]
    for module in ("walker", "runner-2"):
        found = rlds_beam.open_dataset(output, module=module, images="encoded")
        assert len(found) == rows
        wanted = expected(module)
        assert {*found.fields} == {*wanted}
        for path, column in wanted.items():
            np.testing.assert_array_equal(found.columns[path], column, path)
            assert found.columns[path].dtype == column.dtype


def test_a_row_is_a_transition_by_default_or_a_sequence(data, tmp_path):
    export(data, tmp_path / "plain", "columns")
    plain = rlds_beam.open_dataset(tmp_path / "plain")
    assert [*plain.fields] == ["obs/camera", "obs/state", "actions", "rewards", "terminateds", "truncateds"]
    pieces = [*CONNECTORS[2:4], AddTimeDimToBatchAndZeroPad(max_seq_len=6)]
    done = rlds_beam.convert(data, tmp_path / "sequences", to="columns", connectors=pieces)
    rows = rlds_beam.open_dataset(tmp_path / "sequences")
    assert len(rows) == done.report.items_written == sum(-(-(len(e) - 1) // 6) for e in VALID)
    assert rows[0]["obs/camera"].shape == (6, 8, 8, 3)
    assert not rows[0]["obs/camera"][4:].any()  # 4 transitions, padded
    assert rows.columns["loss_mask"].sum() == len(plain)
    np.testing.assert_array_equal(rows[1]["actions"], plain[4:10]["actions"])


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "_commits", "rejected", "manifest.json", ""])
def test_a_module_name_that_cannot_be_a_directory_is_refused(data, tmp_path, name):
    pieces = [*CONNECTORS[:1], AgentToModuleMapping({"a": name or "..", "b": "b"}), *CONNECTORS[2:]]
    with pytest.raises(UsageError, match="cannot be the name of a directory"):
        rlds_beam.convert(data, tmp_path / "out", to="columns", connectors=pieces)
    assert not (tmp_path / "out").exists()


def test_a_connector_may_not_change_its_columns(data, tmp_path):
    def changing(batch):
        more = {"rewards": np.zeros(29)} if len(batch.episodes[0]) == 30 else {}
        return batch.replace(columns=tuple({**columns, **more} for columns in batch.columns))

    with pytest.raises(RldsBeamError, match=r"test_output:.*changing returned rewards as float64 .*, but as float32"):
        rlds_beam.convert(data, tmp_path / "out", to="columns", connectors=[*CONNECTORS[2:4], changing])


def test_a_module_without_rows_and_a_split_without_rows(tmp_path):
    fields = {"walker": rlds_beam.Field("x", "float32", (2,)), "runner": rlds_beam.Field("x", "float32", (2,))}
    output = ColumnsOutput(str(tmp_path), "toy", "parquet", {module: (field,) for module, field in fields.items()})
    for module in fields:
        (tmp_path / module).mkdir()
    writer = output.open_range(WorkRange("train", 0, 1, ()))
    columns = {"x": np.zeros((3, 2), np.float32)}
    writer.write(Batch((EPISODES[0],), ({},), modules={"walker": columns}))
    assert [(one.file, one.shard.records, one.predicted) for one in writer.finish()] == [
        ("walker/toy-train-00000-of-00001.parquet", 3, 3),
        ("runner/toy-train-00000-of-00001.parquet", 0, 0),
    ]
    writer.abort()
    assert len([*tmp_path.rglob("*.parquet")]) == 2


def test_tfds_reads_both_record_formats(outputs):
    tfds = pytest.importorskip("tensorflow_datasets")
    wanted = expected("walker")
    images = rlds_beam.open_dataset(outputs["parquet"], module="walker").columns["obs/camera"]
    in_order = tfds.ReadConfig(interleave_cycle_length=1)
    builder = tfds.builder_from_directory(outputs["tfrecord"] / "walker")
    rows = list(tfds.as_numpy(builder.as_dataset(split="train", read_config=in_order)))
    source = tfds.builder_from_directory(outputs["array_record"] / "walker").as_data_source(split="train")
    for found in (rows, source):
        assert len(found) == len(images)
        for i in (0, 7, len(images) - 1):
            within = 0 if found is rows else 8  # without TensorFlow, TFDS decodes JPEGs with another library
            np.testing.assert_allclose(found[i]["obs"]["camera"].astype(int), images[i].astype(int), atol=within)
            np.testing.assert_array_equal(found[i]["actions"], wanted["actions"][i])
            assert found[i]["terminateds"] == wanted["terminateds"][i]
            assert found[i]["agent_id"] == b"a"


@pytest.mark.parametrize("kind", FORMATS)
def test_an_output_without_rows_is_finished_and_readable(tmp_path, kind):
    if kind == "array_record":
        pytest.importorskip("array_record")
    data = write_dataset(tmp_path / "data", [make_episode(5, breaks=["missing_is_last"])])
    for _ in range(2):  # the second time, nothing is left to do
        assert export(data, tmp_path / "out", "columns", format=kind).items_written == 0
    found = rlds_beam.open_dataset(tmp_path / "out")
    assert (len(found), list(found)) == (0, [])
    assert {name: column.shape for name, column in found.columns.items()} == {
        "obs": (0, 3),
        "actions": (0, 2),
        "rewards": (0,),
        "terminateds": (0,),
        "truncateds": (0,),
    }


def test_a_nan_in_the_void_last_step_is_accepted(tmp_path):
    episode = make_episode(5)
    reward = np.array(episode.steps["reward"])
    reward[-1] = np.nan
    data = write_dataset(tmp_path / "data", [episode.with_columns({"reward": reward})])
    assert export(data, tmp_path / "out", "columns").items_written == 4


def test_fields_that_no_column_holds_are_named(tmp_path: Path) -> None:
    texts = {"language_instruction": np.full(5, b"push", object), "observation/text": np.full(5, b"a", object)}
    made = make_episode(5, observation={"state": 2}, columns=texts, metadata={"id": np.int64(1)})
    source = write_dataset(tmp_path / "data", [made])
    done = rlds_beam.convert(source, tmp_path / "out", to="columns")
    assert set(done.report.left_out) == {"discount", *texts, "episode_metadata/id"}
    assert "left out  language_instruction" in str(done)
    both = ["language_instruction", "episode_metadata/id"]
    added = [AddObservationsFromEpisodesToBatch(), AddColumnsFromEpisodesToTrainBatch(), AddFieldsToBatch(both)]
    done = rlds_beam.convert(source, tmp_path / "more", to="columns", connectors=added)
    assert set(done.report.left_out) == {"discount", "observation/text"}
